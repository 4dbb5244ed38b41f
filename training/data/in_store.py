"""Prepares data in a store: tasks on any machine write the parts and the blocks; no machine holds the data.

1. A task per unit writes its part and the part's report below a folder of working files.
2. The sizes in the reports give every sample its place. A task per `RANGE` consecutive blocks reads the parts
   that hold its samples, writes the blocks, then a note with their entries, which it returns. Where samples
   are scattered, tasks first divide them among the ranges (`partition`).
3. `prepare` writes the other files, the manifest last, and removes the working files.

The place of a sample depends on the sizes alone, so blocks and manifest have the bytes that one machine
writes, with any number of tasks. Objects appear whole, and a task that runs again writes the same ones. A
preparation that was killed continues with the parts that have a report and the ranges that have a note. A
task holds a part, or a block and a few parts, in memory, and nothing on disk; of scattered samples, those of
a range, or a group of parts.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.training.data import partition
from trainfleet.training.data.blocks import BlockEntry, read_batch, write_batches
from trainfleet.training.data.pack_blocks import (
    Block,
    BlockLayout,
    BlockPlan,
    WrittenBlocks,
    plan_blocks,
    scatter_order,
)
from trainfleet.training.data.parts import Job, make_part
from trainfleet.training.data.remote import filesystem, is_url, send, with_retries
from trainfleet.training.data.sources import Source, Unit
from trainfleet.training.data.stream import read_file
from trainfleet.training.data.worker_pool import Via, map_unordered
from trainfleet.training.runtime import failpoints

RANGE = 16
"""Blocks of a task: it reads a part at the edge of its range for one or two blocks only."""
_OPEN_PARTS = 4
_READERS = 32

Progress = Callable[[str, int, int], Any]


def absolute(where: str) -> str:
    """A folder as an absolute path, because tasks have other working folders; a URL as it is."""
    return where.rstrip("/") if "://" in where else str(Path(where).absolute())


_URL: ContextVar[str | None] = ContextVar("the URL of `trainfleet data --to`", default=None)


@contextlib.contextmanager
def writing_to(where: str | None) -> Iterator[str | None]:
    """Offer a folder or URL, as `absolute` writes it, to the first preparation in this context that tasks of
    a cluster do.
    """
    where = None if where is None else absolute(where)
    token = _URL.set(where)
    try:
        yield where
    finally:
        _URL.reset(token)


def take_offer() -> str | None:
    """The target that `writing_to` offers, once: it holds one data set."""
    where = _URL.get()
    _URL.set(None)
    return where


@dataclass(frozen=True)
class Target:
    """Where a data set goes.

    Attributes:
        where: folder or URL of its blocks and manifest.
        key: of what is prepared there, so that another preparation finds no files of this one.
    """

    where: str
    key: str

    @property
    def work(self) -> str:
        """Folder or URL of parts, reports and notes."""
        return f"{self.where}/.building-{self.key}"


@dataclass(frozen=True)
class Parts:
    """The reports of all parts in unit order, and the lines about their raw files."""

    reports: list[dict[str, Any]]
    sources: bytes
    source_files: int


def make_parts(
    source: Source, job: Job, target: Target, *, via: Via, processes: int | None, progress: Progress
) -> Parts:
    """Make the parts that the store lacks.

    Args:
        source: the raw data.
        job: what turns a unit into a part.
        target: of the prepared data.
        via, processes: as `map_unordered` takes them.
        progress: receives progress reports.
    """
    work, total = target.work, len(source.units)
    reports: dict[int, dict[str, Any]] = {}
    places: dict[int, tuple[int, int]] = {}
    with tempfile.TemporaryFile() as lines:

        def keep(number: int, report: dict[str, Any]) -> None:
            text = "".join(json.dumps(each) + "\n" for each in report["sources"]).encode()
            places[number] = (lines.tell(), len(text))
            lines.write(text)
            files = len(report["sources"])
            reports[number] = {key: each for key, each in report.items() if key != "sources"} | {
                "files": files
            }

        made = [number for number in _made(work) if number < total]
        with ThreadPoolExecutor(_READERS) as pool:
            found = pool.map(lambda each: read_file(_report(work, each)), made)
            for number, content in zip(made, found, strict=True):
                keep(number, json.loads(content))
        items = [(number, unit) for number, unit in enumerate(source.units) if number not in reports]
        for place, report in map_unordered(
            partial(_make_part, job, work),
            items,
            via,
            processes,
            local=not (is_url(source.where) and is_url(target.where)),
        ):
            keep(items[place][0], report)
            failpoints.hit("in-preparation", len(reports))
            progress("reading", len(reports), total)
        ordered = []
        for number in range(total):
            start, length = places[number]
            lines.seek(start)
            ordered.append(lines.read(length))
    in_order = [reports[number] for number in range(total)]
    return Parts(in_order, b"".join(ordered), sum(each["files"] for each in in_order))


def write_blocks(
    parts: Parts, layout: BlockLayout, target: Target, *, via: Via, processes: int | None, progress: Progress
) -> WrittenBlocks:
    """Write the blocks of all splits that the store lacks.

    Args:
        parts: as `make_parts` returned them.
        layout: how samples are divided into blocks.
        target: of the prepared data.
        via, processes: as `map_unordered` takes them.
        progress: receives progress reports.

    Raises:
        InputError: a split has no sample.
    """
    sizes = [each["sizes"] for each in parts.reports]
    plan = plan_blocks(sizes, layout, lambda: sum(each["bytes"] for each in parts.reports))
    local = not is_url(target.where)
    tasks: list[_Range] | list[_ScatteredRange]
    if layout.scatter is None or layout.pack is not None:
        tasks = [
            each
            for place, split in enumerate(layout.splits)
            for each in _ranges(plan, split, place, layout.pack)
        ]
    else:
        tasks = _divide(parts, layout, plan, target, via=via, processes=processes, progress=progress)
    entries: dict[tuple[str, int], list[BlockEntry]] = {}
    done, total = 0, sum(each.end - each.first for each in tasks)
    work = partial(_write_range, layout, target)
    for number, written in map_unordered(work, tasks, via, processes, local=local):
        entries[tasks[number].split, tasks[number].first] = written
        done += len(written)
        failpoints.hit("in-assembly", len(entries))
        progress("writing blocks", done, total)
    by_split = {
        split: [entry for each in tasks if each.split == split for entry in entries[each.split, each.first]]
        for split in layout.splits
    }
    return WrittenBlocks(by_split, plan.rows)


def _divide(
    parts: Parts,
    layout: BlockLayout,
    plan: BlockPlan,
    target: Target,
    *,
    via: Via,
    processes: int | None,
    progress: Progress,
) -> list[_ScatteredRange]:
    """Store the samples of all parts by range; returns the ranges.

    NOTE: holds 16 bytes per sample of the data, and once more as the arguments of tasks.
    """
    splits = layout.splits
    found = [scatter_order(plan.counts[split], layout.scatter, place) for place, split in enumerate(splits)]
    orders = [order for order in found if order is not None]  # all of them: the data is scattered
    groups = partition.groups([each["bytes"] for each in parts.reports], plan, orders, splits)
    ranges = partition.Ranges.of(plan, splits, RANGE)
    work = partial(partition.write_group, ranges, target.work)
    written = map_unordered(work, groups, via, processes, local=not is_url(target.where))
    for done, _ in enumerate(written, 1):
        progress("scattering", done, len(groups))
    edges = [*(group.parts.start for group in groups), len(parts.reports)]
    return [
        _ScatteredRange(
            split,
            first,
            min(first + RANGE, -(-plan.counts[split] // plan.rows)),
            plan.rows,
            ranges.number(place, first // RANGE),
            order[first * plan.rows : (first + RANGE) * plan.rows],
            plan.part_starts[split][edges],
        )
        for (place, split), order in zip(enumerate(splits), orders, strict=True)
        for first in range(0, -(-plan.counts[split] // plan.rows), RANGE)
    ]


def discard(target: Target) -> None:
    """Remove parts, reports and notes.

    Raises:
        TrainfleetError: they cannot be removed.
    """
    from pyarrow import fs

    system, path = filesystem(target.work)

    def remove() -> None:
        if system.get_file_info(path).type == fs.FileType.Directory:
            system.delete_dir(path)

    try:
        with_retries(remove, target.where)
    except OSError as error:
        fix = "check the permissions; the data is complete without it if it has a manifest"
        raise TrainfleetError(
            "cannot remove the parts of the prepared data",
            [Problem(target.work, error.strerror or str(error), fix)],
        ) from error


@dataclass(frozen=True)
class _Range:
    """Blocks `first` to `end` of a split, and where its parts from `first_part` on begin."""

    split: str
    place: int
    first: int
    end: int
    rows: int
    count: int
    first_part: int
    part_starts: NDArray[np.int64]

    def payloads(self, layout: BlockLayout, work: str) -> Iterator[tuple[int, Any]]:
        """The number of samples and the bytes of each block, in order."""
        parts = _StoredParts(work, self.first_part)
        for number in range(self.first, self.end):
            block = Block(
                self.split, self.place, number, self.rows, self.count, self.part_starts, None, layout, parts
            )
            yield min(self.rows, self.count - number * self.rows), block.payload()


@dataclass(frozen=True)
class _ScatteredRange:
    """Blocks `first` to `end` of a split, the `number` of the range among all, its samples by position, and
    the split's first sample of each group of parts.
    """

    split: str
    first: int
    end: int
    rows: int
    number: int
    samples: NDArray[np.int64]
    group_starts: NDArray[np.int64]

    def payloads(self, _: BlockLayout, work: str) -> Iterator[tuple[int, Any]]:
        """The number of samples and the bytes of each block, in order."""
        own = partition.gather(work, self.number, self.samples, self.group_starts)
        for first in range(0, len(self.samples), self.rows):
            end = min(first + self.rows, len(self.samples))
            yield end - first, write_batches(own.block(first, end))


def _ranges(plan: BlockPlan, split: str, place: int, pack: int | None) -> Iterator[_Range]:
    rows, count, starts = plan.rows, plan.counts[split], plan.part_starts[split]
    blocks, values = -(-count // rows), pack or 1
    for first in range(0, blocks, RANGE):
        end = min(first + RANGE, blocks)
        begin = first * rows * values
        beyond = min(end * rows, count) * values + (pack is not None)
        low = int(np.searchsorted(starts, begin, side="right")) - 1
        high = int(np.searchsorted(starts, beyond, side="left"))
        yield _Range(split, place, first, end, rows, count, low, starts[low : high + 1].copy())


def _make_part(job: Job, work: str, item: tuple[int, Unit]) -> dict[str, Any]:
    number, unit = item
    payload, report = make_part(job, unit)
    report["bytes"] = len(payload)
    send(payload, _part(work, number))
    send(json.dumps(report).encode(), _report(work, number))
    return report


def _write_range(layout: BlockLayout, target: Target, item: _Range | _ScatteredRange) -> list[BlockEntry]:
    note = f"{target.work}/{item.split}-{item.first:05}.json"
    if (found := _noted(target, note)) is not None:
        return found
    entries = []
    for number, (rows, payload) in enumerate(item.payloads(layout, target.work), item.first):
        entries.append(BlockEntry.of(f"{item.split}/{number:05}.arrow", rows, payload))
        send(payload, f"{target.where}/{entries[-1].name}")
    send(json.dumps([each.document() for each in entries]).encode(), note)
    return entries


def _noted(target: Target, note: str) -> list[BlockEntry] | None:
    """The entries of a range whose blocks are all in the store."""
    system, path = filesystem(note)
    if not with_retries(lambda: system.get_file_info(path), note).is_file:
        return None
    entries = [BlockEntry(**each) for each in json.loads(read_file(note))]
    names = [filesystem(f"{target.where}/{each.name}")[1] for each in entries]
    found = with_retries(lambda: system.get_file_info(names), target.where)
    whole = all(info.is_file and info.size == each.bytes for info, each in zip(found, entries, strict=True))
    return entries if whole else None


class _StoredParts:
    """Parts read from the store, numbered from the first one of a range."""

    def __init__(self, work: str, first: int) -> None:
        self._read = lru_cache(maxsize=_OPEN_PARTS)(lambda number: read_file(_part(work, first + number)))

    def batch(self, number: int, split: int) -> Any:
        return read_batch(self._read(number), split)


def _made(work: str) -> Sequence[int]:
    """Numbers of the parts that have a report."""
    from pyarrow import fs

    system, path = filesystem(work)
    selector = fs.FileSelector(path, allow_not_found=True)
    names = [each.base_name for each in with_retries(lambda: system.get_file_info(selector), work)]
    return sorted(
        int(name[len("part-") : -len(".json")])
        for name in names
        if name.startswith("part-") and name.endswith(".json")
    )


def _part(work: str, number: int) -> str:
    return f"{work}/part-{number:06}.arrow"


def _report(work: str, number: int) -> str:
    return f"{work}/part-{number:06}.json"
