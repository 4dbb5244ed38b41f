"""Parsers for Kubernetes value formats: quantities, names, label keys and label values.

Source: kubernetes apimachinery (api/resource/quantity.go, util/validation).
"""

from __future__ import annotations

import re
from decimal import Decimal

from trainfleet.api_limits import limit

_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?\d+)?")
_FACTORS = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
LABEL = re.compile(limit("kubernetes.label", "pattern"))
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
DNS_1035 = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
SUBDOMAIN = re.compile(limit("kubernetes.label_prefix", "pattern"))


def amount(text: object) -> Decimal | None:
    """Return a quantity as a number, or None if it is invalid."""
    match = _QUANTITY.fullmatch(str(text))
    if match is None or isinstance(text, bool):
        return None
    number, suffix = Decimal(match.group(1)), match.group(2) or ""
    if suffix in _BINARY:
        return number * Decimal(1024) ** (_BINARY.index(suffix) + 1)
    power = _FACTORS[suffix] if suffix in _FACTORS else int(suffix[1:]) if suffix else 0
    return number.scaleb(power)


def label_key_fault(key: str) -> str:
    """Return what is wrong with the key of a label or annotation; empty if it is valid."""
    prefix, slash, name = key.rpartition("/")
    if slash and (not SUBDOMAIN.fullmatch(prefix) or len(prefix) > 253):
        return "the part before / must be a DNS name in lowercase letters"
    return (
        ""
        if LABEL.fullmatch(name)
        else "at most 63 letters, digits, - _ and ., beginning and ending with a letter or digit"
    )


def subdomain(name: str, most: int = 253) -> bool:
    """Return whether a name is a DNS subdomain."""
    return len(name) <= most and SUBDOMAIN.fullmatch(name) is not None
