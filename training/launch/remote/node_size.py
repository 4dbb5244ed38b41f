"""Whether a pod fits a node of a pool. A pod that does not waits for ever, and no autoscaler helps."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainfleet.errors import Problem
from trainfleet.infra.outputs.contract import PoolOutput

LOADER_GIB = 1.0
"""Memory of a process that builds batches (`data_loading.engine: ray`): Python, torch, parts of the data."""


@dataclass(frozen=True)
class PodSize:
    """What a pod of a run requests, and how many workers share it."""

    cpus: float
    memory_gib: float
    workers: int


def too_large(pool: PoolOutput | None, size: PodSize, cpus_per_worker: float) -> list[Problem]:
    """What a pod requests and no node of the pool has."""
    if pool is None:
        return []
    who = "a pod of one worker" if size.workers == 1 else f"a pod of {size.workers} workers"
    limit = f"its nodes ({pool.instance_type}) have at most"
    found = []
    if 0 < pool.pod_cpus < size.cpus:
        what = f"{who} requests {size.cpus:g} CPUs of pool {pool.name}, {limit} {pool.pod_cpus:g} for pods"
        fitting = math.floor(cpus_per_worker - (size.cpus - pool.pod_cpus) / size.workers)
        fix = f"at most {fitting}, or another pool" if fitting >= 1 else "less, or another pool"
        found.append(Problem("scaling.cpus_per_worker", what, fix))
    if 0 < pool.pod_memory_gib < size.memory_gib:
        requested = f"{size.memory_gib:g} GiB of memory of pool {pool.name}"
        what = f"{who} requests {requested}, {limit} {pool.pod_memory_gib:g} for pods"
        found.append(Problem("--pool", what, "another pool"))
    return found
