"""Which differences are expected: rows of expected.toml, `[[drift]]` rows of the project's rehearsal.toml,
what the program ignores, and what other resources of the stack add to a list.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.rehearsal.accepted import FILE, AcceptedDrift
from trainfleet.rehearsal.simulation.normalization import INLINE
from trainfleet.rehearsal.simulation.pulumi_values import plain

TABLE = Path(__file__).with_name("expected.toml")


@dataclass(frozen=True)
class Row:
    """A property of a type that changes by itself."""

    type: str
    property: str
    why: str
    source: str


@functools.cache
def table(file: Path = TABLE) -> tuple[Row, ...]:
    """Return the rows of expected.toml.

    Raises:
        InputError: the file is not TOML, or a row lacks a key or has an unknown one.
    """
    try:
        rows = tomllib.loads(file.read_text(encoding="utf-8"))["expected"]
    except (OSError, tomllib.TOMLDecodeError, KeyError) as error:
        raise InputError(
            "the table of expected drift cannot be read", [Problem(str(file), str(error))]
        ) from error
    keys = set(Row.__dataclass_fields__)
    wrong = [
        Problem(f"{file.name} [{index}]", f"needs {', '.join(sorted(keys))}, all texts")
        for index, row in enumerate(rows)
        if set(row) != keys or not all(isinstance(each, str) and each for each in row.values())
    ]
    if wrong:
        raise InputError("the table of expected drift is incomplete", wrong)
    return tuple(Row(**row) for row in rows)


class Expected:
    """Answers why a difference is expected.

    Args:
        accepted: the `[[drift]]` rows of the project.
        ignored: by URN, the properties that the program ignores (`ignore_changes`).
        resources: the resources of the state.
    """

    def __init__(
        self,
        accepted: Sequence[AcceptedDrift] = (),
        ignored: Mapping[str, Sequence[str]] | None = None,
        resources: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        self.accepted, self.ignored = accepted, ignored or {}
        self.resources = [each for each in resources if each.get("custom") and not each.get("delete")]
        self.used: set[AcceptedDrift] = set()
        """The accepted rows that matched something."""

    def resource(self, token: str, name: str) -> str:
        """Return why a whole resource may be missing; empty if nothing says so."""
        return self._accepted(token, name, "")

    def property(
        self, urn: str, token: str, path: str, *, cloud: Any = None, outputs: Mapping[str, Any] | None = None
    ) -> str:
        """Return why a property may differ; empty if nothing says so.

        Args:
            urn: the resource.
            token: its type.
            path: the property.
            cloud: the value of the whole top-level property in the cloud.
            outputs: the outputs of the resource in the state.
        """
        plain_path = without_indexes(path)
        for ignored in self.ignored.get(urn, ()):
            if ignored == "*" or covers(without_indexes(ignored), plain_path):
                return "the program ignores it (ignore_changes)"
        if why := self._accepted(token, urn.rsplit("::", 1)[-1], plain_path):
            return why
        row = next(
            (row for row in table() if fnmatchcase(token, row.type) and covers(row.property, plain_path)),
            None,
        )
        return row.why if row else self._added(token, plain_path, cloud, outputs or {})

    def _accepted(self, token: str, name: str, path: str) -> str:
        found = [row for row in self.accepted if row.matches(token, name, path)]
        row = min(found, key=lambda row: row.expired, default=None)
        if row is None:
            return ""
        self.used.add(row)
        if row.expired:
            return ""
        return f"accepted in {FILE}{f' until {row.until}' if row.until else ''}: {row.reason}"

    def notes(self) -> list[str]:
        """Return what is wrong with the accepted rows: those that ended, and those that nothing matched."""
        found = []
        for row in self.accepted:
            of = f"{row.type}{f' {row.name}' if row.name else ''}{f' {row.path}' if row.path else ''}"
            if row.expired:
                found.append(f"{FILE}: the accepted drift of {of} ended on {row.until}.")
            elif row not in self.used:
                found.append(f"{FILE}: nothing drifted that the row of {of} accepts.")
        return found

    def _added(self, token: str, path: str, cloud: Any, outputs: Mapping[str, Any]) -> str:
        """Return which resources of the stack add to a list that this resource only reports.

        A list with more items than those resources has an item that nobody in the stack added.
        """
        names = {str(outputs.get("id")), str(outputs.get("name"))} - {"None"}
        for row in INLINE:
            if row.type != token or not covers(row.property, path) or not isinstance(cloud, list):
                continue
            adding = [
                each["urn"].rsplit("::", 1)[-1]
                for each in self.resources
                if str(plain(each.get("inputs") or {}).get(row.reference)) in names
                and any(each["type"] == other.adding for other in INLINE if other.type == token)
            ]
            if adding and len(cloud) <= len(adding):
                return f"{', '.join(adding)} add to it"
        return ""


def without_indexes(path: str) -> str:
    """Return a property path with neither list indexes nor quotes: `a[0].b["c"]` is `a.b.c`."""
    return re.sub(
        r'\["?([^"\]]+)"?\]',
        lambda found: "" if found[1].isdigit() or found[1] == "*" else f".{found[1]}",
        path,
    )


def covers(pattern: str, path: str) -> bool:
    """Return whether a pattern names a property or something above it."""
    return fnmatchcase(path, pattern) or fnmatchcase(path, f"{pattern}.*")
