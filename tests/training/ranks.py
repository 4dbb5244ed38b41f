"""Several ranks for a test: forked from its process, which has torch already, so that they start in a moment."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import socket
from collections.abc import Callable
from typing import Any

import torch

RANKS_TIMEOUT_S = 120


def fork_ranks(work: Callable[[int], Any], world_size: int) -> list[int]:
    """Call `work(rank)` in forked processes with the environment of a process group; when one dies the others are ended."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def child(rank: int) -> None:
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        torch.set_num_threads(1)
        work(rank)

    forking = multiprocessing.get_context("fork")
    processes = [forking.Process(target=child, args=(rank,)) for rank in range(world_size)]
    for process in processes:
        process.start()
    while any(process.is_alive() for process in processes):
        done = multiprocessing.connection.wait([process.sentinel for process in processes if process.is_alive()], RANKS_TIMEOUT_S)
        if not done or any(process.exitcode for process in processes):
            for process in processes:
                process.kill()
    for process in processes:
        process.join()
    return [process.exitcode or 0 for process in processes]
