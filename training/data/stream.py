"""Reads block files: samples by index from memory-mapped blocks; prefetches blocks in the background.

    blocks = prepared.blocks("train", memory=256 << 20)
    blocks.prefetch(order.upcoming(position, count))    # before a step: returns at once
    batch = blocks.rows(order.indices(position, count)) # {"tokens": array [count, 129]}

Open mapped files count as this process's memory, so at most `memory` bytes of them stay open.
"""

from __future__ import annotations

import math
import mmap
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.training.data.blocks import MANIFEST, BlockEntry, Manifest, TornBlockError, read_batch
from trainfleet.training.data.columns import Ragged
from trainfleet.training.data.remote import BlockCache, filesystem, is_url, with_retries

MEMORY = 4 << 30
"""Enough for all blocks of data that is not streamed (`STREAM_FROM` in
`trainfleet.training.workloads.lm.text`).
"""
DISK = 64 << 30
_READERS = 2


class Rows:
    """Samples of one shape, contiguous in memory."""

    def __init__(self, values: NDArray[Any]) -> None:
        self.values = values
        self.raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        self.bytes = values.itemsize * math.prod(values.shape[1:])


Values = Rows | Ragged | list[Any]


class Blocks:
    """The samples of one split.

    Args:
        where: the prepared folder, or its URL.
        split: name of the split.
        manifest: the folder's manifest.
        memory: maximum bytes of open blocks; one call of `rows` may exceed it.
        cache: local folder for blocks of an object store.
        disk: maximum bytes in `cache`.
        checksums: verify each block's checksum when it is first opened.

    Attributes:
        size: number of samples.
        wait_seconds: seconds that `rows` has spent on blocks that were not open yet.
        opened: number of times that a block was opened.
    """

    def __init__(
        self,
        where: str,
        split: str,
        manifest: Manifest,
        *,
        memory: int = MEMORY,
        cache: Path | None = None,
        disk: int = DISK,
        checksums: bool = True,
    ) -> None:
        self.where, self.split, self.manifest = where, split, manifest
        self.memory, self.checksums = memory, checksums
        self.entries = manifest.splits[split]
        self.rows_per_block = manifest.rows_per_block
        self.size = manifest.rows(split)
        self.wait_seconds, self.opened = 0.0, 0
        if is_url(where) and cache is None:
            raise ValueError("blocks of an object store need a cache folder")
        self._cache = BlockCache(cache, disk) if is_url(where) and cache is not None else None
        self._open: OrderedDict[int, dict[str, Values]] = OrderedDict()
        self._bytes = 0
        self._checked: set[int] = set()
        self._loading: dict[int, threading.Event] = {}
        self._expected: list[int] = []
        self._last_request: Any = None
        self._lock = threading.Lock()
        self._readers: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return self.size

    def sizes(self) -> list[int]:
        """Samples per block, as `trainfleet.training.data.WindowOrder` takes them."""
        return [each.rows for each in self.entries]

    def rows(
        self,
        indices: Sequence[int] | NDArray[np.int64],
        dtype: Any = None,
        columns: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        """The samples at `indices`, in that order: per column an array [samples, ...], or a list if ragged.

        The result is a copy, because a block may be closed at any time.

        Args:
            indices: sample numbers in this split.
            dtype: type that columns of fixed shape are converted to; by default unchanged.
            columns: names of the columns to return; by default all.

        Raises:
            IndexError: an index is out of range.
            TrainfleetError: a block is torn or cannot be read.
        """
        chosen = indices if isinstance(indices, list) else np.asarray(indices).tolist()
        if not chosen or min(chosen) < 0 or max(chosen) >= self.size:
            raise IndexError(
                f"samples of the {self.split} split are numbered 0 to {self.size - 1}"
                if chosen
                else "no samples are requested"
            )
        rows = self.rows_per_block
        needed: dict[int, int] = {}
        pairs = [(needed.setdefault(index // rows, len(needed)), index % rows) for index in chosen]
        opened = [self._block(number, needed) for number in needed]
        if self._bytes > self.memory:
            with self._lock:
                self._evict(0, {})
        return {
            name: _collect([block[name] for block in opened], pairs, dtype)
            for name in columns or self.manifest.columns
        }

    def prefetch(self, indices: Sequence[int] | NDArray[np.int64]) -> None:
        """Open the blocks of these samples in the background, up to the memory limit; evicts others first."""
        if indices is self._last_request or len(self._open) == len(self.entries):
            return
        self._last_request = indices
        blocks = list(dict.fromkeys((np.asarray(indices, dtype=np.int64) // self.rows_per_block).tolist()))
        with self._lock:
            if blocks == self._expected:
                return
            self._expected = blocks
            todo, free = [], self.memory
            for number in blocks:
                free -= self.entries[number].bytes
                if free < 0:
                    break
                if number not in self._open and number not in self._loading:
                    todo.append(number)
            if todo and self._readers is None:
                self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix=f"blocks-{self.split}")
        for number in todo:
            assert self._readers is not None
            self._readers.submit(self._prefetch, number)

    def block(self, number: int) -> dict[str, Any]:
        """All samples of a block, without a copy. The block is closed with the last of its arrays."""
        return {
            name: values.values if isinstance(values, Rows) else values
            for name, values in self._read(number)[0].items()
        }

    def scan(self) -> Iterator[dict[str, Any]]:
        """All samples, a block at a time."""
        return map(self.block, range(len(self.entries)))

    def close(self) -> None:
        """Close all blocks and end the background threads."""
        if self._readers is not None:
            self._readers.shutdown(cancel_futures=True)
            self._readers = None
        with self._lock:
            self._open.clear()
            self._bytes = 0

    def _block(self, number: int, needed: dict[int, int]) -> dict[str, Values]:
        with self._lock:
            found = self._open.get(number)
            if found is not None:
                self._open.move_to_end(number)
                return found
        began = time.perf_counter()
        found = self._load(number, needed)
        self.wait_seconds += time.perf_counter() - began
        return found

    def _prefetch(self, number: int) -> None:
        with self._lock:
            if number not in self._expected:
                return
        try:
            self._load(number, {})
        except TrainfleetError:
            return  # `rows` raises it in the caller's thread

    def _load(self, number: int, needed: dict[int, int]) -> dict[str, Values]:
        """A block, read by this thread unless another one is reading it."""
        while True:
            with self._lock:
                if number in self._open:
                    return self._open[number]
                other = self._loading.get(number)
                if other is None:
                    mine = self._loading[number] = threading.Event()
                    break
            other.wait()
        try:
            block, size = self._read(number)
            with self._lock:
                self._evict(size, needed)
                self._open[number] = block
                self._bytes += size
                self.opened += 1
            return block
        finally:
            with self._lock:
                del self._loading[number]
            mine.set()

    def _evict(self, size: int, needed: dict[int, int]) -> None:
        """Close blocks, least recently used first: unexpected ones, then those expected last."""
        later = {number: place for place, number in enumerate(self._expected)}
        idle = [number for number in self._open if number not in later and number not in needed]
        expected = sorted(
            (number for number in self._open if number in later and number not in needed),
            key=lambda each: -later[each],
        )
        for number in [*idle, *expected]:
            if self._bytes + size <= self.memory:
                return
            del self._open[number]
            self._bytes -= self.entries[number].bytes

    def _read(self, number: int) -> tuple[dict[str, Values], int]:
        entry = self.entries[number]
        try:
            path = (
                self._cache.get(self.where, entry)
                if self._cache is not None
                else Path(self.where.removeprefix("file://")) / entry.name
            )
            buffer = _mapped(path)
            if self.checksums and number not in self._checked:
                entry.check(buffer)
                self._checked.add(number)
            elif len(buffer) != entry.bytes:
                raise TornBlockError(f"{entry.name} has {len(buffer)} bytes instead of {entry.bytes}")
            batch = read_batch(buffer)
            columns = {
                name: column.read(batch.column(name)) for name, column in self.manifest.columns.items()
            }
            return {
                name: Rows(each) if isinstance(each, np.ndarray) else each for name, each in columns.items()
            }, entry.bytes
        except (TornBlockError, OSError) as error:
            raise self._torn(entry, error) from error

    def _torn(self, entry: BlockEntry, error: Exception) -> TrainfleetError:
        what = getattr(error, "strerror", None) or str(error)
        fix = (
            "prepare the data again and upload it"
            if is_url(self.where)
            else "remove the folder; the next start prepares it again"
        )
        return TrainfleetError(
            "a block of the data cannot be used", [Problem(f"{self.where}/{entry.name}", what, fix)]
        )


def open_blocks(where: str, split: str, manifest: Manifest | None = None, **settings: Any) -> Blocks:
    """A split of a prepared folder or URL; `settings` are arguments of `Blocks`.

    Raises:
        InputError: there is no prepared data, or it has no such split.
    """
    manifest = manifest or read_manifest(where)
    if split not in manifest.splits:
        raise InputError(
            "unknown split",
            [Problem(split, f"{where} has {', '.join(manifest.splits)}", "use one of these")],
        )
    return Blocks(where, split, manifest, **settings)


def read_manifest(where: str) -> Manifest:
    """The manifest of a prepared folder or URL.

    Raises:
        InputError: there is none.
    """
    try:
        text = read_file(f"{where}/{MANIFEST}").decode("utf-8", "replace")
    except OSError as error:
        raise InputError(
            "there is no prepared data",
            [Problem(where, f"has no {MANIFEST}", "use a folder of a finished preparation")],
        ) from error
    return Manifest.parse(text, where)


def read_file(where: str) -> bytes:
    """The bytes of a local file or an object."""
    system, path = filesystem(where)

    def read() -> bytes:
        with system.open_input_file(path) as file:
            return bytes(file.read())

    return with_retries(read, where)


def _collect(blocks: list[Values], pairs: list[tuple[int, int]], dtype: Any) -> Any:
    """A column of samples from several blocks; `pairs` are an index into `blocks` and a row in that block.

    For a fixed shape, joining the rows' bytes takes half the time of filling an array row by row.
    """
    first = blocks[0]
    if isinstance(first, Rows):
        size, raw = first.bytes, [block.raw for block in blocks if isinstance(block, Rows)]
        joined = bytearray().join([raw[block][row * size : row * size + size] for block, row in pairs])
        found = np.frombuffer(joined, dtype=first.values.dtype).reshape(len(pairs), *first.values.shape[1:])
        return found if dtype is None else found.astype(dtype)
    if isinstance(first, Ragged):
        return [np.array(blocks[block][row]) for block, row in pairs]  # type: ignore[index]  # a column is of one kind in all blocks
    return [blocks[block][row] for block, row in pairs]  # type: ignore[index]  # the same


def _mapped(path: Path) -> Any:
    """A file's bytes, mapped; closed with the last array that views them."""
    import pyarrow as pa

    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise TornBlockError("is empty")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if hasattr(mmap, "MADV_WILLNEED"):
        mapped.madvise(mmap.MADV_WILLNEED)
    return pa.py_buffer(mapped)
