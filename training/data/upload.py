"""Copies prepared data to an object store or another folder, so that many machines read the same blocks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.files import write_whole
from trainfleet.training.data.blocks import MANIFEST, SOURCES
from trainfleet.training.data.prepared import Prepared, open_prepared
from trainfleet.training.data.remote import filesystem, with_retries
from trainfleet.training.runtime import failpoints


def upload(data: Prepared, to: str, progress: Callable[[str, int, int], Any] = lambda *_: None) -> Prepared:
    """Copy a prepared local folder. Does nothing if the target already holds the same data. Files appear
    whole and the manifest last, so two processes may copy the same data at once.

    Raises:
        InputError: the target holds other prepared data.
        TrainfleetError: the target cannot be written.
    """
    try:
        existing = open_prepared(to)
    except InputError:
        existing = None
    if existing is not None:
        if existing.manifest.digest() == data.manifest.digest():
            return existing
        raise InputError(
            "the target holds other prepared data",
            [Problem(to, "differs from the data that the recipe asks for", "choose another target")],
        )
    names = [each.name for blocks in data.manifest.splits.values() for each in blocks]
    # NOTE: the manifest goes last, so that an interrupted upload is never read as complete data
    names += [*data.manifest.extras, *_sources(Path(data.where)), MANIFEST]
    for done, name in enumerate(names, 1):
        _send(Path(data.where) / name, f"{to.rstrip('/')}/{name}")
        failpoints.hit("in-upload", done)
        progress("sending", done, len(names))
    return open_prepared(to)


def _sources(folder: Path) -> list[str]:
    return [SOURCES] if (folder / SOURCES).is_file() else []  # format 1 has none


def _send(file: Path, to: str) -> None:
    from pyarrow import fs

    system, path = filesystem(to)
    content = file.read_bytes()

    def write() -> None:
        if isinstance(system, fs.LocalFileSystem):
            write_whole(Path(path), content)
            return
        with system.open_output_stream(path) as stream:
            stream.write(content)

    try:
        with_retries(write, to)
    except OSError as error:
        raise TrainfleetError(
            "cannot write the prepared data",
            [Problem(to, error.strerror or str(error), "check the permissions and the free space")],
        ) from error
