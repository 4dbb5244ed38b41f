"""Both sides of the ingest benchmark produce the same samples, in the same shape and type."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import ingest
from trainfleet.training.data.order import SampleOrder, WindowOrder


def test_both_sides_produce_the_same_batches_and_each_sample_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "BLOCK_BYTES", 40 * 2 * (ingest.CONTEXT + 1))
    monkeypatch.setattr(ingest, "FILE_TOKENS", 8_000)
    data = ingest.make(tmp_path, 10)
    sizes = [each.rows for each in data.manifest.splits["train"]]
    assert sizes[:-1] == [40] * (len(sizes) - 1)
    batches = sum(sizes) // 16
    windowed, full = WindowOrder(1, sizes, 2), SampleOrder(1, sum(sizes))
    for order in (windowed, full):
        given = torch.cat(list(ingest.ours(data, order, 16, batches)))
        assert given.dtype == torch.int64
        assert given.shape == (batches * 16, ingest.CONTEXT + 1)
        assert len({tuple(row.tolist()) for row in given}) == batches * 16
        for workers in (0, 2):
            theirs = torch.cat(list(ingest.loader(data, order, 16, batches, workers)))
            assert torch.equal(theirs, given), f"{workers} workers"


def test_rows_are_copied_one_by_one_or_in_groups_with_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "BLOCK_BYTES", 40 * 2 * (ingest.CONTEXT + 1))
    monkeypatch.setattr(ingest, "FILE_TOKENS", 8_000)
    dataset = ingest.Mapped(ingest.make(tmp_path, 10))
    indices = [79, 3, 41, 3, 0, 78, 40]
    monkeypatch.setattr(ingest, "GROUP", 10**6)
    one_by_one = dataset.__getitems__(indices)
    monkeypatch.setattr(ingest, "GROUP", 0)
    assert torch.equal(dataset.__getitems__(indices), one_by_one)
    assert [row.tolist() for row in one_by_one] == [dataset.parts[i // 40][i % 40].tolist() for i in indices]


def test_the_ratio_is_to_the_fastest_loader_of_each_round_and_order() -> None:
    sides = {
        "ours, windowed": [100.0, 300.0, 90.0],
        "DataLoader, windowed, 0 workers": [50.0, 100.0, 30.0],
        "DataLoader, windowed, 1 workers": [10.0, 200.0, 45.0],
        "ours, full": [10.0, 10.0, 10.0],
        "DataLoader, full, 0 workers": [20.0, 5.0, 40.0],
        "DataLoader, full, 1 workers": [1.0, 1.0, 1.0],
    }
    assert ingest._ratios(sides) == {
        "ours, windowed": {"median": 2.0, "least": 1.5, "most": 2.0},
        "ours, full": {"median": 0.5, "least": 0.25, "most": 2.0},
    }
