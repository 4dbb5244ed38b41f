"""The stacks of the project: spec, cost and mistakes, and the newest diff and drift of each."""

from __future__ import annotations

from typing import Any

from trainfleet.infra.catalog.cost import HOURS_PER_MONTH
from trainfleet.ui.review_files import ReviewFiles, Reviews, Stored
from trainfleet.ui.stack_specs import StackSpec, StackSpecs

WAIT_S = 0.7
CALM = ("no change",)
"""Verdicts that are not marked."""


def contents(stacks: StackSpecs, reviews: ReviewFiles) -> dict[str, Any]:
    """A line for each stack of the project or of the files."""
    specs, found = stacks.all(WAIT_S), reviews.newest(WAIT_S)
    names = sorted({*specs, *found.diffs, *found.drifts})
    notes = [f"The stacks of {stacks.root} are being read."] if stacks.root and stacks.reading else []
    return {
        "rows": [_row(name, specs.get(name), found) for name in names],
        "notes": [*notes, *(f"Not read: {each}" for each in found.unread)],
        "root": stacks.root,
        "folder": reviews.folder,
    }


def one(name: str, stacks: StackSpecs, reviews: ReviewFiles) -> dict[str, Any] | None:
    """What the page of a stack shows; None if there is no such stack."""
    specs, found = stacks.all(WAIT_S), reviews.newest(WAIT_S)
    if name not in specs and name not in found.diffs and name not in found.drifts:
        return None
    spec = specs.get(name)
    cost = spec.cost if spec else None
    return {
        **_row(name, spec, found),
        "text": spec.text if spec else "",
        "problems": spec.problems if spec else (),
        "in_project": spec is not None,
        "parts_of_bill": [] if cost is None else cost.parts,
        "unpriced": () if cost is None else cost.unknown,
        "hours": HOURS_PER_MONTH,
        "folder": reviews.folder,
    }


def _row(name: str, spec: StackSpec | None, reviews: Reviews) -> dict[str, Any]:
    platform = spec.spec if spec else None
    cost = spec.cost if spec else None
    diff, drift = reviews.diffs.get(name), reviews.drifts.get(name)
    return {
        "name": name,
        "where": f"{platform.cloud} {platform.region}".strip() if platform else "",
        "environment": str(platform.environment) if platform else "",
        "mistakes": len(spec.problems) if spec else 0,
        "least": None if cost is None else cost.min_usd_per_hour * HOURS_PER_MONTH,
        "most": None if cost is None else cost.max_usd_per_hour * HOURS_PER_MONTH,
        "diff": diff,
        "diff_class": "" if diff is None else verdict_class(diff),
        "drift": drift,
    }


def verdict_class(stored: Stored) -> str:
    """The class of the colour of a diff."""
    verdict = getattr(stored.document, "verdict", "")
    return "ok" if verdict in CALM else "warn" if verdict == "change" else "bad"
