"""Offers the nearest right name for a wrong one; used by every check that refuses an unknown key."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the member of `names` most like `name` (case and `_`/`-` aside), or None when none is close.

    Swapped letters count as closer than others: `us-esat-2` is us-east-2 and not us-west-2.
    """
    wrong = _plain(name)
    plain = {_plain(candidate): candidate for candidate in sorted(names, reverse=True)}
    swapped = [candidate for candidate in plain if sorted(candidate) == sorted(wrong)]
    found = difflib.get_close_matches(wrong, swapped or list(plain), n=1, cutoff=0.6)
    return plain[found[0]] if found else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the sentence for a `Problem.fix`: the nearest name, or all of them when none is near."""
    known = sorted(names)
    if match := nearest(name, known):
        return f"did you mean `{match}`?"
    return f"known: {', '.join(known)}" if len(known) <= 30 else f"{len(known)} names are known, none is near"


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()
