"""Suggests the closest valid name for an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the member of `names` closest to `name`, or None when none is close. Case, `_` and `-` are
    ignored.

    Swapped letters are closer than other differences: `us-esat-2` gives us-east-2, not us-west-2.
    """
    wrong = _plain(name)
    plain = {_plain(candidate): candidate for candidate in sorted(names, reverse=True)}
    swapped = [candidate for candidate in plain if sorted(candidate) == sorted(wrong)]
    found = difflib.get_close_matches(wrong, swapped or list(plain), n=1, cutoff=0.6)
    return plain[found[0]] if found else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the text of a `Problem.fix`: the closest name, or all names when none is close."""
    known = sorted(names)
    if match := nearest(name, known):
        return f"did you mean `{match}`?"
    return f"known: {', '.join(known)}" if len(known) <= 30 else f"{len(known)} names are known, none is near"


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()
