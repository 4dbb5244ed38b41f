"""The leaves that differ between old and new inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainfleet.rehearsal.simulation.property_paths import Path
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN


@dataclass(frozen=True)
class Change:
    """A leaf that differs between old and new inputs."""

    path: Path
    kind: str
    """ADD, UPDATE or DELETE."""


def changes(old: Any, new: Any, path: Path = ()) -> Iterator[Change]:
    """Yield the leaves that differ between two plain values. An unknown value always differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            if not key.startswith("__"):
                yield from changes(old.get(key), new.get(key), (*path, key))
    elif isinstance(old, list) and isinstance(new, list):
        for index in range(max(len(old), len(new))):
            yield from changes(
                old[index] if index < len(old) else None,
                new[index] if index < len(new) else None,
                (*path, f"[{index}]"),
            )
    elif old != new or new == UNKNOWN:
        side = old if new is None else new
        if (old is None or new is None) and isinstance(side, (dict, list)) and side:
            empty: Any = {} if isinstance(side, dict) else []
            yield from changes(empty if old is None else old, empty if new is None else new, path)
        else:
            yield Change(path, "ADD" if old is None else "DELETE" if new is None else "UPDATE")


def value_at(value: Any, path: Path) -> Any:
    """Return the plain value at a path; None if there is none."""
    for step in path:
        if step.startswith("["):
            index = int(step[1:-1]) if step[1:-1].isdigit() else -1
            value = value[index] if isinstance(value, list) and 0 <= index < len(value) else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value
