"""Both sides of the ingest benchmark produce the same samples, in the same shape and type."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import ingest
from trainfleet.training.data.order import SampleOrder, WindowOrder


def test_both_sides_produce_each_sample_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "BLOCK_BYTES", 40 * 2 * (ingest.CONTEXT + 1))
    monkeypatch.setattr(ingest, "FILE_TOKENS", 8_000)
    data = ingest.make(tmp_path, 10)
    sizes = [each.rows for each in data.manifest.splits["train"]]
    assert sizes[:-1] == [40] * (len(sizes) - 1)
    batches = sum(sizes) // 16
    windowed, full = WindowOrder(1, sizes, 2), SampleOrder(1, sum(sizes))
    seen = [
        torch.cat(list(side))
        for side in (ingest.ours(data, windowed, 16, batches), ingest.ours(data, full, 16, batches))
    ]
    theirs = torch.cat(list(ingest.loader(data, 16, batches, 0)))
    assert {each.dtype for each in (*seen, theirs)} == {torch.int64}
    assert {tuple(each.shape) for each in (*seen, theirs)} == {(batches * 16, ingest.CONTEXT + 1)}
    for each in (*seen, theirs):
        assert len({tuple(row.tolist()) for row in each}) == batches * 16


def test_the_ratio_is_to_the_fastest_loader_of_each_round() -> None:
    sides = {
        "ours, windowed": [100.0, 300.0, 90.0],
        "DataLoader, 0 workers": [50.0, 100.0, 30.0],
        "DataLoader, 1 workers": [10.0, 200.0, 45.0],
    }
    assert ingest._ratios(sides) == {"ours, windowed": 2.0}
