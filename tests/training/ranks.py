"""Several ranks for a test, started in a moment: each is forked from a server that has imported torch but
computed nothing.

Forking the test's own process instead hangs now and then: torch's threads do not survive a fork once they
have worked.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import socket
from collections.abc import Callable
from typing import Any

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
    """Call `work(rank)` in processes with the environment of a process group; when one dies, or none ends in
    `limit_s`, all are ended.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload(PRELOADED)
    payload = cloudpickle.dumps(work)
    processes = [
        forking.Process(target=_rank, args=(payload, rank, world_size, port)) for rank in range(world_size)
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
    }
    torch.set_num_threads(1)
    cloudpickle.loads(payload)(rank)
