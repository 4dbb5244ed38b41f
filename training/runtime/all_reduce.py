"""Times all-reduces between the processes of several machines: the program of `trainfleet fabric check`.

    python -m trainfleet.training.runtime.all_reduce --backend gloo --per-machine 2 --address 127.0.0.1

Bandwidths are those of nccl-tests (doc/PERFORMANCE.md): algorithm bandwidth is size / time, and bus bandwidth
is algorithm bandwidth * 2 (n - 1) / n for n ranks, which does not depend on n.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

MARK = "trainfleet-all-reduce "
"""Starts the line with the results. Everything else on stdout is NCCL's log."""
PORT = 29400
COLLECTIVE_S = 300
"""How long one all-reduce may take. A rank that cannot reach the others ends with an error, not a hang."""
SIZES = {"nccl": (8 << 20, 1 << 30), "gloo": (64 << 10, 4 << 20)}
"""Bytes of the smallest and the largest all-reduce; each is twice the one before."""
ITERATIONS = {"nccl": 20, "gloo": 5}
WARM_UP = 5
GIGA = 1e9


@dataclass(frozen=True)
class Timing:
    """One size: bytes per rank, seconds per all-reduce, averaged over the ranks."""

    size: int
    seconds: float
    ranks: int

    @property
    def algorithm_bandwidth(self) -> float:
        """GB/s."""
        return self.size / self.seconds / GIGA

    @property
    def bus_bandwidth(self) -> float:
        """GB/s."""
        return self.algorithm_bandwidth * 2 * (self.ranks - 1) / self.ranks


def line(timings: Sequence[Timing]) -> str:
    """The results as one line."""
    return MARK + json.dumps([asdict(each) for each in timings])


def read_timings(lines: Iterable[str]) -> list[Timing]:
    """The results in a log; empty if it has none."""
    for each in lines:
        _, mark, found = each.partition(MARK)
        if mark:
            return [Timing(**timing) for timing in json.loads(found)]
    return []


def sizes(smallest: int, largest: int) -> list[int]:
    """Doubled from the smallest to at most the largest."""
    found = [smallest]
    while found[-1] * 2 <= largest:
        found.append(found[-1] * 2)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Start this machine's ranks and wait for them."""
    from torch.multiprocessing.spawn import ProcessException, start_processes

    parser = argparse.ArgumentParser(description="Times all-reduces between machines.")
    parser.add_argument("--backend", choices=tuple(SIZES), required=True)
    parser.add_argument("--machines", type=int, default=1)
    parser.add_argument("--machine", type=int, default=0, help="this machine's number, from 0")
    parser.add_argument("--per-machine", type=int, required=True, help="ranks on each machine")
    parser.add_argument("--address", required=True, help="host name of machine 0")
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--wait", type=float, default=600.0, help="seconds until all ranks are connected")
    options = parser.parse_args(arguments)
    try:
        start_processes(_rank, (options,), nprocs=options.per_machine, start_method="spawn")  # type: ignore[no-untyped-call]
    except ProcessException as error:
        last = str(error).strip().splitlines()[-1]
        sys.stderr.write(f"error: an all-reduce failed: {last}\n")
        sys.exit(1)


def _rank(local: int, options: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    cuda = options.backend == "nccl"
    if cuda:
        torch.cuda.set_device(local)
    rank = options.machine * options.per_machine + local
    world = options.machines * options.per_machine
    # NOTE: the other machine may start half an hour later. Only the connection waits that long.
    wait = timedelta(seconds=options.wait)
    make_store = dist.TCPStore  # type: ignore[attr-defined]  # exported, but not listed
    store = make_store(options.address, options.port, world, is_master=rank == 0, timeout=wait)
    dist.init_process_group(
        options.backend,
        store=store,
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=COLLECTIVE_S),
    )
    device = f"cuda:{local}" if cuda else "cpu"
    timings = [
        _time(size, world, device, ITERATIONS[options.backend]) for size in sizes(*SIZES[options.backend])
    ]
    if rank == 0:
        sys.stdout.write(line(timings) + "\n")
        sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


def _time(size: int, world: int, device: str, iterations: int) -> Timing:
    import torch
    import torch.distributed as dist

    values: Any = torch.ones(size // 4, dtype=torch.float32, device=device)
    dist.all_reduce(values)
    if not bool((values == world).all()):
        raise RuntimeError(f"an all-reduce of {size} bytes has a wrong result")
    values.zero_()
    for _ in range(WARM_UP):
        dist.all_reduce(values)
    _synchronize(device)
    start = time.perf_counter()
    for _ in range(iterations):
        dist.all_reduce(values)
    _synchronize(device)
    seconds = torch.tensor([(time.perf_counter() - start) / iterations], dtype=torch.float64, device=device)
    dist.all_reduce(seconds)
    return Timing(size, float(seconds) / world, world)


def _synchronize(device: str) -> None:
    import torch

    if device != "cpu":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
