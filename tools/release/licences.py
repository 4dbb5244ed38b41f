"""Checks the licences of all packages that a bill of materials names."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trainfleet.errors import Problem

TABLE = Path(__file__).with_name("licences.toml")


def licences_of(component: Mapping[str, Any], names: Mapping[str, str]) -> set[str]:
    """The SPDX ids of a CycloneDX component: each part of an expression, and what classifiers mean."""
    found: set[str] = set()
    for each in component.get("licenses") or ():
        if "expression" in each:
            found |= set(re.split(r"[\s()]+|\bAND\b|\bOR\b|\bWITH\b", each["expression"])) - {""}
        else:
            text = each["license"].get("id") or each["license"].get("name", "")
            found.add(names.get(text, text))
    return found


def licence_problems(components: Iterable[Mapping[str, Any]], table: Path = TABLE) -> list[Problem]:
    """Packages with a licence that is neither accepted nor explained, and rows that no package needs."""
    rows = tomllib.loads(table.read_text(encoding="utf-8"))
    accepted, explained, used, problems = set(rows["accepted"]), rows["packages"], set[str](), []
    for component in components:
        name = re.sub(r"[-_.]+", "-", component["name"]).lower()
        if name in explained:
            used.add(name)
            continue
        if any(name.startswith(start) for start in rows["families"]):
            continue
        found = licences_of(component, rows["names"])
        if not found:
            problems.append(Problem(name, "states no licence", f"a row in {table.name}, with its source"))
        elif other := sorted(found - accepted):
            problems.append(Problem(name, f"has {', '.join(other)}", f"a row in {table.name}, or no {name}"))
    unused = explained.keys() - used
    problems += [Problem(table.name, f"explains {name}, which is not installed") for name in sorted(unused)]
    return problems
