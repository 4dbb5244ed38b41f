"""Checks schedules and time zones: five-field cron (Kubernetes, Cloud Scheduler) and EventBridge schedules.

Sources: robfig/cron, standard parser; Cloud Scheduler, cron job format; Amazon EventBridge user guide,
schedule expressions: cron(), rate() and at().
"""

from __future__ import annotations

import functools
import re
import zoneinfo
from dataclasses import dataclass
from datetime import datetime

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MACROS = frozenset({"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"})


@dataclass(frozen=True)
class Field:
    """One field of a cron schedule: its name, its range, aliases for its numbers, and other valid values."""

    name: str
    low: int
    high: int
    words: tuple[str, ...] = ()
    special: str = "(?!)"

    def fault(self, text: str) -> str:
        """Return what is wrong with the text of this field; empty if it is valid."""
        return next((found for part in text.split(",") if (found := self._part(part))), "")

    def _part(self, text: str) -> str:
        span, slash, step = text.partition("/")
        if re.fullmatch(self.special, text):
            return ""
        if slash and not (step.isdigit() and int(step) > 0):
            return f"{text!r} is not a valid {self.name}"
        if span in ("*", "?"):
            return ""
        ends = [self._number(end) for end in span.split("-")]
        if len(ends) > 2 or None in ends:
            return f"{text!r} is not a valid {self.name}"
        numbers = [end for end in ends if end is not None]
        if any(not self.low <= number <= self.high for number in numbers) or (
            numbers != sorted(numbers) and not self.words
        ):
            return f"{text!r} is not a valid {self.name}, which is from {self.low} to {self.high}"
        return ""

    def _number(self, text: str) -> int | None:
        if text.lower() in self.words:
            return self.words.index(text.lower()) + max(self.low, 0)
        return int(text) if text.isdigit() else None


_UNIX = (
    Field("minute", 0, 59),
    Field("hour", 0, 23),
    Field("day", 1, 31),
    Field("month", 1, 12, _MONTHS),
    Field("weekday", 0, 7, _DAYS),
)
_EVENTBRIDGE = (
    *_UNIX[:2],
    Field("day", 1, 31, special=r"L|LW|L-\d{1,2}|(?:[1-9]|[12]\d|3[01])W"),
    _UNIX[3],
    Field("weekday", 1, 7, _DAYS, special=r"(?i:L|(?:[1-7]|sun|mon|tue|wed|thu|fri|sat)(?:L|#[1-5]))"),
    Field("year", 1970, 2199),
)


def cron_fault(text: str) -> str:
    """Return what is wrong with a Kubernetes cron schedule; empty if it is valid."""
    if text.startswith("@"):
        return "" if text in _MACROS or re.fullmatch(r"@every (\d+(h|m|s|ms|us))+", text) else "unknown macro"
    if text.startswith(("TZ=", "CRON_TZ=")):
        return "the time zone belongs in timeZone"
    return _fields(text, _UNIX)


def _fields(text: str, fields: tuple[Field, ...]) -> str:
    parts = text.split()
    if len(parts) != len(fields):
        return f"it has {len(parts)} fields and needs {len(fields)}"
    found = next(
        (found for part, field in zip(parts, fields, strict=True) if (found := field.fault(part))), ""
    )
    return found


_WEEKDAY = r"(?:day|sun|mon|tue|wed|thu|fri|sat)\w*"
_ENGLISH = re.compile(
    rf"(?i)every\s+(?:\d+\s+(?:minutes?|mins?|hours?)(?:\s+synchronized|\s+from\s+.+)?|(?:{_WEEKDAY}|minute|hour|\d+\w*).*)"
    r"|(?:\d+(?:st|nd|rd|th)?|first|second|third|fourth|fifth)[\s,].*\b(?:of|day|month|mon|tue|wed|thu|fri|sat|sun)\w*\b.*"
)
_UNFINISHED = re.compile(r"(?i)every\s+\d+(?:\s+(?:minutes?|mins?|hours?)\s+(?!synchronized|from\b).*)?")


def google_fault(text: str) -> str:
    """Return what is wrong with a Cloud Scheduler schedule; empty if it is valid.

    The formats are unix-cron and App Engine's ("every 5 minutes", "every monday 09:00").
    """
    if text in _MACROS or (_ENGLISH.fullmatch(text) and not _UNFINISHED.fullmatch(text)):
        return ""
    return _fields(text, _UNIX)


def amazon_fault(text: str) -> str:
    """Return what is wrong with a schedule in EventBridge syntax; empty if it is valid."""
    form = re.fullmatch(r"(cron|rate|at)\((.*)\)", text, re.S)
    if form is None:
        return "it must be rate(...), cron(...) or at(...)"
    word, inside = form[1], form[2].strip()
    if word == "at":
        return _moment(inside)
    if word == "rate":
        return _rate(inside)
    if found := _fields(inside, _EVENTBRIDGE):
        return found
    day, weekday = inside.split()[2], inside.split()[4]
    return "one of day and weekday must be ?" if (day == "?") == (weekday == "?") else ""


def _rate(text: str) -> str:
    found = re.fullmatch(r"(\d+)\s+(minute|hour|day)(s?)", text)
    if found is None or int(found[1]) < 1:
        return f"{text!r} is not a rate"
    # EventBridge Scheduler also accepts and documents `1 hours`; no service accepts `5 minute`.
    return f"{text!r}: more than one are {found[2]}s" if int(found[1]) > 1 and not found[3] else ""


def _moment(text: str) -> str:
    try:
        datetime.strptime(text, "%Y-%m-%dT%H:%M:%S")
    except ValueError:
        return f"{text!r} is not a time like 2027-01-31T09:00:00"
    return ""


FAULTS = {"kubernetes": cron_fault, "google": google_fault, "amazon": amazon_fault}


@functools.cache
def _zones() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())


def zone_fault(text: str, *, any_case: bool = False) -> str:
    """Return what is wrong with a time zone name; empty if it is valid.

    Without a time zone database on this machine, only the format is checked.
    """
    zones = _zones()
    if not zones:
        return (
            ""
            if re.fullmatch(r"[A-Za-z][\w+-]*(/[\w+-]+){0,2}", text)
            else "it is not the name of a time zone"
        )
    if text in zones or (any_case and text.lower() in {zone.lower() for zone in zones}):
        return ""
    return "it is not a name in the IANA time zone database"
