"""What a worker's pod requests on KubeRay."""

from __future__ import annotations

from trainfleet.infra.outputs.contract import PoolOutput
from trainfleet.training.launch.remote.node_size import LOADER_GIB, PodSize
from trainfleet.training.recipe.schema import Recipe

WORKER_GIB = 2
"""Memory request of a worker without a GPU: Python, torch, Ray's own processes."""
GPU_MEMORY_SHARE = 0.5
"""Memory request of a worker as a share of its GPU's memory, which every machine type with that GPU has."""


def worker_size(recipe: Recipe, pool: PoolOutput | None, per_pod: int) -> PodSize:
    """The size of a pod with `per_pod` workers on this pool."""
    gpu_gib = pool.gpu_memory_gib if recipe.scaling.use_gpu and pool is not None else 0.0
    worker = max(WORKER_GIB, GPU_MEMORY_SHARE * gpu_gib) + recipe.data_loading.processes * LOADER_GIB
    return PodSize(per_pod * recipe.cpus_per_rank, per_pod * worker, per_pod)
