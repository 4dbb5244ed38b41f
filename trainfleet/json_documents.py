"""Parses JSON that somebody else wrote, within limits that the rest of the code relies on."""

from __future__ import annotations

import json
import re
from typing import Any

DEEPEST = 200
"""Levels of nesting that the recursive readers of a document can follow."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


def parse(text: str) -> Any:
    """Return the value of JSON text. Half a surrogate pair, which cannot be printed, becomes U+FFFD.

    Raises:
        ValueError: it is not JSON, or is nested more than `DEEPEST` deep.
    """
    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError(f"is nested more than {DEEPEST} deep") from None
    if text.count("[") + text.count("{") > DEEPEST and _depth(document) > DEEPEST:
        raise ValueError(f"is nested more than {DEEPEST} deep")
    return _printable(document) if _SURROGATE.search(text) else document


def _depth(document: Any) -> int:
    depth, level = 0, [document]
    while level := [each for each in level if isinstance(each, dict | list) and each]:
        depth += 1
        if depth > DEEPEST:
            break
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
    return depth


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_printable(key): _printable(inner) for key, inner in value.items()}
    return [_printable(inner) for inner in value] if isinstance(value, list) else value
