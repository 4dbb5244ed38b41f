"""The order of samples: each once per epoch, the same for any number of ranks, and continued from any
position.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainfleet.errors import InputError
from trainfleet.training.data import (
    SampleOrder,
    WindowOrder,
    check_sizes,
    make_order,
    permutation,
    share,
    spread,
)
from trainfleet.training.data import order as order_module
from trainfleet.training.data.pack_blocks import scattered
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe

sizes = st.integers(1, 200)
seeds = st.integers(0, 2**31 - 1)


@given(seed=seeds, epoch=st.integers(0, 5), size=sizes)
def test_an_epoch_holds_every_sample_once(seed: int, epoch: int, size: int) -> None:
    assert SampleOrder(seed, size).indices(epoch * size, size) == permutation(seed, epoch, size).tolist()
    assert sorted(permutation(seed, epoch, size).tolist()) == list(range(size))


@given(seed=seeds, size=sizes, start=st.integers(0, 500), count=st.integers(1, 100))
def test_the_order_continues_unchanged_from_any_sample(seed: int, size: int, start: int, count: int) -> None:
    whole = SampleOrder(seed, size).indices(0, start + count)
    assert SampleOrder(seed, size).indices(start, count) == whole[start:]


def test_reading_ahead_computes_the_permutation_of_each_epoch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    epochs: list[int] = []

    def counted(seed: int, epoch: int, size: int) -> Any:
        epochs.append(epoch)
        return permutation(seed, epoch, size)

    monkeypatch.setattr(order_module, "permutation", counted)
    order = SampleOrder(0, 50)
    for position in range(0, 200, 4):
        order.upcoming(position, 8)
        order.indices(position, 4)
        order.indices(position + 8, 4)
    assert epochs == [0, 1, 2, 3, 4]
    assert len(order._permutations) <= 2


def test_each_epoch_and_seed_has_its_own_order() -> None:
    orders = {tuple(permutation(seed, epoch, 50).tolist()) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


@given(
    size=sizes, limit=st.none() | st.integers(1, 300), micro=st.integers(1, 9), world_size=st.integers(1, 5)
)
def test_a_validation_reads_each_sample_once_over_all_ranks(
    size: int, limit: int | None, micro: int, world_size: int
) -> None:
    seen = spread(size, limit)
    assert len(seen) == min(size, limit or size)
    assert sorted(set(seen)) == list(seen)
    assert seen[-1] < size
    dealt = [
        index
        for rank in range(world_size)
        for batch in share(seen, micro, rank, world_size)
        for index in batch
    ]
    assert sorted(dealt) == list(seen)


def test_the_samples_of_a_large_split_are_not_listed() -> None:
    assert spread(10**12, None) == range(10**12)
    first, last = (share(range(10**9), 8, rank, 10**8) for rank in (0, 10**8 - 1))
    assert (first, last) == (
        [[*range(8)], [*range(8 * 10**8, 8 * 10**8 + 8)]],
        [[*range(8 * 10**8 - 8, 8 * 10**8)]],
    )


blocks = st.lists(st.integers(1, 12), min_size=1, max_size=12)
windows = st.integers(1, 5)


@given(seed=seeds, rows=blocks, window=windows, epoch=st.integers(0, 3))
def test_a_windowed_epoch_holds_every_sample_once(
    seed: int, rows: list[int], window: int, epoch: int
) -> None:
    order = WindowOrder(seed, rows, window)
    assert order.size == sum(rows)
    assert sorted(order.indices(epoch * order.size, order.size)) == list(range(order.size))


@given(seed=seeds, rows=blocks, window=windows, start=st.integers(0, 300), count=st.integers(1, 100))
def test_a_windowed_order_continues_unchanged_from_any_sample(
    seed: int, rows: list[int], window: int, start: int, count: int
) -> None:
    whole = WindowOrder(seed, rows, window).indices(0, start + count)
    assert WindowOrder(seed, rows, window).indices(start, count) == whole[start:]
    piecewise = WindowOrder(seed, rows, window)
    assert [piecewise.indices(position, 1)[0] for position in range(start, start + count)] == whole[start:]


@given(seed=seeds, rows=blocks, window=windows, start=st.integers(0, 300), count=st.integers(1, 60))
def test_a_window_limits_the_blocks_in_use_and_upcoming_lists_the_next_ones(
    seed: int, rows: list[int], window: int, start: int, count: int
) -> None:
    order = WindowOrder(seed, rows, window)
    block_of = np.repeat(np.arange(len(rows)), rows)
    epoch = order.indices(0, order.size)
    first = {
        block: min(place for place, sample in enumerate(epoch) if block_of[sample] == block)
        for block in range(len(rows))
    }
    by_window = sorted(first, key=lambda block: first[block])
    for number in range(0, len(rows), window):
        members = set(by_window[number : number + window])
        places = [place for place, sample in enumerate(epoch) if block_of[sample] in members]
        assert places == list(range(places[0], places[0] + len(places)))
    needed = {int(block_of[sample]) for sample in order.indices(start, count)}
    assert needed <= {int(block_of[sample]) for sample in order.upcoming(start, count)}


ROWS, BLOCKS, WINDOW, BATCH, EPOCHS = 64, 256, 16, 32, 20


def positions(epoch: int, shuffle: str) -> Any:
    """The place of each sample in an epoch."""
    size = ROWS * BLOCKS
    order = WindowOrder(1, [ROWS] * BLOCKS, WINDOW) if shuffle == "window" else SampleOrder(1, size)
    where = np.empty(size, dtype=np.int64)
    where[order.indices(epoch * size, size)] = np.arange(size)
    return where


def test_a_windowed_shuffle_has_no_trend_and_moves_each_sample_everywhere() -> None:
    """The rank correlation between the place in the files and the place in the epoch is zero within what
    random blocks give (4 sigma), and means are flat.
    """
    size = ROWS * BLOCKS
    drawn = [positions(epoch, "window") for epoch in range(EPOCHS)]
    correlations = [float(np.corrcoef(np.arange(size), where)[0, 1]) for where in drawn]
    assert abs(float(np.mean(correlations))) < 4 / np.sqrt(BLOCKS * EPOCHS)
    means = np.mean(drawn, axis=0).reshape(BLOCKS, ROWS).mean(axis=1)  # of each block over the epochs
    assert np.abs(means - size / 2).max() < 5 * size / np.sqrt(12 * EPOCHS)


def test_neighbours_are_as_far_apart_as_in_a_full_shuffle_of_the_window() -> None:
    """On average, two neighbours are a third of a window apart, as those of a full shuffle are a third of the
    epoch apart. The documentation states this limit.
    """
    far = {"window": ROWS * WINDOW / 3, "full": ROWS * BLOCKS / 3}
    for shuffle, expected in far.items():
        gaps = [
            np.abs(np.diff(positions(epoch, shuffle).reshape(BLOCKS, ROWS), axis=1)).mean()
            for epoch in range(EPOCHS)
        ]
        assert float(np.mean(gaps)) == pytest.approx(expected, rel=0.05)


def batch_spread(order: Any, value: Any) -> float:
    """Variance of a batch's mean over that of independent draws."""
    size = ROWS * BLOCKS
    means = [
        value[order.indices(epoch * size, size)].reshape(-1, BATCH).mean(axis=1) for epoch in range(EPOCHS)
    ]
    return float(np.var(np.concatenate(means)) / (np.var(value) / BATCH))


def test_the_bias_of_a_windowed_shuffle_is_as_documented_and_scattering_removes_it() -> None:
    """In the worst case (each block of one kind), the mean of a batch varies 1 + G/W times as much as under a
    full shuffle; with scattering, it varies as much.
    """
    kinds = np.repeat(
        np.random.default_rng(0).normal(size=BLOCKS), ROWS
    )  # a sorted source: all samples of a block are of one kind
    window = WindowOrder(1, [ROWS] * BLOCKS, WINDOW)
    stated = 1 + BATCH / WINDOW
    assert batch_spread(SampleOrder(1, ROWS * BLOCKS), kinds) == pytest.approx(1, abs=0.1)
    assert batch_spread(window, kinds) == pytest.approx(stated, rel=0.15)
    unsorted = np.random.default_rng(1).normal(size=ROWS * BLOCKS)
    assert batch_spread(window, unsorted) == pytest.approx(1, abs=0.1)
    assert batch_spread(window, kinds[scattered(ROWS * BLOCKS, 5)]) == pytest.approx(1, abs=0.15)


def test_the_order_does_not_change_between_releases() -> None:
    """A run that resumes with a newer version sees the samples that it would have seen."""
    assert SampleOrder(1, 10).indices(7, 6) == [1, 7, 0, 7, 5, 8]
    assert WindowOrder(1, [4, 4, 3], 2).indices(0, 11) == [5, 6, 7, 0, 4, 3, 1, 2, 9, 8, 10]
    assert scattered(8, 3).tolist() == [0, 2, 4, 6, 3, 5, 7, 1]


def workload(train: int = 100, validation: int = 5, test: int = 5, **more: Any) -> Any:
    sizes = {"train": train, "validation": validation, "test": test}
    return SimpleNamespace(
        **{"size": sizes.__getitem__, "blocks": lambda split: None, "streamed": True, **more}
    )


def recipe(shuffle: str) -> Recipe:
    return load_recipe("lm-tiny", [f"order.shuffle={shuffle}", "order.window_blocks=2"])


def test_the_order_follows_from_the_recipe_and_the_workload() -> None:
    in_blocks = {"blocks": lambda split: [50, 50]}
    assert isinstance(make_order(recipe("auto"), workload()), SampleOrder)
    assert isinstance(make_order(recipe("auto"), workload(**in_blocks)), WindowOrder)
    assert isinstance(make_order(recipe("auto"), workload(**in_blocks, streamed=False)), SampleOrder)
    assert isinstance(make_order(recipe("window"), workload(**in_blocks, streamed=False)), WindowOrder)
    assert isinstance(make_order(recipe("full"), workload(**in_blocks)), SampleOrder)
    assert make_order(recipe("none"), workload()).indices(98, 4) == [98, 99, 0, 1]
    with pytest.raises(InputError, match="the workload `lm` has none"):
        make_order(recipe("window"), workload())


def test_all_splits_that_are_too_small_are_reported_at_once() -> None:
    check_sizes(workload(), 4)
    with pytest.raises(InputError) as refused:
        check_sizes(workload(train=3, validation=0, test=0), 4)
    assert [each.what for each in refused.value.problems] == [
        "the train split has 3 samples for 4 ranks",
        "the validation split is empty",
        "the test split is empty",
    ]
