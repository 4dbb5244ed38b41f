"""Keys that an earlier release of the spec had. They still work, with a warning, for one release."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trainfleet.errors import Problem

Warn = Callable[[Problem], None]
"""Reports what is accepted now and will be rejected later."""
ENDPOINT, RANGES = "private_endpoint", "allowed_cidrs"


def print_warning(problem: Problem) -> None:
    """Print a warning on stderr."""
    sys.stderr.write(f"warning: {problem}\n")


def upgraded(document: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Return the document with today's keys in place of old ones, and a warning for each old key.

    A document that has an old key together with the key that replaces it is returned with both, so that the
    schema rejects the old one by name.
    """
    result = dict(document)
    kubernetes, network = _mapping(result, "kubernetes"), _mapping(result, "network")
    if not ({ENDPOINT} & set(kubernetes) or {RANGES} & set(network)) or "access" in kubernetes:
        return result, []
    old, ranges = kubernetes.get(ENDPOINT, True), network.get(RANGES, ())
    if not isinstance(old, bool):
        return result, []
    warnings = list(_warnings(kubernetes, network))
    access: dict[str, Any] = {"endpoint": "private" if old else "public"}
    if ranges or not old:
        access["public_ranges"] = ranges
    result["kubernetes"] = {key: value for key, value in kubernetes.items() if key != ENDPOINT}
    result["kubernetes"]["access"] = access
    if RANGES in network:
        result["network"] = {key: value for key, value in network.items() if key != RANGES}
    return result, warnings


def _warnings(kubernetes: Mapping[str, Any], network: Mapping[str, Any]) -> Iterator[Problem]:
    if ENDPOINT in kubernetes:
        new = "private" if kubernetes[ENDPOINT] else "public"
        yield Problem(
            f"kubernetes.{ENDPOINT}",
            "is deprecated, and the next release rejects it",
            f"kubernetes.access: {{endpoint: {new}}}",
        )
    if RANGES in network:
        yield Problem(
            f"network.{RANGES}",
            "is deprecated, and the next release rejects it",
            "kubernetes.access: {public_ranges: [...]}",
        )


def _mapping(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = document.get(key)
    return value if isinstance(value, Mapping) else {}
