"""The limits that the clouds' own API models set on input properties, which the SDKs mostly leave out.

A limit is a JSON Schema (`json_schema.py`).

`tools/api_facts` of the checkout writes `<package>/<module>.json`. Do not edit these files by hand. This
folder has the modules that Trainfleet's components use. The optional package `trainfleet-api-facts` has the
other modules, for rehearsals of other programs. Without it, their properties are checked against the SDK
only.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.rehearsal.simulation.json_schema import KEYWORDS, Schema, fault

FACTS = Path(__file__).parent
OPTIONAL = "trainfleet_api_facts"
FORMAT = 2
"""Of the files; 2: the limits are JSON Schema. An optional package of another format is not read."""


@dataclass(frozen=True)
class Fact:
    """The limits of one property's value.

    They hold for a list and for each of its items: a keyword limits values of its own type only.
    """

    schema: Schema = field(default_factory=dict)
    source: str = ""
    """The API model and its version."""


NO_FACT = Fact()
# A file has `source`, `shapes` (schemas by shape name) and `types` (shape name by property, by input class).


def facts_of(args: type) -> dict[str, Fact]:
    """Return the facts of an input class by wire name; empty if none were gathered."""
    package, module = args.__module__.split(".")[:2] if args.__module__.count(".") >= 2 else ("", "")
    if not package.startswith("pulumi_"):
        return {}
    held = _read(facts_file(package.removeprefix("pulumi_"), module))
    shapes = held.get("shapes", {})
    return {
        name: Fact(shapes[shape], held.get("source", ""))
        for name, shape in held.get("types", {}).get(args.__name__, {}).items()
    }


def facts_file(package: str, name: str) -> Path | None:
    """Return the file of a module, of this folder or of the optional package; None if neither has it."""
    files = (folder / package / f"{name}.json" for folder in _folders())
    return next((file for file in files if file.is_file()), None)


@functools.cache
def _folders() -> tuple[Path, ...]:
    return (FACTS, *(folder for folder in _optional() if _format(folder) == FORMAT))


def _optional() -> list[Path]:
    found = importlib.util.find_spec(OPTIONAL)
    return list(map(Path, (found and found.submodule_search_locations) or ()))


def _format(folder: Path) -> int:
    file = folder / "format.json"
    return int(json.loads(file.read_text())["format"]) if file.is_file() else 1


@functools.cache
def _read(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        held: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise InputError(
            "the API's facts cannot be read",
            [Problem(str(file), str(error), "collect them again: docs/clouds.md")],
        ) from error
    return held


def behind(version_of: Callable[[str], str]) -> list[str]:
    """Return a line for each package whose limits are from another minor version than the installed SDK, and
    for an optional package of limits that is not read.

    Args:
        version_of: the installed version of a distribution, or an empty text.
    """
    found = {
        match.groups()
        for file in sorted(FACTS.glob("*/*.json"))
        if (match := _OF_SDK.search(_read(file).get("source", "")))
    }
    unread = [
        f"the limits of trainfleet-api-facts have format {has}, not {FORMAT}, and are not used; "
        "`pip install --upgrade trainfleet-api-facts`, at the version of Trainfleet"
        for folder in _optional()
        if (has := _format(folder)) != FORMAT
    ]
    return unread + [
        f"limits of {name} are for SDK {known}, installed is {installed}; they come with Trainfleet"
        for name, known in sorted(found)
        if (installed := version_of(f"pulumi-{name}")) and known.split(".")[:2] != installed.split(".")[:2]
    ]


_OF_SDK = re.compile(r"documentation of pulumi-([\w-]+) (\d+\.\d+[\d.]*)")


def faults(file: Path) -> list[str]:
    """Return the mistakes in a facts file: unknown keywords or arguments, missing or unused shapes."""
    held = json.loads(file.read_text())
    shapes = held["shapes"]
    used = {shape for properties in held["types"].values() for shape in properties.values()}
    found = [
        f"{shape} has {key}, which nothing reads"
        for shape, entry in shapes.items()
        for key in sorted(set(entry) - KEYWORDS.keys())
    ]
    found += [f"{shape} is used and missing" for shape in sorted(used - set(shapes))]
    found += [f"{shape} is not used" for shape in sorted(set(shapes) - used)]
    found += [f"{shape}: {text}" for shape, entry in shapes.items() if (text := fault(entry))]
    return found
