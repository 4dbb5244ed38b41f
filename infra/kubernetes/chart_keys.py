"""The keys that each chart and custom resource accepts. A misspelt key is rejected before anything is
installed.

Helm ignores unknown values, and an API server drops unknown fields. chart_keys.json lists the keys that are
used, as of the pinned versions; `*` is any mapping. Update it when a chart's version changes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.suggestions import did_you_mean

ANYTHING = "*"


@cache
def known() -> dict[str, Any]:
    """The whole table: `charts` by name (version, values) and `kinds` by group/version:Kind."""
    found: dict[str, Any] = json.loads(
        (files("trainfleet.infra.kubernetes") / "chart_keys.json").read_bytes()
    )
    return found


def refuse_unknown(what: str, keys: Any, document: Any) -> None:
    """Validate every key of a document.

    Raises:
        TrainfleetError: with every key that `keys` does not have.
    """
    problems = list(_unknown(keys, document, ""))
    if problems:
        raise TrainfleetError(f"{what} has unknown keys", problems)


def _unknown(keys: Any, node: Any, path: str) -> Iterator[Problem]:
    if keys == ANYTHING:
        return
    if isinstance(node, list | tuple):
        for index, item in enumerate(node):
            yield from _unknown(keys, item, f"{path}[{index}]")
    elif isinstance(node, dict):
        for name, member in node.items():
            where = f"{path}.{name}" if path else name
            if isinstance(keys, dict) and name in keys:
                yield from _unknown(keys[name], member, where)
            else:
                yield Problem(where, "is not a valid key", did_you_mean(name, keys or ()))
