"""Names ranks that are slower than the others, from times in which a rank waits for no other one.

A step takes equally long on all ranks, because each waits for the slowest, so step times tell nothing.
Compared are the wait for data, with every strategy, and with ddp the backward pass by DDP's own clocks.
"""

from __future__ import annotations

import math
import platform
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from trainfleet.training.runtime.process_group import gather
from trainfleet.training.trainer.context import RunContext
from trainfleet.training.trainer.metrics import Throughput

FACTOR = 1.5
"""Times the median of all ranks from which a rank is slow."""
LEAST_SHARE = 0.05
"""Share of a step by which it must exceed the median, or it delays nobody."""
LOGS = 3
"""Logs in a row in which a rank is slow until it is reported, and is not until it can be reported again."""
LEAST_S = 30.0
"""Seconds in steps that these logs must cover: single steps differ by chance."""
PARTS = ("waits for data", "computes its backward pass")
"""What is compared, in the order in which ranks exchange it."""


def slow_ranks(seconds: Sequence[float], step_s: float) -> dict[int, float]:
    """The ranks that delay the others, and the median of all. `seconds`: of a step, by rank; NaN if not
    measured.
    """
    measured = [each for each in seconds if not math.isnan(each)]
    if len(measured) < 2:
        return {}
    median = statistics.median_low(measured)  # of two ranks the faster one
    return {
        rank: median
        for rank, each in enumerate(seconds)
        if each > FACTOR * median and each - median > LEAST_SHARE * step_s
    }


class StragglerWatch:
    """Compares the ranks at each log. Creating it and `compare` are collective."""

    def __init__(self, context: RunContext, notify: Callable[[str, str], Any]) -> None:
        self._context, self._notify = context, notify
        several = context.world_size > 1
        self._hosts = gather(platform.node(), context.rank, context.world_size) if several else []
        self._reported: set[tuple[str, int]] = set()
        self._contrary: dict[tuple[str, int], tuple[int, float]] = {}
        """By part and rank, the logs in a row that contradict what is reported, and their seconds."""
        self._latest: float | None = None

    def compare(self, throughput: Throughput, compute_s: float | None) -> dict[str, float | int | str]:
        """Exchange the times since the last log; returns fields of the row, on rank 0, which writes it.

        Args:
            throughput: of this rank since then.
            compute_s: seconds of a recent backward pass on this rank; None if not measured.
        """
        if self._context.world_size == 1 or not throughput.steps:
            return {}
        data_s, step_s = (each / throughput.steps for each in (throughput.data, throughput.compute))
        # DDP measures every tenth step: an old value is no further evidence.
        new = compute_s is not None and compute_s != self._latest
        self._latest = compute_s
        own = (data_s, compute_s if new and compute_s is not None else math.nan)
        data, compute = zip(*self._exchange(own), strict=True)
        if self._context.rank != 0:
            return {}
        for part, seconds in zip(PARTS, (data, compute), strict=True):
            self._report(part, seconds, throughput)
        slowest = data.index(max(data))
        row: dict[str, float | int | str] = {
            "least_data_wait": min(data) / step_s,
            "slowest_data_wait": data[slowest] / step_s,
            "slowest_data_wait_rank": slowest,
            "slowest_data_wait_node": self._hosts[slowest],
        }
        if not all(map(math.isnan, compute)):
            row["slowest_backward_seconds"] = max(each for each in compute if not math.isnan(each))
        return row

    def _exchange(self, own: tuple[float, ...]) -> list[list[float]]:
        mine = torch.tensor(own, dtype=torch.float64, device=self._context.device)
        of_all = [torch.empty_like(mine) for _ in range(self._context.world_size)]
        dist.all_gather(of_all, mine)
        found: list[list[float]] = torch.stack(of_all).tolist()
        return found

    def _report(self, part: str, seconds: Sequence[float], throughput: Throughput) -> None:
        if all(map(math.isnan, seconds)):
            return
        slow = slow_ranks(seconds, throughput.compute / throughput.steps)
        for rank, value in enumerate(seconds):
            key = (part, rank)
            logs, in_steps = self._contrary.pop(key, (0, 0.0))
            if (rank in slow) == (key in self._reported):
                continue
            logs, in_steps = logs + 1, in_steps + throughput.compute
            if logs < LOGS or in_steps < LEAST_S:
                self._contrary[key] = (logs, in_steps)
                continue
            self._reported ^= {key}
            if rank in slow:
                self._notify("straggler", self._text(part, rank, value, slow[rank]))

    def _text(self, part: str, rank: int, seconds: float, median: float) -> str:
        host = self._hosts[rank]
        times = f"{seconds / median:.1f} times" if median else "more than"
        return (
            f"rank {rank} on {host} {part} for {seconds:.3g} s in each step, {times} the median of"
            f" {median:.3g} s, for at least {LOGS} logs: all ranks wait for it"
        )
