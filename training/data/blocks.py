"""Block files and their manifest: the format of prepared data on disk and in object stores.

A prepared folder holds `manifest.json`, `sources.jsonl` (the raw files) and, per split, `SPLIT/00000.arrow`
and so on: Arrow IPC files of one record batch each, which can be mapped into memory, with the same number of
samples in each but the last. The manifest is written last: a folder without it is not prepared data, a folder
with it is complete.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.training.data.columns import Column, columns_of

MANIFEST = "manifest.json"
SOURCES = "sources.jsonl"
"""A line per raw file: name, bytes, sha256. Apart from the manifest, because every rank reads that."""
BLOCK_FORMAT = 1
"""Increment when the meaning of the blocks changes. Part of the cache key, and of the digest that a resumed
run compares.
"""
FORMAT = 2
READABLE = (1, FORMAT)
"""Of the manifest. Format 1 has the raw files in it."""


class TornBlockError(Exception):
    """Raised when a block does not match the manifest: truncated, changed or missing."""


@dataclass(frozen=True, slots=True)  # each rank holds those of all blocks
class BlockEntry:
    """A block file: `name` relative to the folder, number of samples and bytes, and checksums."""

    name: str
    rows: int
    bytes: int
    sha256: str
    crc32: int

    @classmethod
    def of(cls, name: str, rows: int, payload: Any) -> BlockEntry:
        return cls(name, rows, len(payload), hashlib.sha256(payload).hexdigest(), zlib.crc32(payload))

    def document(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def check(self, payload: Any, thorough: bool = False) -> None:
        """Compare bytes with this entry, by sha256 if `thorough`, else by crc32.

        Raises:
            TornBlockError: the bytes differ from those written.
        """
        if len(payload) != self.bytes:
            raise TornBlockError(f"{self.name} has {len(payload)} bytes instead of {self.bytes}")
        same = (
            hashlib.sha256(payload).hexdigest() == self.sha256
            if thorough
            else zlib.crc32(payload) == self.crc32
        )
        if not same:
            raise TornBlockError(f"{self.name} has another checksum than when it was written")


@dataclass(frozen=True)
class Manifest:
    """The contents of a prepared folder.

    Attributes:
        columns: of every sample, by name.
        rows_per_block: of every block but the last of a split.
        splits: the blocks of each split, in order.
        source_files: number of raw files.
        settings: the settings that the data was prepared with.
        bad: files and rows that were skipped (`trainfleet.training.data.bad_rows`).
        notes: values that the workload stores with the data.
        extras: sha256 of each further file of the folder, by name.
    """

    columns: dict[str, Column]
    rows_per_block: int
    splits: dict[str, list[BlockEntry]]
    source_files: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    bad: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    extras: dict[str, str] = field(default_factory=dict)

    def rows(self, split: str) -> int:
        return sum(each.rows for each in self.splits[split])

    def bytes(self) -> int:
        return sum(each.bytes for blocks in self.splits.values() for each in blocks)

    def digest(self) -> str:
        """Identifies the samples and their order, independent of their sources."""
        blocks = {split: [each.sha256 for each in entries] for split, entries in sorted(self.splits.items())}
        identity = json.dumps([BLOCK_FORMAT, blocks, self.extras], sort_keys=True)
        return hashlib.sha256(identity.encode()).hexdigest()

    def dump(self) -> str:
        document = {
            "format": FORMAT,
            "digest": self.digest(),
            "rows": {split: self.rows(split) for split in self.splits},
            "bytes": self.bytes(),
            "columns": {name: column.document() for name, column in self.columns.items()},
            "rows_per_block": self.rows_per_block,
            "splits": {split: [each.document() for each in blocks] for split, blocks in self.splits.items()},
            "bad": self.bad,
            "settings": self.settings,
            "notes": self.notes,
            "extras": self.extras,
            "source_files": self.source_files,
        }
        return json.dumps(document, indent=1)

    @classmethod
    def parse(cls, text: str, where: str) -> Manifest:
        """Inverse of `dump`.

        Raises:
            InputError: the text is not a manifest, or has another format version.
        """
        try:
            document = json.loads(text)
            if document["format"] not in READABLE:
                known = " or ".join(map(str, READABLE))
                raise InputError(
                    "prepared data of another version",
                    [Problem(where, f"is format {document['format']}, not {known}", "prepare it again")],
                )
            return cls(
                columns_of(document["columns"]),
                int(document["rows_per_block"]),
                {
                    split: [BlockEntry(**each) for each in blocks]
                    for split, blocks in document["splits"].items()
                },
                len(document["sources"]) if document["format"] == 1 else int(document["source_files"]),
                document["settings"],
                document["bad"],
                document["notes"],
                document["extras"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                "not prepared data",
                [Problem(where, "is not a manifest of prepared data, or is truncated", "prepare it again")],
            ) from error


def write_batches(columns: Mapping[str, Any], *more: Mapping[str, Any]) -> Any:
    """Arrow arrays by name as the bytes of an IPC file, one record batch per mapping given."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    batches = [pa.record_batch(list(each.values()), names=list(each)) for each in (columns, *more)]
    with pa.ipc.new_file(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def read_batch(buffer: Any, number: int = 0) -> Any:
    """A record batch that views the bytes of an IPC file.

    Raises:
        TornBlockError: the bytes are not an IPC file.
    """
    import pyarrow as pa

    try:
        return pa.ipc.open_file(pa.BufferReader(buffer)).get_batch(number)
    except (pa.ArrowInvalid, OSError) as error:
        raise TornBlockError("is not a block file, or is truncated") from error
