"""Access to the parts of an object that may be missing or not known yet."""

from __future__ import annotations

from typing import Any, TypeGuard

from trainfleet.rehearsal.simulation.pulumi_values import SIGNATURE, UNKNOWN


def is_text(value: Any) -> TypeGuard[str]:
    """Return whether a value is a known string."""
    return isinstance(value, str) and UNKNOWN not in value


def as_map(value: Any) -> dict[str, Any]:
    """Return an object, or an empty one if the value is something else or not known."""
    return value if isinstance(value, dict) and SIGNATURE not in value else {}


def as_list(value: Any) -> list[Any]:
    """Return a list, or an empty one if the value is something else."""
    return value if isinstance(value, list) else []


def value_at(value: Any, *path: str) -> Any:
    """Return the value at a path of keys, or None if a part of the path is missing."""
    for name in path:
        value = as_map(value).get(name)
    return value
