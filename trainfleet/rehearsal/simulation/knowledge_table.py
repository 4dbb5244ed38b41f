"""One package's table: which changed properties replace a resource, and which lists are sets, for each type.

A table is JSON with one type a line. It ships for each package in `knowledge/`. A project's own table, which
`trainfleet knowledge update` writes to `.trainfleet/knowledge/`, takes its place.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.files import write_whole

SHIPPED = Path(__file__).with_name("knowledge")
FOLDER = Path(".trainfleet") / "knowledge"
"""Folder of a project's own tables. It belongs in version control, so that everyone reviews with it."""


@dataclass(frozen=True)
class Row:
    """What is known about one type."""

    replace: tuple[str, ...] = ()
    """Properties whose change always replaces the resource."""
    when: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Properties that replace under a condition (simulation/conditions.py)."""
    unclear: Mapping[str, str] = field(default_factory=dict)
    """Properties that replace in a case that no condition expresses, with what decides; `*` is any."""
    delete_first: tuple[str, ...] = ()
    """Properties that are deleted before the successor is created."""
    sets: tuple[str, ...] = ()
    """Lists whose order means nothing."""
    caseless: tuple[str, ...] = ()
    """Texts that are the same in capital and small letters."""
    file: str = ""
    """The file of the source that says so, if it is not the table's one file."""

    def as_json(self) -> dict[str, Any]:
        """Return the row without what is empty."""
        given = {
            "replace": list(self.replace),
            "when": {path: list(texts) for path, texts in self.when.items()},
            "unclear": dict(self.unclear),
            "deleteFirst": list(self.delete_first),
            "sets": list(self.sets),
            "caseless": list(self.caseless),
            "file": self.file,
        }
        return {key: value for key, value in given.items() if value}


@dataclass(frozen=True)
class Table:
    """The rows of one package, and where they come from."""

    package: str
    source: str
    version: str
    """Version of the source."""
    date: str
    """Day of the source's version, as YYYY-MM-DD."""
    sdk: str
    """Version of the Pulumi package that the rows are for; of the installed one, if the source names none."""
    types: Mapping[str, Row]
    every: tuple[str, ...] = ()
    """Properties that replace a resource of any type."""

    def where(self, token: str) -> str:
        """Return the source of a type's row, with version and date."""
        row = self.types.get(token)
        return f"{self.source}{f' {row.file}' if row and row.file else ''} ({self.version}, {self.date})"


def write_table(table: Table, file: Path) -> None:
    """Write a table: one line for its origin, one for each type."""
    head = {
        "package": table.package,
        "source": table.source,
        "version": table.version,
        "date": table.date,
        "sdk": table.sdk,
        "every": list(table.every),
    }
    lines = [
        f"{json.dumps(token)}: {json.dumps(row.as_json(), separators=(',', ':'), sort_keys=True)}"
        for token, row in sorted(table.types.items())
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    body = ",\n".join(lines)
    write_whole(file, f'{json.dumps(head)[:-1]}, "types": {{\n{body}\n}}}}\n')


def read_table(file: Path) -> Table:
    """Read a table.

    Raises:
        InputError: the file is not a table.
    """
    try:
        given = json.loads(file.read_text())
        return Table(
            given["package"],
            given["source"],
            given["version"],
            given["date"],
            given["sdk"],
            {token: _row(row) for token, row in given["types"].items()},
            tuple(given["every"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problem = Problem(str(file), f"{error!r}; write it again with: trainfleet knowledge update")
        raise InputError("the knowledge table cannot be read", [problem]) from error


def _row(given: Mapping[str, Any]) -> Row:
    return Row(
        tuple(given.get("replace", ())),
        {path: tuple(texts) for path, texts in given.get("when", {}).items()},
        given.get("unclear", {}),
        tuple(given.get("deleteFirst", ())),
        tuple(given.get("sets", ())),
        tuple(given.get("caseless", ())),
        given.get("file", ""),
    )


def project_folder(start: Path | None = None) -> Path | None:
    """Return the folder of tables of the project that contains `start` (default: the working directory)."""
    here = (start or Path.cwd()).resolve()
    return next((each / FOLDER for each in (here, *here.parents) if (each / FOLDER).is_dir()), None)


def tables(start: Path | None = None) -> dict[str, Table]:
    """Return the tables by package: those of the project, else those that ship."""
    own = project_folder(start)
    files = {file.stem: file for folder in (SHIPPED, own) if folder for file in sorted(folder.glob("*.json"))}
    return {package: _cached(file, file.stat().st_mtime_ns) for package, file in files.items()}


@functools.cache
def _cached(file: Path, changed: int) -> Table:  # noqa: ARG001 - `changed` is part of the cache key
    return read_table(file)


def is_behind(known: Table, installed: str) -> bool:
    """Return whether the installed SDK is another minor version than the one that a table is for."""
    return bool(installed) and known.sdk.split(".")[:2] != installed.split(".")[:2]


def behind(version_of: Callable[[str], str]) -> list[str]:
    """Return a line for each table that is for another minor version than the installed SDK.

    Args:
        version_of: the installed version of a distribution, or an empty text.
    """
    return [
        f"{name} is for SDK {known.sdk}, installed is {installed}"
        for name, known in sorted(tables().items())
        if is_behind(known, installed := version_of(f"pulumi-{name}"))
    ]


def origins() -> list[str]:
    """Return the version and date of each table's source."""
    return [f"{name} {known.version} ({known.date})" for name, known in sorted(tables().items())]
