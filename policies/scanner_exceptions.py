"""Findings of Checkov on the production stacks that stay, each with its reason: scanner_exceptions.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("scanner_exceptions.toml")
CLOUDS = {"AWS": "aws", "GCP": "gcp", "AZURE": "azure", "K8S": "kubernetes"}
"""The part of a check's identifier that names its cloud."""


@dataclass(frozen=True)
class ScannerException:
    """A check that the production stacks do not follow, on these resources."""

    check: str
    statement: str
    """What the scanner requires."""
    resources: tuple[str, ...]
    """Patterns of the resources, as the scanner names them."""
    reason: str
    date: date
    """When it was last reviewed."""
    rule: str = ""
    """The policy that holds instead; empty if there is none."""

    @property
    def cloud(self) -> str:
        """The cloud that the check is about."""
        return CLOUDS[self.check.split("_")[1]]

    def covers(self, check: str, resource: str) -> bool:
        """Whether a finding is this one."""
        return check == self.check and any(fnmatchcase(resource, each) for each in self.resources)


@cache
def scanner() -> str:
    """The scanner and the version whose findings were reviewed."""
    return str(_document()["scanner"])


@cache
def scanner_exceptions() -> tuple[ScannerException, ...]:
    """Every exception, by cloud and check."""
    rows = [
        ScannerException(
            check,
            row["statement"],
            tuple(row["resources"]),
            row["reason"],
            row["date"],
            row.get("rule", ""),
        )
        for row in _document()["exception"]
        for check in (row["check"] if isinstance(row["check"], list) else [row["check"]])
    ]
    order = list(CLOUDS.values())
    return tuple(sorted(rows, key=lambda each: (order.index(each.cloud), each.check)))


def as_json(exception: ScannerException) -> dict[str, Any]:
    """Return an exception as a JSON object."""
    return {
        "check": exception.check,
        "cloud": exception.cloud,
        "statement": exception.statement,
        "resources": list(exception.resources),
        "reason": exception.reason,
        "rule": exception.rule or None,
        "date": exception.date.isoformat(),
    }


def _document() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))
