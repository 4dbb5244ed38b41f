"""What a pod requests on SkyPilot."""

from __future__ import annotations

import math

from trainfleet.training.launch.remote.node_size import LOADER_GIB, PodSize
from trainfleet.training.launch.sky.resources import GIB, STATE_BYTES, needs_of
from trainfleet.training.recipe.schema import Recipe

SPARE_CPUS = 1
"""For Ray's head and the driver, in addition to the workers."""
MIN_CPUS = 0.5
WORKER_GIB, GPU_WORKER_GIB, POD_GIB = 1.5, 8.0, 2.0
"""Memory of a worker's process without and with a GPU (libraries, CUDA, batches), and of Ray with SkyPilot's.
"""


def pod_size(recipe: Recipe, nodes: int) -> PodSize:
    """The size of each pod of a run on this many of them."""
    workers = max(1, recipe.scaling.workers // max(1, nodes))
    return PodSize(_cpus(recipe, workers), _memory(recipe, workers, nodes), workers)


def _cpus(recipe: Recipe, workers: int) -> float:
    """With GPUs there is a spare CPU; a small cluster may have none to spare."""
    needed = workers * recipe.cpus_per_rank
    return float(math.ceil(needed) + SPARE_CPUS) if recipe.scaling.use_gpu else max(MIN_CPUS, needed)


def _memory(recipe: Recipe, workers: int, nodes: int) -> int:
    """GiB. It is a limit, so it includes the snapshot from which a checkpoint is written."""
    each = GPU_WORKER_GIB if recipe.scaling.use_gpu else WORKER_GIB
    streamed = (
        getattr(getattr(recipe.workload, "data", None), "memory_mib", 0) / 1024
        if recipe.scaling.use_gpu
        else 0.0
    )
    states = (needs_of(recipe).parameters or 0.0) * STATE_BYTES / GIB
    whole = workers if recipe.strategy == "ddp" and not recipe.scaling.use_gpu else 1
    shared = (
        states * whole
        if recipe.strategy == "ddp"
        else states / nodes * (2 if recipe.sharding.cpu_offload else 1)
    )
    loaders = recipe.data_loading.processes * LOADER_GIB
    return math.ceil(POD_GIB + workers * (each + streamed + loaders) + shared)
