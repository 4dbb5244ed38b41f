"""Ranks for a benchmark: fresh processes in a process group of their own, one core each. Used by the
benchmarks of training.

A rank is a module-level function of (rank, world size, plain settings) that returns plain values. Easy to get
wrong: what a rank
prints goes to standard error, for standard output is the benchmark's table.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

from trainfleet.errors import TrainfleetError

TIMEOUT_S = 3600

Work = Callable[[int, int, dict[str, Any]], Any]


def start(work: Work, world_size: int, settings: dict[str, Any]) -> list[Any]:
    """Call `work(rank, world_size, settings)` on each rank; returns what they return, in order.

    Raises:
        TrainfleetError: a rank failed.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    spawning = multiprocessing.get_context("spawn")
    answers: Any = spawning.Queue()
    processes = [
        spawning.Process(target=_rank, args=(work, (rank, world_size, port), settings, answers))
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    found: dict[int, Any] = {}
    try:
        while len(found) < world_size:
            rank, value, error = answers.get(timeout=TIMEOUT_S)
            if error:
                raise TrainfleetError(f"rank {rank} failed: {error}")
            found[rank] = value
    finally:
        for process in processes:
            if len(found) < world_size:
                process.kill()
            process.join()
    return [found[rank] for rank in range(world_size)]


def _rank(work: Work, place: tuple[int, int, int], settings: dict[str, Any], answers: Any) -> None:
    rank, world_size, port = place
    sys.stdout = sys.stderr
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
    }
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    try:
        import torch

        from trainfleet.training.runtime import process_group

        torch.set_num_threads(1)
        process_group.init_from_env(use_gpu=settings.get("use_gpu", False))
        value = work(rank, world_size, settings)
        process_group.shutdown()
        answers.put((rank, value, None))
    except BaseException as error:
        answers.put((rank, None, f"{type(error).__name__}: {error}"))
        raise
