"""Reads a time as options and the YAML of `--clusters` write it."""

from __future__ import annotations

import math

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def seconds_of(value: object) -> float:
    """A time in seconds from `30` (minutes), `90s`, `5m` or `2h`.

    Raises:
        ValueError: it is not a time; the text says what is.
    """
    word = str(value).strip()
    unit = word[-1:] if word[-1:] in UNITS else "m"
    try:
        seconds = float(word.removesuffix(unit)) * UNITS[unit]
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValueError(f"{word!r} is not a time: use minutes, or a unit as in 90s, 5m, 2h")
    return seconds
