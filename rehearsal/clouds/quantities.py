"""Kubernetes' own small languages: quantities, names, label keys and values, cron schedules.

Used by `pods.py`, `kubernetes.py` and the rules. Sources: kubernetes apimachinery (api/resource/quantity.go,
util/validation) and robfig/cron, standard parser. Easy to get wrong: `500m` is half a core and `500M` are megabytes; `8Gb` is nothing.
"""

from __future__ import annotations

import re
from decimal import Decimal

_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?\d+)?")
_FACTORS = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
DNS_1035 = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def amount(text: object) -> Decimal | None:
    """Return a quantity as a number, or None when it is none."""
    match = _QUANTITY.fullmatch(str(text))
    if match is None or isinstance(text, bool):
        return None
    number, suffix = Decimal(match.group(1)), match.group(2) or ""
    if suffix in _BINARY:
        return number * Decimal(1024) ** (_BINARY.index(suffix) + 1)
    power = _FACTORS[suffix] if suffix in _FACTORS else int(suffix[1:]) if suffix else 0
    return number.scaleb(power)


def label_key_fault(key: str) -> str:
    """Return what is wrong with the key of a label or annotation."""
    prefix, slash, name = key.rpartition("/")
    if slash and (not SUBDOMAIN.fullmatch(prefix) or len(prefix) > 253):
        return "the part before / must be a DNS name in small letters"
    return "" if LABEL.fullmatch(name) else "at most 63 letters, digits, - _ and ., beginning and ending with a letter or digit"


def subdomain(name: str, most: int = 253) -> bool:
    """Say whether a name is a DNS subdomain."""
    return len(name) <= most and SUBDOMAIN.fullmatch(name) is not None


_FIELDS = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day", 1, 31, ()),
    ("month", 1, 12, ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]),
)
_WEEKDAY = ("weekday", 0, 7, ["sun", "mon", "tue", "wed", "thu", "fri", "sat"])


def cron_fault(text: str) -> str:
    """Return what is wrong with a cron schedule."""
    if text.startswith("@"):
        known = {"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"}
        return "" if text in known or re.fullmatch(r"@every (\d+(h|m|s|ms|us))+", text) else "unknown macro"
    if text.startswith(("TZ=", "CRON_TZ=")):
        return "the time zone belongs in timeZone"
    fields = text.split()
    if len(fields) != 5:
        return f"it has {len(fields)} fields and needs 5"
    for value, (name, low, high, words) in zip(fields, (*_FIELDS, _WEEKDAY), strict=True):
        for part in value.split(","):
            span, _, step = part.partition("/")
            ends = [str(words.index(end.lower()[:3]) + (name == "month")) if end.lower()[:3] in words else end for end in span.split("-")]
            numbers = [int(end) for end in ends if end.isdigit()]
            whole = span in ("*", "?")
            if (step and not (step.isdigit() and int(step) > 0)) or (not whole and (len(numbers) != len(ends) or len(ends) > 2)):
                return f"{value!r} is no {name}"
            if not whole and (any(not low <= number <= high for number in numbers) or numbers != sorted(numbers)):
                return f"{value!r} is no {name}, which is from {low} to {high}"
    return ""
