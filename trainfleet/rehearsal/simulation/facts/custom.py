"""The schemas of custom resources of well-known projects (Kueue, cert-manager, External Secrets …), by group.

`tools/api_facts/gather_crds.py` writes them. A group is read on first use.
"""

from __future__ import annotations

import functools
import json
from typing import Any

from trainfleet.rehearsal.simulation.facts import FACTS

Schema = dict[str, Any]


@functools.cache
def custom_kinds(group: str) -> dict[str, Schema]:
    """Return the schemas of a group by `version:Kind`; empty if none were gathered."""
    file = FACTS / "kubernetes" / f"{group}.json"
    if "/" in group or not file.is_file():
        return {}
    held = json.loads(file.read_text())
    parts: dict[str, Schema] = held["parts"]
    known: dict[str, Schema] = {}

    def whole(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if name := value.get("$ref") if isinstance(value.get("$ref"), str) else None:
            if name not in known:
                known[name] = whole(parts[name])
            return known[name]
        return {key: whole(item) for key, item in value.items()}

    return {kind: whole(schema) for kind, schema in held["kinds"].items()}
