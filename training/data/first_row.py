"""Reads the first row of a run's data, before the run has machines: a missing folder, permission or column is
found in seconds.

The listing is that of the run. Of the files only the beginning of the first one is read, at most 1 MiB of
text and one row group of a table; nothing is prepared.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from trainfleet.errors import InputError, Problem
from trainfleet.training.data import readers
from trainfleet.training.data.bad_rows import BadInput
from trainfleet.training.data.prepared import is_prepared, open_prepared
from trainfleet.training.data.remote import filesystem, listing, with_retries
from trainfleet.training.data.sources import HUB, Piece, Unit, kind_of, rows_of
from trainfleet.training.workloads.settings import RawData

LIMIT = 1 << 20
SPLITS = ("train", "validation")


def check_first_row(data: RawData) -> None:
    """Read the first row of raw data, or of each split of prepared data.

    A dataset of a hub is not read: that would download a part of it.

    Raises:
        InputError: there is no data, it may not be read, or its first row is not usable.
        TrainfleetError: the object store does not respond.
    """
    if data.where.startswith(HUB) or readers.is_saved_dataset(data.where):
        return
    try:
        if is_prepared(data.where):
            _read_prepared(data.where)
            return
        problem = _file_problem(data)
    except InputError as error:
        problems = [Problem(f"{data.key} {each.where}", each.what, each.fix) for each in error.problems]
        raise InputError(error.summary, problems) from error
    except OSError as error:
        problem = (data.where, error.strerror or str(error))
    if problem is not None:
        raise InputError("the run could not read its data", [Problem(f"{data.key} {problem[0]}", problem[1])])


def _read_prepared(where: str) -> None:
    """Read a row of each split. Preparation rejects a split without rows."""
    with tempfile.TemporaryDirectory(prefix="trainfleet-first-row-") as cache:
        blocks = open_prepared(where).splits(Path(cache), disk=LIMIT)
        for split in SPLITS:
            blocks[split].rows([0])


def _file_problem(data: RawData) -> tuple[str, str] | None:
    """What is wrong with the first file that is not empty."""
    files = [each for each in listing(data.where, data.glob) if each.size]
    if not files:
        return data.where, "every file is empty"
    first = files[0]
    system, _ = filesystem(data.where)
    piece = Piece(first.name, first.path, kind_of(first.name), first.size)
    if piece.kind in ("audio", "image", "text"):
        with with_retries(lambda: system.open_input_stream(first.path), data.where) as stream:
            stream.read(min(first.size, LIMIT))
        return None
    if piece.kind == "jsonl":
        piece = replace(piece, end=min(first.size, LIMIT))
    elif groups := readers.row_groups(system, first.path, first.size, 1):
        piece = replace(piece, start=groups[0][0], end=groups[0][1])
    row = next(iter(rows_of(Unit(data.where, (piece,), data.columns))), None)
    if isinstance(row, BadInput) and data.strict:
        return row.where, row.what
    return None
