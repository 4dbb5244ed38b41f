"""Preparation allocates little for each further sample, and large data has a bounded number of blocks."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from benchmarks import preparation
from trainfleet.training.data import Prepared, find_source, pack_blocks, prepare
from trainfleet.training.data.blocks import MANIFEST
from trainfleet.training.workloads.vision.images import ImageTransform

BLOCK = 8 << 20


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "GROUP_ROWS", 100)
    monkeypatch.setattr(preparation, "FILE_ROWS", 500)  # a file is hashed in pieces of 1 MiB
    monkeypatch.setattr(preparation, "SIDE", 8)


def images(folder: Path, count: int) -> Path:
    folder.mkdir()
    preparation.write_images(folder / "raw", count)
    return folder


def prepare_here(folder: Path) -> Prepared:
    """Prepare images in this process, in units of about a hundred and blocks of a hundred."""
    classes = tuple(f"class{number}" for number in range(preparation.CLASSES))
    return prepare(
        find_source(str(folder / "raw"), columns=("image", "label"), unit_bytes=20_000),
        ImageTransform("image", "label", preparation.SIDE, 3, classes),
        folder / "cache",
        name="images",
        scatter=0,
        rows_per_block=100,
        via="here",
        processes=1,
    )


@pytest.mark.deep
def test_the_peak_of_allocations_hardly_grows_with_the_number_of_samples(tmp_path: Path) -> None:
    prepare_here(images(tmp_path / "warm", 300))  # imports
    peaks, counts = [], (1_000, 4_000)
    for count in counts:
        folder = images(tmp_path / str(count), count)
        tracemalloc.start()
        prepared = prepare_here(folder)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert sum(prepared.manifest.rows(split) for split in prepared.manifest.splits) == count
    assert (peaks[1] - peaks[0]) / (counts[1] - counts[0]) < 150  # bytes; an image has 192


def test_a_block_opens_each_part_at_most_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    mapped = pack_blocks._mapped
    monkeypatch.setattr(pack_blocks, "_mapped", lambda path: opened.append(path) or mapped(path))  # type: ignore[func-returns-value]  # None
    monkeypatch.setattr(pack_blocks, "_OPEN_PARTS", 1)
    splits = prepare_here(images(tmp_path / "images", 1_000)).manifest.splits
    parts, blocks = len({*opened}), sum(len(each) for each in splits.values())
    assert parts >= 8
    assert len(opened) <= parts * blocks < sum(entry.rows for each in splits.values() for entry in each)


@pytest.mark.parametrize(
    ("size", "block"),
    [(10**9, BLOCK), (BLOCK << 16, BLOCK), (10**12, -(-(10**12) >> 16)), (10**13, 32 << 20)],
)
def test_blocks_grow_only_for_large_data(size: int, block: int) -> None:
    assert abs(pack_blocks.block_bytes_for(size, BLOCK) - block) <= 1


def test_preparation_chooses_larger_blocks_for_large_data(
    tmp_path: Path, texts_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_blocks, "MAX_BLOCKS", 10)
    sizes = [len(each.manifest.splits["train"]) for each in (texts_of(200), texts_of(400))]
    assert sizes[0] == pytest.approx(sizes[1], abs=2)
    assert sizes[0] < 12


@pytest.fixture
def texts_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Prepares this many texts of 1,000 bytes, in blocks of 2,000 bytes if the data is small."""
    import sys

    from tests.training.data.transforms import Bytes

    monkeypatch.setattr(sys.modules["trainfleet.training.data.prepare"], "BLOCK_BYTES", 2_000)

    def make(count: int) -> Prepared:
        folder = tmp_path / f"{count}"
        folder.mkdir()
        for number in range(count):
            (folder / f"{number:04}.txt").write_bytes(bytes([97 + number % 26]) * 1_000)
        return prepare(
            find_source(str(folder)), Bytes(), tmp_path / "cache", name="texts", pack=9, via="here"
        )

    return make


def test_the_manifest_of_the_benchmark_is_one_that_a_rank_parses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_blocks, "MAX_BLOCK_BYTES", 1 << 30)  # fewer entries
    monkeypatch.setattr(pack_blocks, "MAX_BLOCKS", 1 << 10)
    preparation.write_manifest(tmp_path / MANIFEST, 1)
    found = preparation.parse_manifest(str(tmp_path / MANIFEST))
    assert found["blocks"] == pytest.approx(1 << 10, rel=0.01)
    assert found["seconds"] >= 0
