"""Rules between properties that were gathered with the facts, under `rules` in facts/<package>/<module>.json.

Their rows have the format of rules/*.toml, and `rules/reader.py` adds them to the rows written by hand.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from trainfleet.rehearsal.simulation.facts import facts_file

Row = dict[str, Any]


def gathered_rows(package: str, short: str) -> tuple[Row, ...]:
    """Return the gathered rows of a type, whose token has no package."""
    module = short.partition("/")[0].partition(":")[0]
    return tuple(_rules(facts_file(package.replace("-", "_"), module)).get(short, ()))


@functools.cache
def _rules(file: Path | None) -> dict[str, list[Row]]:
    if file is None:
        return {}
    rules: dict[str, list[Row]] = json.loads(file.read_text()).get("rules", {})
    return rules
