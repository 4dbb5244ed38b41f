"""The runs of all clusters in figures: for each, and overall."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from trainfleet.errors import TrainfleetError
from trainfleet.files import write_whole
from trainfleet.training.report.compare import comparison
from trainfleet.training.report.cost import usd_of
from trainfleet.training.report.run_summary import RunSummary, read_run_summary
from trainfleet.training.report.time_breakdown import goodput

FINISHED = ("finished", "detached")
"""How a run may end without a fault."""


@dataclass
class Member:
    """The run on one cluster, as far as it is known."""

    name: str
    on: str
    run_dir: Path
    status: str = "starting"
    row: dict[str, Any] = field(default_factory=dict)
    """The latest row of its training."""
    faults: int = 0
    """Restarts, moves and other faults that it has reported."""
    document: dict[str, Any] = field(default_factory=dict)
    """What its launch reported at its end."""
    summary: str = ""
    """Why it failed."""
    problems: list[list[str]] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.status not in ("starting", "running")


def write_report(members: Sequence[Member], target: Path) -> list[RunSummary]:
    """Compare the runs on one page; returns those that could be read. Without any, there is no page."""
    found = []
    for member in members:
        with contextlib.suppress(TrainfleetError):
            found.append(read_run_summary(member.run_dir))
    if found:
        write_whole(target, comparison(found, overall_rows(members, found)))
    return found


def overall(members: Sequence[Member], summaries: Sequence[RunSummary]) -> dict[str, Any]:
    """All runs in figures. Throughput and cost are None unless they are known of every run."""
    figures = [each.figures() for each in summaries]
    main = next((each["figure"] for each in figures), None)
    mode = next((each["mode"] for each in figures), "min")
    values = [each["best_validation"] for each in figures if each["figure"] == main]
    known = [value for value in values if value is not None]
    times: Counter[str] = Counter()
    for each in figures:
        times.update(each["time"])

    def total(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) if members and len(known) == len(members) else None

    return {
        "clusters": len(members),
        **{status: sum(each.status == status for each in members) for status in ("finished", "detached")},
        "failed": sum(each.status not in FINISHED for each in members),
        "figure": main,
        "mode": mode,
        "best_validation": (max if mode == "max" else min)(known, default=None),
        "mean_validation": fmean(known) if known else None,
        "tokens_per_second": total([each["tokens_per_second"] for each in figures]),
        "samples_per_second": total([each["samples_per_second"] for each in figures]),
        "goodput": goodput(times),
        "usd": total([usd_of(each) for each in figures]),
        "resumes": sum(each["resumes"] for each in figures),
        "launches": sum(each["launches"] for each in figures),
    }


def overall_rows(members: Sequence[Member], summaries: Sequence[RunSummary]) -> list[tuple[str, str]]:
    """The same as text, for the report."""
    found = overall(members, summaries)
    figure = str(found["figure"] or "validation").replace("_", " ")
    rows = [
        ("clusters", found["clusters"], "{}"),
        ("finished", found["finished"], "{}"),
        ("detached", found["detached"] or None, "{}"),
        ("failed", found["failed"], "{}"),
        (f"best validation ({figure})", found["best_validation"], "{:.4f}"),
        (f"mean of the best validations ({figure})", found["mean_validation"], "{:.4f}"),
        ("tokens per second, all together", found["tokens_per_second"], "{:,.0f}"),
        ("samples per second, all together", found["samples_per_second"], "{:,.0f}"),
        ("goodput (share of the reserved time spent training)", found["goodput"], "{:.1%}"),
        ("cost", found["usd"], "${:,.2f}"),
        ("resumed", found["resumes"], "{}"),
    ]
    return [(name, form.format(value)) for name, value, form in rows if value is not None]
