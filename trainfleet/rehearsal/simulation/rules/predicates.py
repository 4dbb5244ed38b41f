"""The predicates of the rules: each function checks one value and returns what is wrong with it, or nothing.

The functions' names are the keys of a row in the TOML files. A function receives the value (known and not
empty) and the row's argument.
"""

# ruff: noqa: ARG001 - every predicate takes the row's argument, even if it is only `true`

from __future__ import annotations

import difflib
import ipaddress
import json
import re
from collections.abc import Callable
from typing import Any

from trainfleet.rehearsal.simulation.json_documents.documents import document_mistakes
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN
from trainfleet.rehearsal.simulation.schedules import FAULTS, zone_fault
from trainfleet.suggestions import did_you_mean, nearest

ALL_BUT = 0.85

Violation = tuple[str, str]
"""What is wrong, and how to fix it."""


def shown(value: Any) -> str:
    """Return a value in the form that a message shows."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def matches(value: Any, expression: str) -> list[Violation]:
    return (
        []
        if re.fullmatch(expression, str(value), re.S)
        else [(f"{shown(value)} is not valid here", f"it must match {expression}")]
    )


def not_matches(value: Any, expression: str) -> list[Violation]:
    return (
        [(f"{shown(value)} is not valid here", f"it must not match {expression}")]
        if re.search(expression, str(value))
        else []
    )


def one_of(value: Any, values: list[Any]) -> list[Violation]:
    known = [str(choice) for choice in values]
    return (
        []
        if str(value) in known
        else [(f"{shown(value)} is not one of the values", did_you_mean(str(value), known))]
    )


def within(value: Any, limits: list[float]) -> list[Violation]:
    number = _number(value)
    low, high = limits
    if number is None or low <= number <= high:
        return []
    return [(f"{shown(value)} is out of range", f"it must be from {low:.15g} to {high:.15g}")]


def step(value: Any, size: int) -> list[Violation]:
    number = _number(value)
    return (
        []
        if number is None or number % size == 0
        else [(f"{shown(value)} is not a multiple of {size}", f"it must be a multiple of {size}")]
    )


def length(value: Any, limits: list[int]) -> list[Violation]:
    low, high = limits
    if low <= len(str(value)) <= high:
        return []
    return [(f"{shown(value)} has {len(str(value))} characters", f"it must have from {low} to {high}")]


def count(value: Any, limits: list[int]) -> list[Violation]:
    low, high = limits
    if not isinstance(value, (list, dict)) or low <= len(value) <= high:
        return []
    return [(f"has {len(value)} entries", f"it must have from {low} to {high}")]


def keys(value: Any, expression: str) -> list[Violation]:
    """Check that every key of a map matches a pattern."""
    wrong = (
        [key for key in value if not re.fullmatch(expression, str(key))] if isinstance(value, dict) else []
    )
    return [(f"{shown(key)} is not a valid key", f"a key must match {expression}") for key in wrong]


def characters(value: Any, most: int) -> list[Violation]:
    """Check that a text has at most `most` characters, not counting whitespace."""
    number = len(re.sub(r"\s", "", value)) if isinstance(value, str) else 0
    return [(f"has {number} characters", f"at most {most} are allowed")] if number > most else []


def cidr(value: Any, prefix: list[int]) -> list[Violation]:
    """Check an address range that starts at its network address and has a prefix length within `prefix`."""
    return _cidr(value, prefix, strict=True)


def cidr_of_host(value: Any, prefix: list[int]) -> list[Violation]:
    """Check an address range as `cidr` does, but allow one that starts at any address of its network."""
    return _cidr(value, prefix, strict=False)


def _cidr(value: Any, prefix: list[int], *, strict: bool) -> list[Violation]:
    example = "an address range like 10.0.0.0/16"
    if not isinstance(value, str) or "/" not in value:
        return [(f"{shown(value)} is not an address range", f"it must be {example}")]
    try:
        network = ipaddress.ip_network(value, strict=False)
    except ValueError as error:
        return [(f"{shown(value)} is not an address range: {error}", f"it must be {example}")]
    if strict and str(network.network_address) != str(ipaddress.ip_address(value.split("/")[0])):
        return [(f"{shown(value)} begins inside its network", f"did you mean `{network}`?")]
    low, high = prefix
    if network.version == 4 and not low <= network.prefixlen <= high:
        return [
            (f"{shown(value)} has a prefix of /{network.prefixlen}", f"it must be from /{low} to /{high}")
        ]
    return []


def address(value: Any, expected: bool) -> list[Violation]:
    try:
        ipaddress.ip_address(str(value))
    except ValueError:
        return [(f"{shown(value)} is not an IP address", "it must be like 10.0.0.1")]
    return []


def address_or_range(value: Any, expected: bool) -> list[Violation]:
    return _cidr(value, [0, 32], strict=False) if "/" in str(value) else address(value, expected)


def tag_or_range(value: Any, expected: bool) -> list[Violation]:
    """Check a service tag, `*`, an address, or an address range."""
    return (
        []
        if value == "*" or (str(value)[:1].isalpha() and ":" not in str(value))
        else address_or_range(value, expected)
    )


def port(value: Any, expected: bool) -> list[Violation]:
    """Check a port or a port range (`80`, `"80"`, `"8000-8080"`, `"*"`)."""
    if value == "*":
        return []
    parts = str(value).split("-") if not isinstance(value, (int, float)) else [str(value)]
    numbers = [int(part) for part in parts if re.fullmatch(r"\d+", part)]
    if len(numbers) != len(parts) or len(parts) > 2 or any(number > 65535 for number in numbers):
        return [(f"{shown(value)} is not a port", "ports are from 0 to 65535, a range is like 8000-8080")]
    return (
        [(f"{shown(value)} is an empty range of ports", "the first must be the lower one")]
        if numbers != sorted(numbers)
        else []
    )


def port_or_name(value: Any, expected: bool) -> list[Violation]:
    """Check a port number or a port name."""
    text = str(value)
    if text.isdigit():
        return (
            []
            if 1 <= int(text) <= 65535
            else [(f"{shown(value)} is not a port", "ports are from 1 to 65535")]
        )
    return (
        []
        if re.fullmatch(r"(?=.*[a-z])[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?", text)
        else [(f"{shown(value)} is not the name of a port", "")]
    )


def near(value: Any, values: list[Any]) -> list[Violation]:
    """Check an open set of values: reject only a value that is almost identical to a known one."""
    known = [str(choice) for choice in values]
    close = nearest(str(value), known)
    slip = (
        close
        and str(value) not in known
        and difflib.SequenceMatcher(None, str(value).lower(), close.lower()).ratio() >= ALL_BUT
    )
    return [(f"{shown(value)} is not one of the values", did_you_mean(str(value), known))] if slip else []


_SCHEDULES = {
    "kubernetes": "0 3 * * *",
    "google": "0 3 * * *",
    "amazon": "rate(5 minutes) or cron(0 12 * * ? *)",
}


def schedule(value: Any, kind: str) -> list[Violation]:
    """Check a schedule in the format of `kind`: kubernetes, google or amazon."""
    if not isinstance(value, str) or UNKNOWN in value:
        return []
    fault = FAULTS[kind](value)
    return (
        [(f"{shown(value)} is not a schedule: {fault}", f"a schedule is like {_SCHEDULES[kind]}")]
        if fault
        else []
    )


def time_zone(value: Any, case: str) -> list[Violation]:
    """Check an IANA time zone name, with its exact case (`exact`) or in any case (`any`)."""
    fault = zone_fault(str(value), any_case=case == "any")
    return (
        [(f"{shown(value)} is not a time zone: {fault}", "a time zone is like Europe/Berlin or Etc/UTC")]
        if fault
        else []
    )


def json_text(value: Any, expected: bool) -> list[Violation]:
    """Check text that must be JSON. Text with unknown parts is not checked."""
    if not isinstance(value, str) or UNKNOWN in value:
        return []
    try:
        json.loads(value)
    except ValueError as error:
        return [(f"{shown(value)} is not JSON: {error}", "write it with json.dumps")]
    return []


def document(value: Any, kind: str) -> list[Violation]:
    return [
        (f"{where + ': ' if where else ''}{what}", fix) for where, what, fix in document_mistakes(value, kind)
    ]


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


WORDS: dict[str, Callable[[Any, Any], list[Violation]]] = {
    "matches": matches,
    "not_matches": not_matches,
    "one_of": one_of,
    "within": within,
    "step": step,
    "length": length,
    "count": count,
    "keys": keys,
    "characters": characters,
    "cidr": cidr,
    "cidr_of_host": cidr_of_host,
    "address": address,
    "address_or_range": address_or_range,
    "tag_or_range": tag_or_range,
    "port": port,
    "port_or_name": port_or_name,
    "near": near,
    "schedule": schedule,
    "time_zone": time_zone,
    "json": json_text,
    "document": document,
}
