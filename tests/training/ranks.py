"""Several ranks for a test, started quickly: each is forked from a server that has imported torch and
computed nothing.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from ray import cloudpickle

RANKS_TIMEOUT_S = 120
PRELOADED = [
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "trainfleet.training.trainer.loop",
    "trainfleet.training.trainer.metrics",
    "trainfleet.training.workloads.lm.workload",
]


def start_ranks(work: Callable[[int], Any], world_size: int, limit_s: float = RANKS_TIMEOUT_S) -> list[int]:
    """Call `work(rank)` in processes with the environment of a process group. If one dies, or none ends
    within `limit_s`, all are killed.
    """
    # This process serves the store of the process group, as torchrun does: the kernel picks the port, and no
    # other process can take it.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    # NOTE: do not fork the process of the test. Threads of torch that have worked do not survive a fork, so the
    # child can hang.
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload(PRELOADED)
    payload = cloudpickle.dumps(work)
    processes = [
        forking.Process(target=_rank, args=(payload, rank, world_size, store.port))
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    while any(process.is_alive() for process in processes):
        done = multiprocessing.connection.wait(
            [process.sentinel for process in processes if process.is_alive()], limit_s
        )
        if not done or any(process.exitcode for process in processes):
            for process in processes:
                process.kill()
    for process in processes:
        process.join()
    return [process.exitcode or 0 for process in processes]


def _rank(payload: bytes, rank: int, world_size: int, port: int) -> None:
    import torch

    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    torch.set_num_threads(1)
    cloudpickle.loads(payload)(rank)
