"""The order of samples: every one once per epoch, the same for any number of ranks, re-entered anywhere."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from training.data import SampleOrder, micro_batch_starts, permutation, share, spread

sizes = st.integers(1, 200)
seeds = st.integers(0, 2**31 - 1)


@given(seed=seeds, epoch=st.integers(0, 5), size=sizes)
def test_an_epoch_holds_every_sample_once(seed: int, epoch: int, size: int) -> None:
    assert SampleOrder(seed, size).indices(epoch * size, size) == permutation(seed, epoch, size).tolist()
    assert sorted(permutation(seed, epoch, size).tolist()) == list(range(size))


@given(seed=seeds, size=sizes, start=st.integers(0, 500), count=st.integers(1, 100))
def test_re_entered_at_any_sample_the_order_goes_on_as_it_would_have(seed: int, size: int, start: int, count: int) -> None:
    whole = SampleOrder(seed, size).indices(0, start + count)
    assert SampleOrder(seed, size).indices(start, count) == whole[start:]


@given(step=st.integers(0, 50), micro=st.integers(1, 4), accumulation=st.integers(1, 4), world_size=st.integers(1, 6))
def test_ranks_share_a_global_batch_without_gap_or_overlap(step: int, micro: int, accumulation: int, world_size: int) -> None:
    size = micro * accumulation * world_size
    positions = [
        start + place for rank in range(world_size) for start in micro_batch_starts(step, size, micro, rank, world_size) for place in range(micro)
    ]
    assert sorted(positions) == list(range(step * size, step * size + size))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {tuple(permutation(seed, epoch, 50).tolist()) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


@given(size=sizes, limit=st.none() | st.integers(1, 300), micro=st.integers(1, 9), world_size=st.integers(1, 5))
def test_a_validation_looks_at_each_of_its_samples_once_over_all_ranks(size: int, limit: int | None, micro: int, world_size: int) -> None:
    seen = spread(size, limit)
    assert len(seen) == min(size, limit or size)
    assert sorted(set(seen)) == seen
    assert seen[-1] < size
    dealt = [index for rank in range(world_size) for batch in share(seen, micro, rank, world_size) for index in batch]
    assert sorted(dealt) == seen
