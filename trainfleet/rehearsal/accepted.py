"""`rehearsal.toml` of a project: what its owners know better than the rehearsal.

- `[[accept]]` accepts a value, a property or a type that would be rejected or warned about.
- `[[answer]]` answers a data source (`function`), or gives outputs to a resource or component (`type`).
- `[[stack]]` gives outputs to a stack that a `StackReference` names, or names the program that has them.
- `[[drift]]` accepts that a resource, or one of its properties, differs in the cloud (`trainfleet drift`).
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from trainfleet.dates import today
from trainfleet.errors import InputError, Problem
from trainfleet.suggestions import did_you_mean

FILE = "rehearsal.toml"
_KEYS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "accept": {"type": str, "property": str, "value": object, "reason": str, "until": (str, date)},
    "answer": {
        "function": str,
        "args": dict,
        "result": dict,
        "type": str,
        "name": str,
        "id": str,
        "outputs": dict,
        "reason": str,
        "until": (str, date),
    },
    "stack": {"name": str, "outputs": dict, "program": str, "stack": str},
    "drift": {"type": str, "name": str, "property": str, "reason": str, "until": (str, date)},
}


@dataclass(frozen=True)
class Accept:
    """Accepts mistakes in a type (`*` is any text), optionally only of one property and one value."""

    type: str
    reason: str
    path: str = ""
    """The property, without list indexes; empty: any."""
    value: Any = None
    until: date | None = None
    """The last day on which it holds; None: no end."""

    def matches(self, token: str, name: str, value: Any) -> bool:
        """Return whether it is about this value of the property `name` (a path without indexes)."""
        return (
            fnmatchcase(token, self.type)
            and (not self.path or fnmatchcase(name, self.path))
            and (self.value is None or str(self.value) == str(value))
        )

    @property
    def expired(self) -> bool:
        """Whether its last day has passed."""
        return self.until is not None and self.until < today()


@dataclass(frozen=True)
class AcceptedDrift:
    """Accepts that resources of a type (`*` is any text) differ in the cloud from the state."""

    type: str
    reason: str
    name: str = ""
    """The name of the resource; empty: any."""
    path: str = ""
    """The property, without list indexes, and all below it; empty: any, and a deleted resource too."""
    until: date | None = None
    """The last day on which it holds; None: no end."""

    def matches(self, token: str, name: str, path: str) -> bool:
        """Return whether it is about this property; the path of a deleted resource is empty."""
        return (
            fnmatchcase(token, self.type)
            and (not self.name or fnmatchcase(name, self.name))
            and (not self.path or fnmatchcase(path, self.path) or fnmatchcase(path, f"{self.path}.*"))
        )

    @property
    def expired(self) -> bool:
        """Whether its last day has passed."""
        return self.until is not None and self.until < today()


@dataclass(frozen=True)
class Answer:
    """The result of a function for arguments that include `args`, or the outputs of a resource."""

    function: str = ""
    args: dict[str, Any] = field(default_factory=dict)
    type: str = ""
    name: str = ""
    id: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    until: date | None = None
    """The last day on which it holds; None: no end."""

    @property
    def expired(self) -> bool:
        """Whether its last day is over: it answers nothing any more."""
        return self.until is not None and self.until < today()


@dataclass(frozen=True)
class StackOutputs:
    """The outputs of another stack: given, or those of a program that is applied first."""

    name: str
    outputs: dict[str, Any] | None = None
    program: Path | None = None
    stack: str = ""


@dataclass(frozen=True)
class Accepted:
    """The parsed file."""

    accepts: tuple[Accept, ...] = ()
    answers: tuple[Answer, ...] = ()
    stacks: tuple[StackOutputs, ...] = ()
    drift: tuple[AcceptedDrift, ...] = ()

    def accepting(self, token: str, name: str, value: Any) -> Accept | None:
        """Return the row that accepts a mistake: one that holds, else one that has expired, else None."""
        found = [row for row in self.accepts if row.matches(token, name, value)]
        return min(found, key=lambda row: row.expired, default=None)

    def answer(self, function: str, args: dict[str, Any]) -> dict[str, Any] | None:
        """Return the result of a function, or None. The row with the most arguments wins."""
        found = [
            row
            for row in self.answers
            if row.function == function
            and not row.expired
            and all(_same(args.get(key), value) for key, value in row.args.items())
        ]
        best = max(found, key=lambda row: len(row.args), default=None)
        return None if best is None else dict(best.values)

    def outputs(self, token: str, name: str, resource_id: str = "") -> dict[str, Any] | None:
        """Return the outputs that the file gives to a resource, or None."""
        for row in self.answers:
            if (
                row.type == token
                and row.name in ("", name)
                and row.id in ("", resource_id)
                and not row.expired
            ):
                return dict(row.values)
        return None


def _same(given: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return isinstance(given, dict) and all(
            _same(given.get(key), value) for key, value in expected.items()
        )
    return bool(given == expected)


def read(root: Path) -> Accepted:
    """Return the rows of `rehearsal.toml` in a folder; none if it has no such file.

    Raises:
        InputError: all mistakes in the file.
    """
    file = root / FILE
    if not file.is_file():
        return Accepted()
    try:
        document = tomllib.loads(file.read_text())
    except RecursionError as error:
        raise InputError("a file cannot be read", [Problem(str(file), "is nested too deeply")]) from error
    except (OSError, ValueError) as error:
        raise InputError("a file cannot be read", [Problem(str(file), str(error))]) from error
    if problems := list(_problems(file, document)):
        raise InputError(f"{FILE} has mistakes", problems)
    return Accepted(
        tuple(_accept(row) for row in document.get("accept", ())),
        tuple(_answer(row) for row in document.get("answer", ())),
        tuple(
            StackOutputs(
                row["name"],
                row.get("outputs"),
                (root / row["program"]).resolve() if "program" in row else None,
                row.get("stack", ""),
            )
            for row in document.get("stack", ())
        ),
        tuple(
            AcceptedDrift(
                row["type"], row["reason"], row.get("name", ""), row.get("property", ""), _until(row)
            )
            for row in document.get("drift", ())
        ),
    )


def _accept(row: dict[str, Any]) -> Accept:
    return Accept(row["type"], row["reason"], row.get("property", ""), row.get("value"), _until(row))


def _until(row: dict[str, Any]) -> date | None:
    written = row.get("until")
    return date.fromisoformat(written) if isinstance(written, str) else written


def _answer(row: dict[str, Any]) -> Answer:
    rest = {key: value for key, value in row.items() if key not in ("result", "outputs", "until")}
    return Answer(**rest, values=row.get("result") or row.get("outputs") or {}, until=_until(row))


def _problems(file: Path, document: dict[str, Any]) -> Iterator[Problem]:
    for table, rows in document.items():
        if table not in _KEYS or not isinstance(rows, list):
            yield Problem(
                f"{file}: {table}", "is not a list of rows", did_you_mean(table, _KEYS) or "[[accept]]"
            )
            continue
        for index, row in enumerate(rows):
            where = f"{file}: {table}[{index}]"
            if not isinstance(row, dict):
                yield Problem(where, f"is {row!r}, not a row", f"[[{table}]]")
                continue
            for key, value in row.items():
                if key not in _KEYS[table]:
                    yield Problem(f"{where}.{key}", "is not a key", did_you_mean(key, _KEYS[table]))
                elif not isinstance(value, _KEYS[table][key]) or isinstance(value, datetime):
                    yield Problem(f"{where}.{key}", f"has the wrong type: {value!r}")
            yield from (Problem(where, what, fix) for what, fix in _row_problems(table, row, file.parent))


def _row_problems(table: str, row: dict[str, Any], root: Path) -> Iterator[tuple[str, str]]:
    if table in ("accept", "drift"):
        yield from _accept_problems(row)
    elif table == "answer":
        yield from _answer_problems(row)
    else:
        if not row.get("name"):
            yield "needs `name`", 'name = "organization/project/stack"'
        if ("outputs" in row) == ("program" in row):
            yield "needs either `outputs` or `program`", 'outputs = { vpc_id = "vpc-1" }'
        if isinstance(row.get("program"), str) and not (root / row["program"] / "Pulumi.yaml").is_file():
            yield f"program: {root / row['program']} has no Pulumi.yaml", ""


def _accept_problems(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key, example in (("type", "aws:ec2/instance:Instance"), ("reason", "why it is right")):
        if not row.get(key):
            yield f"needs `{key}`", f'{key} = "{example}"'
    yield from _date_problems(row)


def _date_problems(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if isinstance(row.get("until"), str):
        try:
            date.fromisoformat(row["until"])
        except ValueError:
            yield f"until: {row['until']!r} is not a day", "until = 2027-01-31"


def _answer_problems(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield from _date_problems(row)
    function = "function" in row
    if function == ("type" in row):
        yield "needs either `function` or `type`", ""
    elif ("result" if function else "outputs") not in row:
        yield f"needs `{'result' if function else 'outputs'}`", ""
    elif wrong := set(row) & ({"name", "id", "outputs"} if function else {"args", "result"}):
        yield f"{', '.join(sorted(wrong))}: not with `{'function' if function else 'type'}`", ""


def snippet(table: str, row: dict[str, Any]) -> str:
    """Return a row as TOML that can be pasted into the file."""
    lines = [
        f"[[{table}]]",
        *(f"{key} = {_toml(value)}" for key, value in row.items() if value not in ({}, "")),
    ]
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{_key(key)} = {_toml(item)}" for key, item in value.items() if item is not None)
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else json.dumps(key)


def snippets(rows: Iterable[tuple[str, dict[str, Any]]]) -> str:
    """Return rows as one text for the file."""
    return "\n\n".join(snippet(table, row) for table, row in rows)
