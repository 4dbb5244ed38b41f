"""Writes the facts from a cloud's API model as the files that the rehearsal reads, one per SDK module.

All gatherers share it: a gatherer yields `GatheredFact`s. Facts that the SDK's documentation contradicts are
dropped, and each shape is stored once.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.api_facts.keywords import ITEMS, LENGTHS, NUMBERS, Entry, Pair, pair, whole, without
from tools.api_facts.places import folder_of
from trainfleet.rehearsal.simulation.schema import Kind, Property


@dataclass(frozen=True)
class GatheredFact:
    """One fact: the property (module, class, wire name), its shape's name in the API, and its limits."""

    module: str
    cls: str
    name: str
    shape: str
    entry: Entry


def scalar(kind: Kind) -> str:
    """Return the kind of a value or of a list's items: text, number, boolean, object, or empty."""
    if kind.name == "list" and kind.item:
        return scalar(kind.item)
    if kind.name == "union":
        return next(
            (
                scalar(choice)
                for choice in kind.choices
                if choice.name in ("string", "enum", "integer", "number")
            ),
            "",
        )
    return {
        "string": "text",
        "enum": "text",
        "integer": "number",
        "number": "number",
        "boolean": "boolean",
        "object": "object",
    }.get(kind.name, "")


def agreed(name: str, declared: Property, entry: Entry) -> Entry:
    """Return the part of an entry that fits the property's type and does not contradict its documentation."""
    kind, docs, kept = scalar(declared.kind), declared.docs, relaxed(name, entry)
    foreign = {"text": NUMBERS, "number": (*LENGTHS, "pattern")}.get(kind, (*kept, *NUMBERS))
    kept = without(kept, *foreign)
    if declared.kind.name != "list":
        kept = without(kept, *ITEMS)
    if values := kept.get("enum"):
        lower = {value.lower() for value in values}
        words = [*map(str, declared.kind.values), *docs.values]
        if words and not lower & {word.lower() for word in words}:
            kept.pop("enum")
    for keywords, documented in ((NUMBERS, docs.numbers), (LENGTHS, docs.length)):
        if not _covers(pair(kept, keywords), documented):
            kept = without(kept, *keywords)
    return kept


def _covers(limits: Pair, docs: Pair) -> bool:
    low, high = limits
    return not (
        (low is not None and docs[0] is not None and docs[0] < low)
        or (high is not None and docs[1] is not None and docs[1] > high)
    )


def anchored(pattern: str) -> str:
    """Return a pattern that matches a whole text: `.*` replaces the missing anchor of a half-anchored one."""
    if pattern.startswith("^") == pattern.endswith("$") or "|" in pattern or not pattern:
        return pattern
    return f"{pattern}.*" if pattern.startswith("^") else f".*{pattern}"


_DIGITS = re.compile(r"(\[[^\]]+\]|\\[dwS])\{(?!12\})(\d+)(?:,\d*)?\}")


def relaxed(name: str, entry: Entry) -> Entry:
    """Return the entry of an id without its exact length, because people shorten ids."""
    if not re.search(r"(?<!ccount)(Id|Arn|Identifier)s?$|^(id|arn)s?$", name):
        return entry
    found = without(entry, "minLength")
    if pattern := found.pop("pattern", ""):
        loose = _DIGITS.sub(lambda digits: digits[1] + ("*" if digits[2] == "0" else "+"), pattern)
        if usable(loose):
            found["pattern"] = loose
    return found


def usable(pattern: str) -> bool:
    """Return whether a pattern can check a whole text: valid in Python, and neither trivial nor too long."""
    if (
        len(pattern) > 600
        or "\\\\" in pattern
        or (pattern.startswith("/") and pattern.endswith("/"))
        or re.search(
            r"\\p\{|\\P\{|\[:|&&|\\[hXZRG]|\(\?<[a-z]|\\x\{|[\uD800-\uDFFF]|\\u\{|\\uD[89a-fA-F]", pattern
        )
    ):
        return False
    if not re.search(r"[*+{?|]", pattern) or re.fullmatch(
        r"[\^]?[(]?(\.|\[\\s\\S\]|\[\^\]|\\S)[*+]?[)]?[$]?", pattern
    ):
        return False
    try:
        expression = re.compile(pattern)
    except re.error:
        return False
    return not (expression.fullmatch("~!#% \u00e9\n") and expression.fullmatch("a"))


def final(entry: Entry) -> Entry:
    """Return an entry as it is written: with a pattern for the whole text."""
    return {**entry, "pattern": whole(entry["pattern"])} if "pattern" in entry else entry


def write(
    package: str,
    source: str,
    found: Iterable[GatheredFact],
    where: Path | None = None,
    rules: dict[str, dict[str, list[dict[str, Any]]]] | None = None,
) -> dict[str, int]:
    """Write a package's files and return the number of facts in each. Stale files are deleted.

    The files go to `where`, or else to the folder of the module (`places.py`).
    `rules` are rows for `rules/reader.py` by module and type (see `relations.py`).
    """
    modules: dict[str, list[GatheredFact]] = defaultdict(list)
    for item in found:
        if item.entry:
            modules[item.module].append(item)
    for module in rules or ():
        modules.setdefault(module, [])
    files = {
        module: (where / package if where else folder_of(package, module)) / f"{module}.json"
        for module in modules
    }
    for folder in {file.parent for file in files.values()}:
        folder.mkdir(parents=True, exist_ok=True)
        for old in set(folder.glob("*.json")) - set(files.values()):
            old.unlink()
    for module, items in sorted(modules.items()):
        files[module].write_text(_text(source, items, (rules or {}).get(module, {})))
    return {module: len(items) for module, items in sorted(modules.items())}


def _text(source: str, items: list[GatheredFact], rules: dict[str, list[dict[str, Any]]]) -> str:
    shapes: dict[str, Entry] = {}
    names: dict[tuple[str, str], str] = {}
    types: dict[str, dict[str, str]] = defaultdict(dict)
    for item in sorted(items, key=lambda item: (item.cls, item.name, item.shape)):
        key = (item.shape, json.dumps(item.entry, sort_keys=True))
        if key not in names:
            number = 1
            while (name := item.shape if number == 1 else f"{item.shape}.{number}") in shapes:
                number += 1
            names[key], shapes[name] = name, final(item.entry)
        types[item.cls][item.name] = names[key]
    lines = [f'{{"source": {json.dumps(source)},', '"shapes": {']
    lines += [
        ",\n".join(
            f"{json.dumps(name)}: {json.dumps(entry, sort_keys=True, separators=(',', ':'))}"
            for name, entry in sorted(shapes.items())
        )
    ]
    lines += ["},", '"types": {']
    lines += [
        ",\n".join(
            f"{json.dumps(cls)}: {json.dumps(held, sort_keys=True, separators=(',', ':'))}"
            for cls, held in sorted(types.items())
        )
    ]
    if rules:
        lines += ["},", '"rules": {']
        lines += [
            ",\n".join(
                f"{json.dumps(name)}: {json.dumps(rows, sort_keys=True, separators=(',', ':'))}"
                for name, rows in sorted(rules.items())
            )
        ]
    return "\n".join([*lines, "}}", ""])
