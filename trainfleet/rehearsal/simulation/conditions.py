"""Conditions under which a changed property replaces a resource: how tables write them, when they hold.

A condition is one line: an event at the row's own path, then at most one guard on another property:

    shrinks | grows | resizes | added | removed | changes
    changes from A | changes to B | changes from A to B | changes except from A to B
    ... if PATH is A | ... if PATH is not A

Values are written as in JSON or as bare words; `A/B` is any of several; `absent` is a property that is not
set. `shrinks` and `grows` compare numbers and versions; a list shrinks if it loses an item, a range of
addresses if it loses an address. `resizes` is a list that gets longer or shorter.
A condition has three results: it holds, it does not, or the values do not tell.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainfleet.rehearsal.simulation.property_paths import Path, split_path
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN

EVENTS = ("shrinks", "grows", "resizes", "added", "removed", "changes")
_CONDITION = re.compile(
    r"(?P<event>shrinks|grows|resizes|added|removed|changes)"
    r"(?P<but> except)?(?: from (?P<old>\S+))?(?: to (?P<new>\S+))?"
    r"(?: if (?P<path>\S+) is (?P<no>not )?(?P<values>\S+))?"
)


class NotGivenError(LookupError):
    """The value at a path was not given, so nothing is known about it."""


Lookup = Callable[[Path], tuple[Any, Any]]
"""Returns the old and the new value at a path; raises `NotGivenError` if they were not given."""


@dataclass(frozen=True)
class Condition:
    """When a change at or below `path` replaces the resource."""

    path: Path
    text: str
    event: str
    old: tuple[Any, ...] = ()
    new: tuple[Any, ...] = ()
    but: bool = False
    """Whether `old` and `new` describe the one change that does not replace."""
    guard: Path = ()
    values: tuple[Any, ...] = ()
    unless: bool = False
    """Whether the guard holds for every value except `values`."""

    def holds(self, path: Path, values: Lookup) -> bool | None:
        """Return whether the changed leaf at `path` replaces the resource; None if the values do not tell.

        Args:
            path: the changed leaf, at or below the condition's own path.
            values: the old and new inputs of the resource.
        """
        try:
            happened = self._happened(*values(_with_indexes(self.path, path)))
        except NotGivenError:
            return None
        if happened is False or not self.guard:
            return happened
        try:
            guarded = self._guarded(*values(_with_indexes(self.guard, path)))
        except NotGivenError:
            return None
        return False if guarded is False else None if guarded is None else happened

    def _happened(self, old: Any, new: Any) -> bool | None:
        if self.event in ("added", "removed"):
            gone, here = (old, new) if self.event == "added" else (new, old)
            return _is_absent(gone) and not _is_absent(here)
        if self.event == "resizes":
            return None if UNKNOWN in (old, new) else len(old or ()) != len(new or ())
        if self.event in ("shrinks", "grows"):
            return _shrinks(old, new) if self.event == "shrinks" else _shrinks(new, old)
        matches = (_among(old, self.old), _among(new, self.new))
        if False in matches:
            return self.but
        return None if None in matches else not self.but

    def _guarded(self, old: Any, new: Any) -> bool | None:
        found = {_among(each, self.values) for each in (old, new)}
        if len(found) > 1 or None in found:
            return None
        return found.pop() is not self.unless


def condition(path: str, text: str) -> Condition:
    """Read one condition.

    Raises:
        ValueError: the text is not a condition.
    """
    found = _CONDITION.fullmatch(text)
    if not found or (found["event"] != "changes" and (found["but"] or found["old"] or found["new"])):
        raise ValueError(
            f"{text!r} is not a condition: write {', '.join(EVENTS)} [from A] [to B] [if PATH is A]"
        )
    return Condition(
        split_path(path),
        text,
        found["event"],
        _values(found["old"]),
        _values(found["new"]),
        bool(found["but"]),
        split_path(found["path"] or ""),
        _values(found["values"]),
        bool(found["no"]),
    )


def _values(text: str | None) -> tuple[Any, ...]:
    return tuple(map(_value, text.split("/"))) if text else ()


def _value(word: str) -> Any:
    if word == "absent":
        return None
    try:
        return json.loads(word)
    except ValueError:
        return word


def _among(value: Any, expected: tuple[Any, ...]) -> bool | None:
    """Return whether a value is one of those expected; any value is, if none is."""
    if not expected:
        return True
    if value == UNKNOWN:
        return None
    return any(str(value) == str(each) if each is not None else _is_absent(value) for each in expected)


def _is_absent(value: Any) -> bool:
    return value is None or value in ({}, [], "")


def _shrinks(old: Any, new: Any) -> bool | None:
    """Return whether a value has become smaller; None if the values do not tell."""
    if UNKNOWN in (old, new):
        return None
    if isinstance(old, list) and isinstance(new, list | None):
        return any(each not in (new or []) for each in old)
    if isinstance(old, str) and "/" in old:
        try:
            before, after = ipaddress.ip_network(old, strict=False), ipaddress.ip_network(new, strict=False)
        except ValueError:
            return None
        return before.version != after.version or not before.subnet_of(after)  # type: ignore[arg-type]  # checked
    one, two = _size(old), _size(new)
    return None if one is None or two is None else two < one


def _size(value: Any) -> tuple[float, ...] | None:
    """Return a number or a version (`2.15`) as something to compare."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    parts = str(value).removeprefix("v").split(".") if isinstance(value, str) else [value]
    try:
        return tuple(float(part) for part in parts)
    except ValueError:
        return None


def _with_indexes(pattern: Path, path: Path) -> Path:
    """Return a pattern with the list indexes of the path that it matches."""
    steps = list(pattern)
    for place, step in enumerate(pattern):
        if step == "[*]" and place < len(path) and tuple(path[:place]) == tuple(steps[:place]):
            steps[place] = path[place]
    return tuple(steps)
