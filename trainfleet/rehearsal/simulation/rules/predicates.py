"""The predicates of the rules, for what JSON Schema cannot express: address ranges, schedules, documents ...

Each function checks one value and returns what is wrong with it, or nothing. The functions' names are
the keys of a row in the TOML files. A function receives the value (known and not empty) and the row's
argument.
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
from trainfleet.rehearsal.simulation.json_schema import Violation, shown
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN
from trainfleet.rehearsal.simulation.schedules import FAULTS, zone_fault
from trainfleet.suggestions import did_you_mean, nearest

ALL_BUT = 0.85


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


WORDS: dict[str, Callable[[Any, Any], list[Violation]]] = {
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
