"""Prepared data into an object store (or another folder), so that many machines read the same blocks without
preparing them.

Used by `trainfleet data`. Easy to get wrong: the manifest goes last, so what was half sent is no data.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.training.data.blocks import MANIFEST
from trainfleet.training.data.prepare import Prepared, open_prepared
from trainfleet.training.data.remote import filesystem, patiently


def upload(data: Prepared, to: str, progress: Callable[[str, int, int], Any] = lambda *_: None) -> Prepared:
    """Copy a prepared folder of this machine; where it is there already, nothing is done.

    Raises:
        InputError: other prepared data lies there.
        TrainfleetError: it cannot be written.
    """
    try:
        there = open_prepared(to)
    except InputError:
        there = None
    if there is not None:
        if there.manifest.digest() == data.manifest.digest():
            return there
        raise InputError(
            "other prepared data lies there",
            [Problem(to, "is not the same as what the recipe asks for", "choose another place")],
        )
    names = [each.name for blocks in data.manifest.splits.values() for each in blocks]
    names += [*data.manifest.extras, MANIFEST]
    for done, name in enumerate(names, 1):
        _send(Path(data.where) / name, f"{to.rstrip('/')}/{name}")
        progress("sending", done, len(names))
    return open_prepared(to)


def _send(file: Path, to: str) -> None:
    from pyarrow import fs

    system, path = filesystem(to)
    content = file.read_bytes()

    def write() -> None:
        if isinstance(system, fs.LocalFileSystem):
            system.create_dir(str(PurePosixPath(path).parent), recursive=True)
        with system.open_output_stream(path) as stream:
            stream.write(content)

    try:
        patiently(write, to)
    except OSError as error:
        raise TrainfleetError(
            "cannot write the prepared data",
            [Problem(to, error.strerror or str(error), "check the rights and the room")],
        ) from error
