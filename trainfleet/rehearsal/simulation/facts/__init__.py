"""The limits that the clouds' own API models set on input properties, which the SDKs mostly leave out.

A gatherer (`gather_aws.py` …) writes `facts/<package>/<module>.json`. Do not edit these files by hand.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem

FACTS = Path(__file__).parent
Limits = tuple[float | None, float | None]
ANY: Limits = (None, None)


@dataclass(frozen=True)
class Fact:
    """The limits of one property's value. In a list, `count` limits the list, the others its items."""

    values: tuple[str, ...] = ()
    closed: bool = True
    numbers: Limits = ANY
    length: Limits = ANY
    count: Limits = ANY
    pattern: str = ""
    also: tuple[str, ...] = ()
    """Valid values outside the range."""


NO_FACT = Fact()
# A file has `source`, `shapes` (facts by shape name) and `types` (shape name by property, by input class).
# Facts are `values` (with `open`, only a near miss is invalid), `range`, `length` and `count` ([min, max] or
# null), `pattern` (for the whole text), and `also` (valid values outside the range).
_KEYS = {"values", "open", "range", "length", "count", "pattern", "also"}


def facts_of(args: type) -> dict[str, Fact]:
    """Return the facts of an input class by wire name; empty if none were gathered."""
    package, module = args.__module__.split(".")[:2] if args.__module__.count(".") >= 2 else ("", "")
    if not package.startswith("pulumi_"):
        return {}
    held = _file(package.removeprefix("pulumi_"), module, FACTS)
    shapes = held.get("shapes", {})
    return {
        name: _fact(shapes[shape]) for name, shape in held.get("types", {}).get(args.__name__, {}).items()
    }


@functools.cache
def _file(package: str, module: str, where: Path) -> dict[str, Any]:
    file = where / package / f"{module}.json"
    if not file.is_file():
        return {}
    try:
        held: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise InputError(
            "the API's facts cannot be read", [Problem(str(file), str(error), "gather them again")]
        ) from error
    return held


def _fact(entry: dict[str, Any]) -> Fact:
    return Fact(
        tuple(entry.get("values", ())),
        not entry.get("open", False),
        _limits(entry.get("range")),
        _limits(entry.get("length")),
        _limits(entry.get("count")),
        entry.get("pattern", ""),
        tuple(entry.get("also", ())),
    )


def _limits(pair: list[float | None] | None) -> Limits:
    return (pair[0], pair[1]) if pair else ANY


def faults(file: Path) -> list[str]:
    """Return the mistakes in a facts file: unknown keys, missing or unused shapes, and invalid patterns."""
    held = json.loads(file.read_text())
    shapes = held["shapes"]
    used = {shape for properties in held["types"].values() for shape in properties.values()}
    found = [
        f"{shape} says {key}, which nothing reads"
        for shape, entry in shapes.items()
        for key in sorted(set(entry) - _KEYS)
    ]
    found += [f"{shape} is used and not there" for shape in sorted(used - set(shapes))]
    found += [f"{shape} is not used" for shape in sorted(set(shapes) - used)]
    for shape, entry in shapes.items():
        try:
            re.compile(entry.get("pattern", ""))
        except re.error as error:
            found.append(f"{shape}: {error}")
    return found
