"""Builds the JSON Schemas of limits: pairs of limits, whole patterns, and values outside a range."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

Entry = dict[str, Any]
Pair = tuple[float | None, float | None]
NUMBERS, LENGTHS, ITEMS = ("minimum", "maximum"), ("minLength", "maxLength"), ("minItems", "maxItems")


def limits(keywords: tuple[str, str], low: float | None, high: float | None) -> Entry:
    """Return the two keywords of a pair, without those that are None."""
    return {key: limit for key, limit in zip(keywords, (low, high), strict=True) if limit is not None}


def pair(entry: Entry, keywords: tuple[str, str]) -> Pair:
    """Return the limits of a pair of keywords, also of those next to values outside the range."""
    held = split(entry)[0]
    return held.get(keywords[0]), held.get(keywords[1])


def without(entry: Entry, *keywords: str) -> Entry:
    """Return an entry without some keywords. Without its range, it has no values outside of it either."""
    held, also = split(entry)
    gone = {key for key in keywords if key in held}
    kept = {key: value for key, value in held.items() if key not in keywords}
    return kept if gone & set(NUMBERS) else joined(kept, also)


def split(entry: Entry) -> tuple[Entry, list[Any]]:
    """Return an entry without `anyOf`, and the values that are valid although they are outside its range."""
    if "anyOf" not in entry:
        return dict(entry), []
    values, held = entry["anyOf"]
    return {**{key: value for key, value in entry.items() if key != "anyOf"}, **held}, list(values["enum"])


def joined(entry: Entry, also: Iterable[Any]) -> Entry:
    """Return an entry whose range does not hold for some values."""
    also = list(also)
    held = {key: value for key, value in entry.items() if key in NUMBERS}
    rest = {key: value for key, value in entry.items() if key not in NUMBERS}
    return {**rest, "anyOf": [{"enum": also}, held]} if also and held else dict(entry)


def whole(pattern: str) -> str:
    """Return a pattern that has to match the whole text."""
    flags = match[0] if (match := re.match(r"\(\?[aimsx]+\)", pattern)) else ""
    inner = pattern[len(flags) :]
    if _has_choice(inner):
        return f"{flags}^(?:{inner})$"
    ends = re.search(r"(?<!\\)(?:\\\\)*\$$", inner) is not None
    return f"{flags}{'' if inner.startswith('^') else '^'}{inner}{'' if ends else '$'}"


def _has_choice(pattern: str) -> bool:
    """Return whether a pattern has a `|` outside of groups and classes."""
    bare = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "", pattern)
    while (inner := re.sub(r"\([^()]*\)", "", bare)) != bare:
        bare = inner
    return "|" in bare
