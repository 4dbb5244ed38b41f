"""How the samples of a global batch are dealt to ranks, and which blocks a rank then reads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainfleet.training.data import WindowOrder
from trainfleet.training.data.dealing import WHOLE, deal, part_of

ROWS, BLOCKS, WINDOW, BATCH, RANKS = 64, 128, 16, 128, 4


@given(
    samples=st.lists(st.integers(0, 50), min_size=1, max_size=80),
    micro_batch=st.integers(1, 40),
    world_size=st.integers(1, 9),
    by_block=st.booleans(),
)
def test_ranks_share_a_global_batch_without_gap_or_overlap(
    samples: list[int], micro_batch: int, world_size: int, by_block: bool
) -> None:
    dealt = [deal(samples, micro_batch, rank, world_size, by_block=by_block) for rank in range(world_size)]
    turns = -(-len(samples) // (micro_batch * world_size))
    assert [len(each) for each in dealt] == [turns] * world_size
    assert sorted(sample for rank in dealt for part in rank for sample in part) == sorted(samples)
    lengths = [len(part) for rank in dealt for part in rank]
    assert max(lengths) <= micro_batch
    assert max(lengths) - min(lengths) <= 1


@given(samples=st.lists(st.integers(0, 50), min_size=1, max_size=40), micro_batch=st.integers(1, 9))
def test_a_rank_alone_trains_in_the_order_of_positions(samples: list[int], micro_batch: int) -> None:
    alone = deal(samples, micro_batch, 0, 1, by_block=True)
    assert [sample for part in alone for sample in part] == samples


@given(
    samples=st.lists(st.integers(0, 999), unique=True, min_size=1, max_size=80),
    world_size=st.integers(2, 9),
    micro_batch=st.integers(1, 8),
)
def test_samples_of_a_rank_are_neighbours_in_the_order_of_their_positions(
    samples: list[int], world_size: int, micro_batch: int
) -> None:
    dealt = [
        [sample for part in deal(samples, micro_batch, rank, world_size, by_block=True) for sample in part]
        for rank in range(world_size)
    ]
    assert [sample for rank in dealt for sample in sorted(rank)] == sorted(samples)
    assert all(rank == sorted(rank, key=samples.index) for rank in dealt)


def read_blocks(*, by_block: bool) -> list[list[set[int]]]:
    """The blocks that each rank reads in each step of an epoch."""
    order = WindowOrder(1, [ROWS] * BLOCKS, WINDOW)
    steps = [order.indices(start, BATCH) for start in range(0, order.size, BATCH)]
    return [
        [
            {sample // ROWS for part in deal(samples, 8, rank, RANKS, by_block=by_block) for sample in part}
            for samples in steps
        ]
        for rank in range(RANKS)
    ]


def test_each_rank_reads_its_share_of_the_blocks_of_a_window() -> None:
    """And a few at its edges, which differ between batches. Otherwise, every rank reads nearly every block."""
    steps = WINDOW * ROWS // BATCH  # of a window
    counts = {
        by_block: [
            len(set().union(*rank[start : start + steps]))
            for rank in read_blocks(by_block=by_block)
            for start in range(0, len(rank), steps)
        ]
        for by_block in (False, True)
    }
    assert float(np.mean(counts[False])) > WINDOW - 1
    assert float(np.mean(counts[True])) < WINDOW / RANKS + 4


def test_nearly_all_blocks_that_a_rank_needs_are_read_ahead_and_few_others() -> None:
    order = WindowOrder(1, [ROWS] * BLOCKS, WINDOW)
    needed, ahead, missed = 0, [], 0
    for rank, steps in enumerate(read_blocks(by_block=True)):
        part = part_of(rank, RANKS, BATCH)
        for number, blocks in enumerate(steps):
            upcoming = {sample // ROWS for sample in order.upcoming(number * BATCH, BATCH, part)}
            needed, missed = needed + len(blocks), missed + len(blocks - upcoming)
            ahead.append(len(upcoming))
    assert missed <= needed / 100
    assert float(np.mean(ahead)) < 2 * WINDOW * 0.6  # of two windows


@pytest.mark.parametrize("rows", [[ROWS] * BLOCKS, [5, 1, 90, 7, 3, 40] * 4])
def test_a_rank_alone_reads_ahead_all_blocks_of_its_windows(rows: list[int]) -> None:
    assert part_of(0, 1, BATCH) == WHOLE
    order = WindowOrder(3, rows, WINDOW)
    first = np.concatenate(([0], np.cumsum(rows)))
    found = np.searchsorted(first, order.upcoming(0, 1), side="right") - 1
    inside = np.searchsorted(first, order.indices(0, 1), side="right") - 1
    assert len(found) == min(2 * WINDOW, len(rows))
    assert set(inside.tolist()) <= set(found.tolist())
