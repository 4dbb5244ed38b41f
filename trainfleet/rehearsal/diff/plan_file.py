"""Reads the plan that `pulumi preview --save-plan FILE` wrote: its digest and its operations.

The digest is the SHA-256 of the file, so that `sha256sum` shows the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.rehearsal.engine.engine_cli import QUIET_OPS

_FIX = "save both with one command: pulumi preview --save-plan plan.json --event-log preview.jsonl"


@dataclass(frozen=True)
class PlanFile:
    """A plan of the engine."""

    path: Path
    sha256: str
    operations: Mapping[str, frozenset[str]]
    """The operations on each resource that changes, by URN."""


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(
            "cannot read the plan", [Problem(str(path), error.strerror or str(error), _FIX)]
        ) from error


def read_plan(path: Path) -> PlanFile:
    """Read a plan.

    Raises:
        InputError: the file cannot be read, or is not a plan of the engine.
    """
    digest = digest_of(path)
    try:
        resources = json.loads(path.read_text(encoding="utf-8"))["resourcePlans"] or {}
        found = {urn: _changing(each.get("steps") or ()) for urn, each in resources.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        problem = Problem(str(path), "is not a file of `pulumi preview --save-plan`", _FIX)
        raise InputError("cannot read the plan", [problem]) from error
    return PlanFile(path, digest, {urn: ops for urn, ops in found.items() if ops})


def check_same_preview(plan: PlanFile, steps: Iterable[Mapping[str, Any]], recording: Path) -> None:
    """Check that a plan and a recording are of one preview: the same operations on the same resources.

    Raises:
        InputError: names up to five resources with other operations.
    """
    recorded: dict[str, set[str]] = {}
    for step in steps:
        recorded.setdefault(str(step["urn"]), set()).add(str(step["op"]))
    shown = {urn: ops for urn, each in recorded.items() if (ops := _changing(each))}
    different = sorted(
        urn for urn in shown.keys() | plan.operations.keys() if shown.get(urn) != plan.operations.get(urn)
    )
    if different:
        problems = [
            Problem(
                urn.rsplit("::", 1)[-1],
                f"{_words(plan.operations.get(urn))} in {plan.path.name}, "
                f"{_words(shown.get(urn))} in {recording.name}",
                _FIX,
            )
            for urn in different[:5]
        ]
        raise InputError(f"the plan is of another preview than {recording.name}", problems)


def _changing(operations: Iterable[str]) -> frozenset[str]:
    return frozenset(operations) - frozenset(QUIET_OPS)


def _words(operations: frozenset[str] | None) -> str:
    return ", ".join(sorted(operations)) if operations else "unchanged"
