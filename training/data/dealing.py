"""Deals the samples of a global batch to ranks.

How many samples a rank gets, and in how many micro batches, depends on the numbers alone. Which ones depends
on whether they are read block by block: then each rank gets neighbours in the prepared data, and reads few
blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_DEVIATIONS = 3.0
"""Standard deviations of a rank's edge in a batch, as a share of it, that are read ahead."""


@dataclass(frozen=True)
class Part:
    """The part of each global batch, sorted by block, that a rank trains on.

    Attributes:
        low: where it begins on average, as a share of the batch.
        high: where it ends.
        margin: how far a batch of random samples deviates from that, almost always.
    """

    low: float = 0.0
    high: float = 1.0
    margin: float = 0.0

    def of(self, blocks: NDArray[np.int64], rows: NDArray[np.int64]) -> list[int]:
        """Those of `blocks`, in their order, that the part of a batch of all their samples may need.

        Args:
            blocks: numbers of blocks.
            rows: samples of every block of the data.
        """
        inside = np.sort(blocks)
        ends = rows[inside].cumsum()
        low, high = (self.low - self.margin) * ends[-1], (self.high + self.margin) * ends[-1]
        needed = {int(block) for block in inside[(ends > low) & (ends - rows[inside] < high)]}
        return [block for block in blocks.tolist() if block in needed]


WHOLE = Part()
"""Of a run with one rank."""


def part_of(rank: int, world_size: int, global_batch: int) -> Part:
    """The part of a rank in batches of `global_batch` samples."""
    if world_size == 1:
        return WHOLE
    return Part(rank / world_size, (rank + 1) / world_size, _DEVIATIONS * math.sqrt(0.25 / global_batch))


def deal(
    samples: Sequence[int], micro_batch: int, rank: int, world_size: int, *, by_block: bool = False
) -> list[list[int]]:
    """The micro batches of a rank.

    Over all ranks they hold every sample once, as evenly as possible and never more than `micro_batch`. All
    ranks have the same number of them, of which some may be empty. If the ranks do not divide the batch there
    is one more turn, so a run can continue with any number of workers.

    Args:
        samples: of the global batch, in the order of their positions.
        micro_batch: the most samples of a micro batch.
        rank: whose micro batches.
        world_size: number of ranks.
        by_block: sort the samples by their number, which is that of the prepared data, before they are dealt.
            Those of a rank stay in the order of their positions, so one rank trains as without it.
    """
    size = len(samples)
    turns = -(-size // (micro_batch * world_size))
    slots = turns * world_size
    edges = np.arange(slots + 1) * size // slots
    if not by_block or world_size == 1:
        return [list(samples[edges[slot] : edges[slot + 1]]) for slot in range(rank, slots, world_size)]
    lengths = np.diff(edges).reshape(turns, world_size)
    end = int(lengths[:, : rank + 1].sum())
    numbers = np.asarray(samples, dtype=np.int64)
    sorted_places = np.argsort(numbers, kind="stable")
    mine = numbers[np.sort(sorted_places[end - int(lengths[:, rank].sum()) : end])]
    return [each.tolist() for each in np.split(mine, lengths[:, rank].cumsum()[:-1])]
