"""Ids that are paths built from a resource's inputs, as in Google Cloud and Azure.

A template is text with `{input}` placeholders. The cloud generates `{uuid}` and `{number}`.
"""

from __future__ import annotations

import re
import uuid
from typing import Any

from trainfleet.rehearsal.simulation.values import digest

_FIELD = re.compile(r"\{(\w+)\}")


def fields(template: str) -> list[str]:
    """Return the inputs that a template names, in order."""
    return _FIELD.findall(template)


def filled(template: str, values: dict[str, Any], random: str) -> str:
    """Return a template with its inputs filled in. A missing input becomes a dash."""
    made = {"uuid": guid(random, template), "number": str(int(digest(random, template)[:12], 16))}
    return _FIELD.sub(lambda field: str(values.get(field[1]) or made.get(field[1]) or "-"), template)


def guid(*seed: str) -> str:
    """Return a UUID that depends only on the seed."""
    return str(uuid.UUID(hex=digest(*seed)[:32], version=4))


def plural(kind: str) -> str:
    """Return `nodePools` for `NodePool`."""
    word = kind[:1].lower() + kind[1:]
    if word.endswith(("s", "x", "ch")):
        return word if word.endswith("s") else f"{word}es"
    return f"{word[:-1]}ies" if word.endswith("y") and word[-2:-1] not in "aeiou" else f"{word}s"
