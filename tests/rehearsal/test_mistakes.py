"""A table of plausible mistakes over four packages: each is refused by name, and its right twin passes, in
dict style and in typed style.

A mistake is tried in one of the two styles, the next in the other; the long tests try each in both.

The tables are `mistakes/<package>.toml`, `.second.toml` and `.third.toml`; the head of aws.toml says how a
row is read. A program runs without an engine (see `trainfleet.rehearsal.simulation.check_harness`), so what
is checked is what the SDK would send. Some SDK classes refuse a wrong keyword themselves.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trainfleet.rehearsal.simulation.check_harness import capture
from trainfleet.rehearsal.simulation.provider import CLOUD_MODELS
from trainfleet.rehearsal.simulation.schema import Kind, inputs_of, packages

TABLES = Path(__file__).with_name("mistakes")
STYLES = ("dict", "typed")
LEAST = {"aws": 45, "gcp": 35, "azure-native": 35, "kubernetes": 35}


def tables() -> Iterator[tuple[str, str, dict[str, Any], list[list[Any]]]]:
    for file in sorted(TABLES.glob("*.toml")):
        for name, entry in tomllib.loads(file.read_text()).items():
            yield file.name.split(".")[0], name, entry["right"], entry["wrong"]


RIGHT = [(package, name, right) for package, name, right, _ in tables()]
WRONG = [(package, name, right, row) for package, name, right, rows in tables() for row in rows]


def resource_class(name: str) -> Any:
    module, cls = f"pulumi_{name}".rsplit(".", 1)
    found = getattr(importlib.import_module(module), cls)
    # Where a part of the SDK was imported by itself before, the package's attribute is the module of that
    # name.
    return getattr(found, cls) if inspect.ismodule(found) else found


def changed(right: dict[str, Any], row: list[Any]) -> dict[str, Any]:
    """Return the arguments with one mistake in them."""
    wrong = copy.deepcopy(right)
    kind, path, *value = row
    path, _, inside = path.partition("|")
    if inside:
        holder, last = reach(wrong, path)
        document = json.loads(holder[last])
        put(document, inside, value[0])
        holder[last] = json.dumps(document)
        return wrong
    holder, last = reach(wrong, path)
    if kind == "missing":
        del holder[last]
    elif kind == "misspelt":
        holder[value[0]] = holder.pop(last)
    else:
        holder[last] = value[0]
    return wrong


def put(value: Any, path: str, new: Any) -> None:
    holder, last = reach(value, path)
    holder[last] = new


def reach(value: Any, path: str) -> tuple[Any, Any]:
    """Return what holds the last step of a path, and that step."""
    *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    for step in steps:
        value = value[step]
    return value, last


def typed(kind: Kind, value: Any) -> Any:
    """Return a value with the SDK's input classes in place of dictionaries, wherever the SDK has them."""
    if kind.name == "union":
        kind = next(
            (choice for choice in kind.choices if choice.name == "object" and isinstance(value, dict)),
            kind.choices[0],
        )
    if kind.name == "list" and isinstance(value, list) and kind.item:
        return [typed(kind.item, item) for item in value]
    if kind.name == "map" and isinstance(value, dict) and kind.item:
        return {name: typed(kind.item, item) for name, item in value.items()}
    if kind.cls is not None and isinstance(value, dict):
        return kind.cls(**arguments(kind.cls, value))
    return value


def arguments(cls: type, value: dict[str, Any]) -> dict[str, Any]:
    from pulumi import _types

    names = {python: wire for python, wire, _ in _types._py_properties(cls)}
    kinds = inputs_of(cls)
    return {
        name: typed(kinds[names[name]].kind, item) if name in names else item for name, item in value.items()
    }


def args_class(cls: type) -> type | None:
    home = inspect.getmodule(cls)
    return getattr(home, f"{cls.__name__}InitArgs", None) or getattr(home, f"{cls.__name__}Args", None)


def program(name: str, args: dict[str, Any], style: str) -> Callable[[], None]:
    def build() -> None:
        cls = resource_class(name)
        declared = args_class(cls)
        cls("thing", **(arguments(declared, args) if style == "typed" and declared is not None else args))

    return build


def mistakes_of(package: str, name: str, args: dict[str, Any], style: str) -> list[str]:
    """Return what a program is refused with: by the SDK, or by the simulated cloud."""
    try:
        sent = capture(program(name, args, style))
    except (TypeError, AttributeError, ValueError, AssertionError) as error:
        return [str(error)]
    installed = packages()[package]
    found = [
        mistake
        for item in sent
        for mistake in CLOUD_MODELS[package].check(installed, item.token, item.inputs)
    ]
    assert [str(mistake) for mistake in found if not mistake.source] == [], "a rejection names its source"
    return [str(mistake) for mistake in found]


def plainly(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def expected(row: list[Any]) -> str:
    kind, path, *value = row
    if len(value) > 1:
        return str(value[1])
    return str(value[0]) if kind == "misspelt" else path.rsplit("|", 1)[-1].rsplit(".", 1)[-1]


def expected_value(row: list[Any]) -> Any:
    """Return the wrong value when it is plain text or a number that the message has to show."""
    kind, _, *value = row
    plain = (
        kind not in ("misspelt", "missing", "conflict")
        and len(value) == 1
        and isinstance(value[0], (str, int))
        and not isinstance(value[0], bool)
    )
    return value[0] if plain and len(str(value[0])) <= 40 else None


@pytest.mark.sampled(0.5)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("package", "name", "right"), RIGHT, ids=[name for _, name, _ in RIGHT])
def test_the_right_program_passes(package: str, name: str, right: dict[str, Any], style: str) -> None:
    assert mistakes_of(package, name, right, style) == []


def mistakes() -> Iterator[Any]:
    """Each mistake in one style, the next one in the other; each in both in the long tests."""
    for index, (package, name, right, row) in enumerate(WRONG):
        for number, style in enumerate(STYLES):
            marks = [] if index % len(STYLES) == number else [pytest.mark.deep]
            yield pytest.param(
                package, name, right, row, style, id=f"{name}-{row[0]}-{row[1]}-{index}-{style}", marks=marks
            )


@pytest.mark.parametrize(("package", "name", "right", "row", "style"), list(mistakes()))
def test_a_mistake_is_refused_by_name_and_value(
    package: str, name: str, right: dict[str, Any], row: list[Any], style: str
) -> None:
    output = mistakes_of(package, name, changed(right, row), style)
    assert any(plainly(expected(row)) in plainly(message) for message in output), output
    if (value := expected_value(row)) is not None:
        assert any(str(value) in message or repr(value) in message for message in output), output


def test_the_table_is_large_enough() -> None:
    count = Counter(package for package, *_ in WRONG)
    assert all(count[package] >= least for package, least in LEAST.items()), count
    assert count.total() >= 150, count
