"""Limits of APIs that the validation of a spec and the simulated clouds share (api_limits.toml)."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

Limit = dict[str, Any]


@cache
def limits() -> dict[str, Limit]:
    """Return the limits by name. A limit has keys of JSON Schema, and its `source`."""
    limits: dict[str, Limit] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return limits


def limit(name: str, key: str) -> Any:
    """Return one key of a limit.

    Raises:
        KeyError: there is no such limit, or it has no such key.
    """
    return limits()[name][key]
