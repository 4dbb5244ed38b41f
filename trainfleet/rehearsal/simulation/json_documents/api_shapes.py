"""Checks documents in the form of an API shape, such as the containers of ECS and Batch.

The shapes are the models that `tools/api_facts/gather_aws.py` reads.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

from trainfleet.rehearsal.simulation.custom_resources import value_mistakes
from trainfleet.rehearsal.simulation.facts import facts_file
from trainfleet.rehearsal.simulation.json_documents.findings import Finding


@functools.cache
def _shape(name: str) -> dict[str, Any] | None:
    """The schema of a document; None without the optional package `trainfleet-api-facts`."""
    file = facts_file("aws_documents", name)
    held: dict[str, Any] | None = json.loads(file.read_text())["schema"] if file else None
    return held


def modelled(name: str) -> Callable[[Any], Iterator[Finding]]:
    """Return a check of documents in the form of an API shape."""

    def check(value: Any) -> Iterator[Finding]:
        schema = _shape(name)
        if schema is None:
            return
        if isinstance(value, dict) and schema["type"] == "array":
            yield "", "must be a list, not an object", ""
            return
        for mistake in value_mistakes("", _spelt(value, schema), schema):
            yield mistake.path.lstrip("."), mistake.what, mistake.fix

    return check


def _spelt(value: Any, schema: dict[str, Any]) -> Any:
    """Return a document with the capitalization of the model and without nulls."""
    if isinstance(value, list):
        return [_spelt(item, schema.get("items") or {}) for item in value]
    properties = schema.get("properties")
    if not isinstance(value, dict) or not properties:
        return value
    names = {name.lower(): name for name in properties}
    spelt = {names.get(key.lower(), key): item for key, item in value.items() if item is not None}
    return {key: _spelt(item, properties.get(key) or {}) for key, item in spelt.items()}
