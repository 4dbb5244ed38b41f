"""The day by which rules with a date are checked: today, or TRAINFLEET_DATE, which `--date` sets."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import date

from trainfleet.errors import InputError, Problem

VARIABLE = "TRAINFLEET_DATE"


def today() -> date:
    """Return today, or the day of TRAINFLEET_DATE.

    Raises:
        InputError: TRAINFLEET_DATE is not a day.
    """
    written = os.environ.get(VARIABLE, "")
    return _day(written, VARIABLE) if written else date.today()


def set_today(written: str) -> None:
    """Check as of another day, in this process and in the processes that it starts. Empty = today.

    Raises:
        InputError: not a day.
    """
    if written:
        os.environ[VARIABLE] = _day(written, "--date").isoformat()


@contextlib.contextmanager
def as_of(day: date | None) -> Iterator[None]:
    """Check as of another day within the block. None = change nothing."""
    before = os.environ.get(VARIABLE)
    if day is not None:
        os.environ[VARIABLE] = day.isoformat()
    try:
        yield
    finally:
        if day is not None:
            os.environ.pop(VARIABLE, None)
            if before is not None:
                os.environ[VARIABLE] = before


def _day(written: str, where: str) -> date:
    try:
        return date.fromisoformat(written)
    except ValueError:
        problem = Problem(where, f"`{written}` is not a day", "year-month-day, for example 2026-12-31")
        raise InputError("a date cannot be read", [problem]) from None
