"""Divides scattered samples among ranges of blocks, so that the task of a range reads only its own.

A task takes a group of consecutive parts. For each range it stores the samples of these parts that belong
there, in the order of the range: one after another in `group-00000.bin`, with their offsets in
`group-00000.idx`, which is written last. A range then reads its piece of each group: requests grow with the
product of the two numbers, the bytes that are read do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainfleet.training.data.blocks import read_batch, write_batches
from trainfleet.training.data.pack_blocks import BlockPlan, joined
from trainfleet.training.data.remote import filesystem, send, with_retries
from trainfleet.training.data.stream import read_file

GROUP_BYTES = 256 << 20
"""Of parts that a task holds in memory, twice."""
_READERS = 16
_OFFSET = np.dtype("<i8")


@dataclass(frozen=True)
class Group:
    """Consecutive parts, and by split the positions to which their samples go."""

    number: int
    parts: range
    positions: tuple[NDArray[np.int64], ...]


@dataclass(frozen=True)
class Ranges:
    """The bounds of all ranges of blocks, in positions: by split, the first position of each range."""

    bounds: tuple[NDArray[np.int64], ...]

    @classmethod
    def of(cls, plan: BlockPlan, splits: Sequence[str], blocks_each: int) -> Ranges:
        return cls(tuple(np.arange(0, plan.counts[split], blocks_each * plan.rows) for split in splits))

    def number(self, split: int, place: int) -> int:
        """The number among all ranges of one of a split."""
        return sum(len(each) for each in self.bounds[:split]) + place


def groups(
    sizes: Sequence[int], plan: BlockPlan, orders: Sequence[NDArray[np.int64]], splits: Sequence[str]
) -> list[Group]:
    """Groups of parts of about `GROUP_BYTES`.

    Args:
        sizes: bytes of each part.
        plan: of the blocks.
        orders: by split, the sample at each position.
        splits: names of the splits.
    """
    positions = []
    for order in orders:
        places = np.empty(len(order), dtype=np.int64)
        places[order] = np.arange(len(order))
        positions.append(places)
    found: list[Group] = []
    first, total = 0, 0
    for part, size in enumerate(sizes, 1):
        total += size
        if total < GROUP_BYTES and part < len(sizes):
            continue
        own = tuple(
            places[plan.part_starts[split][first] : plan.part_starts[split][part]]
            for split, places in zip(splits, positions, strict=True)
        )
        found.append(Group(len(found), range(first, part), own))
        first, total = part, 0
    return found


def write_group(ranges: Ranges, work: str, group: Group) -> None:
    """Store the samples of a group by range; does nothing if they are stored."""
    index = f"{_name(work, group.number)}.idx"
    system, path = filesystem(index)
    if with_retries(lambda: system.get_file_info(path), index).is_file:
        return
    parts = [read_file(f"{work}/part-{part:06}.arrow") for part in group.parts]
    pieces = [
        piece
        for split, bounds in enumerate(ranges.bounds)
        for piece in _pieces([read_batch(part, split) for part in parts], group.positions[split], bounds)
    ]
    send(b"".join(pieces), f"{_name(work, group.number)}.bin")
    offsets = np.concatenate(([0], np.cumsum([len(each) for each in pieces], dtype=np.int64)))
    send(offsets.astype(_OFFSET).tobytes(), index)


def _pieces(
    batches: list[Any], positions: NDArray[np.int64], bounds: NDArray[np.int64]
) -> Iterator[memoryview]:
    """The samples of each range as the bytes of an IPC file; no bytes where there are none."""
    import pyarrow as pa

    order = np.argsort(positions, kind="stable")
    table = pa.Table.from_batches(batches).take(pa.array(order))
    edges = [*np.searchsorted(positions[order], bounds).tolist(), len(order)]
    for start, end in pairwise(edges):
        piece = table.slice(start, end - start).to_batches()
        yield memoryview(write_batches(joined(piece))) if end > start else memoryview(b"")


@dataclass(frozen=True)
class RangeSamples:
    """The samples of a range in the order of the groups, and the place of each position's sample there."""

    table: Any
    places: NDArray[np.int64]

    def block(self, first: int, end: int) -> dict[str, Any]:
        """The columns of positions `first` to `end`, counted from the range's start."""
        import pyarrow as pa

        return joined(self.table.take(pa.array(self.places[first:end])).to_batches())


def gather(
    work: str, number: int, samples: NDArray[np.int64], group_starts: NDArray[np.int64]
) -> RangeSamples:
    """Read the samples of a range.

    Args:
        work: folder or URL of the working files.
        number: of the range, among all.
        samples: the sample at each position.
        group_starts: the split's first sample of each group, and the number of all.
    """
    import pyarrow as pa

    group = np.searchsorted(group_starts, samples, side="right") - 1
    ranked = np.argsort(group, kind="stable")
    places = np.empty(len(ranked), dtype=np.int64)
    places[ranked] = np.arange(len(ranked))
    with ThreadPoolExecutor(_READERS) as pool:
        needed = np.unique(group).tolist()
        batches = list(pool.map(lambda each: read_batch(_piece(work, each, number)), needed))
    return RangeSamples(pa.Table.from_batches(batches), places)


def _piece(work: str, group: int, number: int) -> bytes:
    name = _name(work, group)
    width = _OFFSET.itemsize
    start, end = np.frombuffer(_read(f"{name}.idx", number * width, 2 * width), _OFFSET).tolist()
    return _read(f"{name}.bin", start, end - start)


def _read(where: str, start: int, size: int) -> bytes:
    system, path = filesystem(where)

    def read() -> bytes:
        with system.open_input_file(path) as file:
            return bytes(file.read_at(size, start))

    return with_retries(read, where)


def _name(work: str, group: int) -> str:
    return f"{work}/group-{group:05}"
