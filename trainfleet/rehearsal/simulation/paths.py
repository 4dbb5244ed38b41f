"""Ids that are paths made of a resource's inputs, as Google Cloud and Azure have them: templates, and how
they are filled.

A template is text with `{input}` in it; `{uuid}` and `{number}` are made up by the cloud. Used by `gcp.py`
and `azure.py`.
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
    """Return a template with its inputs in place; one that is not there stands as a dash."""
    made = {"uuid": guid(random, template), "number": str(int(digest(random, template)[:12], 16))}
    return _FIELD.sub(lambda field: str(values.get(field[1]) or made.get(field[1]) or "-"), template)


def guid(*seed: str) -> str:
    """Return a UUID that depends on the seed alone."""
    return str(uuid.UUID(hex=digest(*seed)[:32], version=4))


def plural(kind: str) -> str:
    """Return `nodePools` of `NodePool`."""
    word = kind[:1].lower() + kind[1:]
    if word.endswith(("s", "x", "ch")):
        return word if word.endswith("s") else f"{word}es"
    return f"{word[:-1]}ies" if word.endswith("y") and word[-2:-1] not in "aeiou" else f"{word}s"
