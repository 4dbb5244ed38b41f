"""Reads limits from the documentation in an API model, whose HTML it converts for `docstrings.read`.

Many AWS services document limits only in prose ("Must be a value from 0 to 35").
"""

from __future__ import annotations

import html
import re

from tools.api_facts.keywords import LENGTHS, NUMBERS, Entry, joined, limits
from trainfleet.rehearsal.simulation.docstrings import read

_CODE = re.compile(r"<code>(.*?)</code>", re.S)
_IDENTIFIER = r"(?!.*--)[a-zA-Z][a-zA-Z0-9-]*(?<!-)"


def text(document: str) -> str:
    """Return the documentation in an API model as text: code in backticks, list items with asterisks."""
    plain = _CODE.sub(lambda found: " | ".join(f"`{word.strip()}`" for word in found[1].split("|")), document)
    plain = re.sub(r"\s*<li>\s*(?:<p>)?\s*", "\n* ", plain)
    plain = re.sub(r"</p>|</ul>|<br/?>", "\n\n", plain)
    plain = html.unescape(re.sub(r"<[^>]+>", "", plain))
    plain = re.sub(
        r"(?i)\b(?:must|can)(?: only)? contain (?:from )?(\d+)(?: to | and |-)(\d+)"
        r" (?:letters|alphanumeric|ASCII|lowercase)",
        r"between \1 and \2 characters",
        plain,
    )
    plain = re.sub(
        r"(?i)\bmust be (\d+) to (\d+) (?:letters|alphanumeric)", r"between \1 and \2 characters", plain
    )
    plain = re.sub(
        r"(?i)\bmust be between (\d+) and (\d+) characters", r"between \1 and \2 characters", plain
    )
    return re.sub(r"[ \t]+", " ", plain).strip()


def promised(document: str, kind: str) -> Entry:
    """Return the facts about a text or a number in a member's documentation."""
    words = text(document)
    if not words or kind not in ("text", "number"):
        return {}
    plain = read(words, number=kind == "number")
    found: Entry = {}
    if kind == "number":
        if plain.numbers != (None, None):
            found |= limits(NUMBERS, *map(_whole, plain.numbers))
        elif plain.values and plain.closed:
            found["enum"] = list(plain.values)
        low, high = plain.numbers
        mentioned = sorted(int(word) for word in plain.mentioned if re.fullmatch(r"-?\d{1,9}", word))
        mentioned = [
            number
            for number in mentioned
            if (low is not None and number < low) or (high is not None and number > high)
        ]
        return joined(found, map(str, mentioned))
    if plain.values and plain.closed:
        found["enum"] = sorted(
            {*plain.values, *(word for word in plain.mentioned if re.fullmatch(r"[\w.:/+-]{1,60}", word))}
        )
    elif plain.length != (None, None):
        found |= limits(LENGTHS, *plain.length)
        if re.search(r"(?i)first character must be a letter", words) and re.search(
            r"(?i)consecutive hyphens", words
        ):
            found["pattern"] = _IDENTIFIER
    return found


def _whole(limit: float | None) -> float | int | None:
    return int(limit) if limit is not None and float(limit).is_integer() else limit
