"""Raw data: lists the files, groups them into units of a few megabytes, and reads the rows of a unit.

Kinds: text (a file is a document), parquet, JSON lines, audio (soundfile), images (PIL) and Hugging Face
datasets, from a folder, a file or an object store's URL.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal

from trainfleet.training.data import readers
from trainfleet.training.data.bad_rows import BadInput
from trainfleet.training.data.remote import FileInfo, filesystem, listing, sha256_of

Kind = Literal["text", "parquet", "jsonl", "audio", "image", "hf"]
Row = dict[str, Any]
"""A raw row: `name`, and by kind `text` (bytes) and `last`, or a table's columns, or `audio`, `rate` and
`text`, or `image` and `label`. Names are stable, because a name decides the row's split.
"""
UNIT_BYTES = 16 << 20
HUB = "hf:"
_SUFFIXES: dict[str, Kind] = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    **dict.fromkeys((".wav", ".flac", ".ogg", ".mp3"), "audio"),
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"), "image"),
}


@dataclass(frozen=True)
class Piece:
    """A file, or its range `start` to `end`: bytes (text, JSON lines), row groups (parquet) or rows
    (datasets).
    """

    name: str
    path: str
    kind: Kind
    size: int
    start: int = 0
    end: int = -1


@dataclass(frozen=True)
class Unit:
    """The files or ranges that one process reads at a time."""

    where: str
    pieces: tuple[Piece, ...]
    columns: tuple[str, ...] = ()
    allow_empty: bool = False

    @property
    def size(self) -> int:
        return sum(each.size for each in self.pieces)


@dataclass(frozen=True)
class Source:
    """A listing of raw data.

    Attributes:
        where: the folder, file or URL.
        units: in row order. They follow from the listing alone, so any number of processes makes the same
            blocks.
        key: identifies the files by name, size and modification time.
    """

    where: str
    units: tuple[Unit, ...]
    key: str
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(each.size for each in self.units)


def find_source(
    where: str,
    glob: str = "**/*",
    *,
    kind: Kind | None = None,
    columns: Sequence[str] = (),
    keep: Callable[[str], bool] | None = None,
    allow_empty: bool = False,
    unit_bytes: int = UNIT_BYTES,
) -> Source:
    """List raw data.

    Args:
        where: a folder, a file, a URL, a folder of `datasets.save_to_disk`, or `hf:NAME` for a dataset.
        glob: selects files of a folder.
        kind: kind of the files; by default inferred from the suffix, else text.
        columns: required columns of tables and datasets; all by default. A file without them is a bad
            input.
        keep: further filter by the name relative to the folder.
        allow_empty: accept files of zero bytes as empty documents.
        unit_bytes: approximate size of a unit.

    Raises:
        InputError: no file matches.
    """
    if kind == "hf" or where.startswith(HUB) or readers.is_saved_dataset(where):
        parts, key = readers.dataset_parts(where, unit_bytes)
        pieces = [
            Piece(f"{where}/{split}", split, "hf", size, start, end) for split, start, end, size in parts
        ]
        return Source(where, _group(where, pieces, tuple(columns), allow_empty, unit_bytes), key)
    files = [each for each in listing(where, glob) if keep is None or keep(each.name)]
    pieces = [piece for file in files for piece in _cut(where, file, kind or kind_of(file.name), unit_bytes)]
    listed = [[each.name, each.size, each.mtime_ns] for each in files]
    key = hashlib.sha256(
        json.dumps([where, kind, list(columns), allow_empty, unit_bytes, listed]).encode()
    ).hexdigest()
    return Source(where, _group(where, pieces, tuple(columns), allow_empty, unit_bytes), key)


def rows_of(unit: Unit) -> Iterator[Row | BadInput]:
    """The rows of a unit in order; yields `BadInput` for what cannot be read."""
    system = None if unit.pieces[0].kind == "hf" else filesystem(unit.where)[0]
    for piece in unit.pieces:
        if piece.size == 0 and not (unit.allow_empty and piece.kind == "text"):
            yield BadInput(piece.name, "is empty")
            continue
        try:
            yield from _read(unit, piece, system)
        except readers.UnreadableError as error:
            yield BadInput(piece.name, str(error))


def provenance(unit: Unit) -> list[dict[str, Any]]:
    """Name, size and sha256 of the files that start in this unit."""
    found = []
    for piece in unit.pieces:
        if piece.kind == "hf" or piece.start:
            continue
        system = filesystem(unit.where)[0]
        try:
            with system.open_input_stream(piece.path) as stream:
                found.append(
                    {
                        "name": piece.name,
                        "bytes": system.get_file_info(piece.path).size,
                        "sha256": sha256_of(stream),
                    }
                )
        except OSError as error:
            found.append(
                {"name": piece.name, "bytes": piece.size, "sha256": f"unreadable: {error.strerror or error}"}
            )
    return found


def _read(unit: Unit, piece: Piece, system: Any) -> Iterator[Row | BadInput]:
    match piece.kind:
        case "text":
            yield from readers.text(system, piece.path, piece.name, piece.start, piece.end)
        case "jsonl":
            yield from readers.json_lines(
                system, piece.path, piece.name, piece.start, piece.end, columns=unit.columns
            )
        case "parquet":
            yield from readers.parquet(
                system, piece.path, piece.name, piece.start, piece.end, columns=unit.columns
            )
        case "audio":
            yield readers.audio(system, piece.path, piece.name)
        case "image":
            yield readers.image(system, piece.path, piece.name)
        case "hf":
            yield from readers.dataset(unit.where, piece.path, piece.start, piece.end, unit.columns)


def kind_of(name: str) -> Kind:
    """The kind of a file by its suffix."""
    return _SUFFIXES.get(PurePosixPath(name).suffix.lower(), "text")


def _cut(where: str, file: FileInfo, kind: Kind, unit_bytes: int) -> Iterator[Piece]:
    """Split large files: text and JSON lines by bytes, parquet by row groups."""
    if file.size <= 2 * unit_bytes or kind in ("audio", "image"):
        yield Piece(file.name, file.path, kind, file.size)
    elif kind == "parquet":
        for start, end, size in readers.row_groups(filesystem(where)[0], file.path, file.size, unit_bytes):
            yield Piece(file.name, file.path, kind, size, start, end)
    else:
        for start in range(0, file.size, unit_bytes):
            end = min(start + unit_bytes, file.size)
            yield Piece(file.name, file.path, kind, end - start, start, end)


def _group(
    where: str, pieces: list[Piece], columns: tuple[str, ...], allow_empty: bool, unit_bytes: int
) -> tuple[Unit, ...]:
    units: list[Unit] = []
    waiting: list[Piece] = []
    for place, piece in enumerate(pieces):
        waiting.append(piece)
        if (
            sum(each.size for each in waiting) >= unit_bytes
            or len(waiting) >= 4096
            or place == len(pieces) - 1
        ):
            units.append(Unit(where, tuple(waiting), columns, allow_empty))
            waiting = []
    return tuple(units)
