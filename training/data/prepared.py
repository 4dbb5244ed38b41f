"""Opens prepared data, in a folder or at a URL: its blocks, its extra files, and what run.json says of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.training.data.blocks import MANIFEST, Manifest
from trainfleet.training.data.remote import filesystem, is_url, with_retries
from trainfleet.training.data.stream import Blocks, open_blocks, read_file, read_manifest


@dataclass(frozen=True)
class Prepared:
    """A prepared folder, or the URL of one."""

    where: str
    manifest: Manifest

    def blocks(self, split: str, **settings: Any) -> Blocks:
        """A split's samples; `settings` are arguments of `trainfleet.training.data.stream.Blocks`."""
        return open_blocks(self.where, split, self.manifest, **settings)

    def splits(self, cache: Path, *, disk: int, **settings: Any) -> dict[str, Blocks]:
        """The samples of each split. The blocks of an object store are fetched into `cache`/blocks as they
        are read, at most `disk` bytes of them.
        """
        more = {"cache": cache / "blocks", "disk": disk} if is_url(self.where) else {}
        return {split: self.blocks(split, **more, **settings) for split in self.manifest.splits}

    def extra(self, name: str) -> bytes:
        """One of the folder's extra files.

        Raises:
            TrainfleetError: the file is missing or has changed.
        """
        content = read_file(f"{self.where}/{name}")
        if hashlib.sha256(content).hexdigest() != self.manifest.extras[name]:
            raise TrainfleetError(
                "the prepared data is damaged",
                [Problem(f"{self.where}/{name}", "has changed since it was written", "prepare it again")],
            )
        return content

    def data_info(self) -> dict[str, Any]:
        """The `data` entry of run.json."""
        bad = self.manifest.bad
        rows = {split: self.manifest.rows(split) for split in self.manifest.splits}
        left_out, changed = (
            {"count": each.get("count", 0), "named": each.get("named", [])[:20]}
            for each in (bad, bad.get("changed", {}))
        )
        return {
            "manifest": f"{self.where}/{MANIFEST}",
            "digest": self.manifest.digest(),
            "rows": rows,
            "left_out": left_out,
            **({"changed": changed} if changed["count"] else {}),
        }


def open_prepared(where: str) -> Prepared:
    """Open a prepared folder or URL.

    Raises:
        InputError: it holds no prepared data.
    """
    return Prepared(where, read_manifest(where))


def is_prepared(where: str) -> bool:
    """Whether a folder or URL holds prepared data, and not raw data.

    Raises:
        InputError: it may not be read.
        StoreUnavailableError: the object store does not respond.
    """
    system, path = filesystem(where)
    try:
        return bool(with_retries(lambda: system.get_file_info(f"{path}/{MANIFEST}"), where).is_file)
    except OSError as error:
        raise InputError(
            "cannot read the data", [Problem(where, error.strerror or str(error), "check the permissions")]
        ) from error


def prepared_source(
    where: str,
    columns: Iterable[str],
    *,
    settings: Mapping[str, Any] | None = None,
    notes: Mapping[str, Any] | None = None,
) -> Prepared | None:
    """The prepared data that a recipe names as its source, or None if `where` is raw data.

    Args:
        where: a folder or URL.
        columns: names of the columns that the workload reads.
        settings, notes: values of `prepare`'s arguments of the same names that the recipe must have in
            common with the data.

    Raises:
        InputError: the data has other columns, or was prepared with other values.
    """
    if not is_prepared(where):
        return None
    prepared = open_prepared(where)
    manifest, names = prepared.manifest, sorted(columns)
    wrong = [
        Problem(
            "workload.data.source",
            f"{where} was prepared with {key} {have.get(key)}, the recipe has {value}",
            "use the same value",
        )
        for have, want in ((manifest.settings, settings or {}), (manifest.notes, notes or {}))
        for key, value in want.items()
        if have.get(key) != value
    ]
    if sorted(manifest.columns) != names:
        what = f"{where} holds {', '.join(sorted(manifest.columns))} instead of {', '.join(names)}"
        wrong = [Problem("workload.data.source", what, "use data that was prepared for this workload")]
    if wrong:
        raise InputError("the prepared data does not match the recipe", wrong)
    return prepared
