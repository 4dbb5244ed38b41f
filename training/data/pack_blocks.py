"""Assembles parts into blocks of equal size, in the order of the units or scattered at random.

`prepare` writes one part file per unit, with a record batch per split. Parts of a packed stream hold single
values, not samples: a sample may begin in one part and end in the next.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trainfleet.errors import InputError, Problem
from trainfleet.files import write_whole
from trainfleet.training.data.blocks import BlockEntry, read_batch, write_batches
from trainfleet.training.data.columns import Column, fixed
from trainfleet.training.data.worker_pool import cpus
from trainfleet.training.runtime import failpoints

_OPEN_PARTS = 64
MAX_BLOCKS, MAX_BLOCK_BYTES = 1 << 16, 32 << 20
"""From MAX_BLOCKS blocks on, blocks become larger, up to MAX_BLOCK_BYTES: each rank reads the whole manifest,
and holds a window of blocks.
"""


@dataclass(frozen=True)
class BlockLayout:
    """How samples are divided into blocks. `prepare` documents the fields."""

    columns: dict[str, Column]
    pack: int | None
    rows_per_block: int | None
    block_bytes: int
    scatter: int | None
    splits: tuple[str, ...]

    def block_columns(self) -> dict[str, Column]:
        """The columns as stored in blocks: for a packed stream, samples of `pack` + 1 values."""
        if self.pack is None:
            return self.columns
        return {name: Column(column.dtype, (self.pack + 1,)) for name, column in self.columns.items()}


@dataclass(frozen=True)
class WrittenBlocks:
    entries: dict[str, list[BlockEntry]]
    rows_per_block: int


def part_batch(
    columns: Mapping[str, Column], samples: Sequence[Mapping[str, Any]], stream: bool
) -> dict[str, Any]:
    """Arrow arrays of one split of a part; for a stream, the concatenated values of all samples."""
    if not stream:
        return {name: column.arrow([sample[name] for sample in samples]) for name, column in columns.items()}
    import pyarrow as pa

    name, column = next(iter(columns.items()))
    return {
        name: pa.array(np.concatenate([np.zeros(0, column.dtype), *(sample[name] for sample in samples)]))
    }


@dataclass(frozen=True)
class BlockPlan:
    """The samples of each block and of each split, and where each part begins in its split."""

    rows: int
    counts: dict[str, int]
    part_starts: dict[str, NDArray[np.int64]]


def plan_blocks(
    sizes: Sequence[Sequence[int]], layout: BlockLayout, part_bytes: Callable[[], int]
) -> BlockPlan:
    """Divide the samples into blocks.

    Args:
        sizes: by part and split, the number of samples (values, for a stream) in the part.
        layout: the kind of blocks.
        part_bytes: the size of all part files.

    Raises:
        InputError: a split has no sample.
    """
    part_starts = {
        split: np.concatenate(([0], np.cumsum([each[place] for each in sizes], dtype=np.int64)))
        for place, split in enumerate(layout.splits)
    }
    counts = {split: _samples(int(first[-1]), layout.pack) for split, first in part_starts.items()}
    if empty := [split for split in layout.splits if not counts[split]]:
        found = ", ".join(f"{split} {counts[split]}" for split in layout.splits)
        what = f"{', '.join(empty)}: less than one sample ({found})"
        raise InputError(
            "there is too little data",
            [Problem("", what, "add data, or change the split shares, the seed or the sample length")],
        )
    rows = layout.rows_per_block or _default_rows_per_block(part_bytes, layout, counts)
    return BlockPlan(rows, counts, part_starts)


def write_blocks(
    building: Path,
    sizes: Sequence[Sequence[int]],
    layout: BlockLayout,
    processes: int | None,
    progress: Callable[[str, int, int], Any],
) -> WrittenBlocks:
    """Write the blocks of all splits to a folder that holds the parts. Keeps existing blocks.

    Args:
        sizes: by part and split, the number of samples (values, for a stream) in the part.

    Raises:
        InputError: a split has no sample.
    """

    def part_bytes() -> int:
        return sum((building / f"part-{number:06}.arrow").stat().st_size for number in range(len(sizes)))

    plan = plan_blocks(sizes, layout, part_bytes)
    rows, counts = plan.rows, plan.counts
    parts = _Parts(building)
    # NOTE: one order per split: an order per block would take 8 bytes x samples x blocks of memory.
    orders = {
        split: scatter_order(counts[split], layout.scatter, place)
        for place, split in enumerate(layout.splits)
    }
    jobs = [
        Block(
            split, place, number, rows, counts[split], plan.part_starts[split], orders[split], layout, parts
        )
        for place, split in enumerate(layout.splits)
        for number in range(-(-counts[split] // rows))
    ]
    entries: dict[str, list[BlockEntry]] = {split: [] for split in layout.splits}
    with ThreadPoolExecutor(processes or cpus()) as pool:
        written = pool.map(lambda job: _write(building, job), jobs)
        for done, (job, entry) in enumerate(zip(jobs, written, strict=True), 1):
            entries[job.split].append(entry)
            failpoints.hit("in-assembly", done)
            progress("writing blocks", done, len(jobs))
    return WrittenBlocks(entries, rows)


def _write(building: Path, block: Block) -> BlockEntry:
    path = building / block.name
    note = path.with_suffix(".json")
    with contextlib.suppress(OSError, ValueError, TypeError):  # no complete block yet
        entry = BlockEntry(**json.loads(note.read_text()))
        if path.stat().st_size == entry.bytes:
            return entry
    payload = block.payload()
    entry = block.entry(payload)
    write_whole(path, payload)
    write_whole(note, json.dumps(entry.document()).encode())
    return entry


class PartFiles(Protocol):
    """Where blocks take their samples from."""

    def batch(self, number: int, split: int) -> Any:
        """The record batch of a split of a part."""
        ...


class _Parts:
    """Part files mapped into memory, a limited number at a time."""

    def __init__(self, building: Path) -> None:
        self._open = lru_cache(maxsize=_OPEN_PARTS)(
            lambda number: _mapped(building / f"part-{number:06}.arrow")
        )

    def batch(self, number: int, split: int) -> Any:
        return read_batch(self._open(number), split)


@dataclass(frozen=True)
class Block:
    """A block to write: which samples of which split, and the parts that hold them."""

    split: str
    place: int
    number: int
    rows: int
    count: int
    part_starts: NDArray[np.int64]
    scatter: NDArray[np.int64] | None
    layout: BlockLayout
    parts: PartFiles

    @property
    def name(self) -> str:
        return f"{self.split}/{self.number:05}.arrow"

    def entry(self, payload: Any) -> BlockEntry:
        first, end = self._samples()
        return BlockEntry.of(self.name, end - first, payload)

    def payload(self) -> Any:
        """The bytes of the block file."""
        first, end = self._samples()
        if self.layout.pack is not None:
            return write_batches(self._packed(first, end, self.layout.pack))
        if self.scatter is not None:
            return write_batches(self._scattered(self.scatter[first:end]))
        return write_batches(self._consecutive(first, end))

    def _samples(self) -> tuple[int, int]:
        return self.number * self.rows, min((self.number + 1) * self.rows, self.count)

    def _slices(self, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield the part number, start and stop within the part for samples `first` to `end`."""
        for part in range(
            int(np.searchsorted(self.part_starts, first, side="right")) - 1, len(self.part_starts) - 1
        ):
            start = int(self.part_starts[part])
            if start >= end:
                return
            if int(self.part_starts[part + 1]) > first:
                yield part, max(first - start, 0), min(end, int(self.part_starts[part + 1])) - start

    def _packed(self, first: int, end: int, length: int) -> dict[str, Any]:
        name = next(iter(self.layout.columns))
        pieces = [
            self.parts.batch(part, self.place).column(0).slice(start, stop - start).to_numpy()
            for part, start, stop in self._slices(first * length, end * length + 1)
        ]
        stream = np.concatenate(pieces)
        rows = np.lib.stride_tricks.sliding_window_view(stream, length + 1)[::length]
        return {name: fixed(rows)}

    def _consecutive(self, first: int, end: int) -> dict[str, Any]:
        return joined(
            [
                self.parts.batch(part, self.place).slice(start, stop - start)
                for part, start, stop in self._slices(first, end)
            ]
        )

    def _scattered(self, samples: NDArray[np.int64]) -> dict[str, Any]:
        """Samples from any parts: taken part by part, then put in order."""
        import pyarrow as pa

        ranked = np.argsort(samples, kind="stable")
        ordered = samples[ranked]
        parts = np.searchsorted(self.part_starts, ordered, side="right") - 1
        taken = [
            self.parts.batch(int(part), self.place).take(
                pa.array(ordered[parts == part] - self.part_starts[part])
            )
            for part in np.unique(parts)
        ]
        back = np.empty(len(ranked), dtype=np.int64)
        back[ranked] = np.arange(len(ranked))
        table = pa.Table.from_batches(taken).take(pa.array(back))
        return joined(table.to_batches())


def scattered(count: int, seed: int) -> NDArray[np.int64]:
    """A permutation of `count` independent of library versions: ranks of hashed numbers (splitmix64)."""
    with np.errstate(over="ignore"):
        x = (np.arange(count, dtype=np.uint64) + np.uint64(seed)) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    return np.argsort(x, kind="stable")


def scatter_order(count: int, seed: int | None, split: int) -> NDArray[np.int64] | None:
    """The sample at each position of a split, by its number."""
    return None if seed is None else scattered(count, (seed * 3 + split) << 20)


def _samples(values: int, pack: int | None) -> int:
    return values if pack is None else max(0, values - 1) // pack


def _default_rows_per_block(
    part_bytes: Callable[[], int], layout: BlockLayout, counts: Mapping[str, int]
) -> int:
    """Number of samples that take about as many bytes as a block has."""
    if layout.pack is not None:
        each = (layout.pack + 1) * np.dtype(next(iter(layout.columns.values())).dtype).itemsize
        total = each * sum(counts.values())
    else:
        total = part_bytes()
        each = max(1, total // max(1, sum(counts.values())))
    return int(max(1, block_bytes_for(total, layout.block_bytes) // each))


def block_bytes_for(total: int, block_bytes: int) -> int:
    """The size of a block, in bytes, for data of `total` bytes: `block_bytes`, or more for large data."""
    return max(block_bytes, min(MAX_BLOCK_BYTES, -(-total // MAX_BLOCKS)))


def joined(batches: list[Any]) -> dict[str, Any]:
    """Concatenated batches, one array per column. The empty batch forces a copy of a single slice."""
    import pyarrow as pa

    whole = pa.Table.from_batches([*batches, batches[0].slice(0, 0)]).combine_chunks().to_batches()[0]
    return dict(zip(whole.schema.names, whole.columns, strict=True))


def _mapped(path: Path) -> Any:
    import pyarrow as pa

    with pa.memory_map(os.fspath(path)) as file:
        return file.read_buffer()
