"""Copies prepared data to an object store or another folder, so that many machines read the same blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.training.data.blocks import MANIFEST, SOURCES
from trainfleet.training.data.prepared import Prepared, open_prepared
from trainfleet.training.data.remote import filesystem, send, with_retries
from trainfleet.training.data.stream import read_file
from trainfleet.training.runtime import failpoints


def upload(data: Prepared, to: str, progress: Callable[[str, int, int], Any] = lambda *_: None) -> Prepared:
    """Copy prepared data of a folder or a store. Does nothing if the target already holds the same data.
    Files appear whole and the manifest last, so two processes may copy the same data at once.

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
    names += [*data.manifest.extras, *_sources(data.where), MANIFEST]
    for done, name in enumerate(names, 1):
        send(read_file(f"{data.where}/{name}"), f"{to.rstrip('/')}/{name}")
        failpoints.hit("in-upload", done)
        progress("sending", done, len(names))
    return open_prepared(to)


def _sources(where: str) -> list[str]:
    system, path = filesystem(f"{where}/{SOURCES}")
    found = with_retries(lambda: system.get_file_info(path), where)
    return [SOURCES] if found.is_file else []  # format 1 has none
