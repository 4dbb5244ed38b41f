"""Runs a function on ranks: fresh processes in one process group, with one core each."""

from __future__ import annotations

import multiprocessing
import os
import queue as queues
import sys
import time
from collections.abc import Callable
from typing import Any

from trainfleet.errors import TrainfleetError

TIMEOUT_S = 3600.0
POLL_S = 1.0
EXIT_S = 30.0
"""How long a process may take to exit after its result; then it is killed."""

Work = Callable[[int, int, dict[str, Any]], Any]
"""A module-level function of (rank, world size, plain settings) that returns plain values."""


def start(work: Work, world_size: int, settings: dict[str, Any], timeout_s: float = TIMEOUT_S) -> list[Any]:
    """Call `work(rank, world_size, settings)` on each rank; returns the results in order of rank.

    Raises:
        TrainfleetError: a rank failed or died, or did not finish within `timeout_s`.
    """
    import torch.distributed as dist

    # This process serves the store of the process group, as torchrun does: the kernel picks the port, and no
    # other process can take it.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    spawn = multiprocessing.get_context("spawn")
    queue: Any = spawn.Queue()
    processes = [
        spawn.Process(target=_rank, args=(work, rank, world_size, store.port, settings, queue))
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    results: dict[int, Any] = {}
    ends = time.monotonic() + timeout_s
    try:
        while len(results) < world_size:
            # Whether a process has died is looked at before the queue, which then has all that it sent.
            dead = {rank: each.exitcode for rank, each in enumerate(processes) if each.exitcode}
            try:
                rank, value, error = queue.get(timeout=POLL_S)
            except queues.Empty:
                for rank, code in dead.items():
                    raise TrainfleetError(f"rank {rank} died with exit code {code}") from None
                if time.monotonic() > ends:
                    raise TrainfleetError(f"not finished within {timeout_s:g} s") from None
                continue
            if error:
                raise TrainfleetError(f"rank {rank} failed: {error}")
            results[rank] = value
    finally:
        for process in processes:
            if len(results) < world_size:
                process.kill()
            process.join(EXIT_S)
            if process.is_alive():
                process.kill()
                process.join()
    return [results[rank] for rank in range(world_size)]


def _rank(  # noqa: PLR0917 - positional for multiprocessing
    work: Work, rank: int, world_size: int, port: int, settings: dict[str, Any], queue: Any
) -> None:
    sys.stdout = sys.stderr  # standard output is the benchmark's table
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    os.environ |= {name: str(value) for name, value in ranks.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    try:
        import torch

        from trainfleet.training.runtime import process_group

        torch.set_num_threads(1)
        process_group.init_from_env(use_gpu=settings.get("use_gpu", False))
        value = work(rank, world_size, settings)
        process_group.shutdown()
        queue.put((rank, value, None))
    except BaseException as error:
        what = " ".join(str(error).split())
        queue.put((rank, None, f"{type(error).__name__}: {what}" if what else type(error).__name__))
        raise
