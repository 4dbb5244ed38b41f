"""Where a run's time went: computing, exchanging, waiting for data, saving, validating, starting, and what
was lost.

Used by the report, as one bar over everything and as a stack over the steps. Easy to get wrong: rows hold
shares and seconds
of their interval, on rank 0; whatever the launches took besides belongs to no row, and is never shown as
computing.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from trainfleet.training.runs.reader import Rows

COMPUTING, EXCHANGING, DATA, SAVING, VALIDATING = (
    "computing",
    "communicating",
    "waiting for data",
    "saving checkpoints",
    "validating",
)
STARTING, LOST = "starting", "ending and lost work"
PARTS = (COMPUTING, EXCHANGING, DATA, SAVING, VALIDATING, STARTING, LOST)
BINS = 60
"""Columns of the stack, at most."""


@dataclass
class Span:
    """The time of some steps: those after `first`, up to `last`."""

    first: int
    last: int
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, parts: Mapping[str, float]) -> None:
        for part, seconds in parts.items():
            self.seconds[part] = self.seconds.get(part, 0.0) + seconds


def shares(
    rows: Rows, launches: Sequence[Mapping[str, Any]], seen: float | None = None
) -> list[tuple[str, float]]:
    """Seconds by part, over the whole run; parts that were not measured are left out. `seen` as in
    `wall_seconds`.
    """
    total = Span(0, 0)
    for span in intervals(rows):
        total.add(span.seconds)
    rest = (wall_seconds(launches, seen) or 0.0) - sum(total.seconds.values())
    if rest > 0:
        starting = min(rest, sum(_seconds(launch, "first_step_seconds") for launch in launches))
        total.add({STARTING: starting, LOST: rest - starting})
    return [(part, total.seconds[part]) for part in PARTS if total.seconds.get(part, 0.0) > 0]


def intervals(rows: Rows) -> list[Span]:
    """The time of each row of training."""
    spans: list[Span] = []
    previous = 0
    for row in rows.of("train"):
        steps, first = max(0, row["step"] - previous), previous
        previous = row["step"]
        in_steps = _seconds(row, "step_seconds") * steps
        waiting, exchanging = in_steps * _seconds(row, "data_wait"), in_steps * _seconds(row, "communication")
        parts = {
            COMPUTING: max(0.0, in_steps - waiting - exchanging),
            DATA: waiting,
            SAVING: _seconds(row, "checkpoint_seconds"),
        }
        parts |= {VALIDATING: _seconds(row, "validation_seconds")} | (
            {EXCHANGING: exchanging} if "communication" in row else {}
        )
        spans.append(Span(first, row["step"], parts))
    return spans


def stacked(
    rows: Rows, launches: Sequence[Mapping[str, Any]], starts: Sequence[Mapping[str, Any]]
) -> list[Span]:
    """The same over the steps, in at most `BINS` columns; what starting took stands where the run went on."""
    spans = intervals(rows)
    if not spans:
        return []
    width = -(-len(spans) // BINS)
    columns = []
    for begin in range(0, len(spans), width):
        members = spans[begin : begin + width]
        column = Span(members[0].first, members[-1].last)
        for member in members:
            column.add(member.seconds)
        columns.append(column)
    for step, seconds in _startings(launches, starts):
        next((column for column in columns if step < column.last), columns[-1]).add({STARTING: seconds})
    return columns


def wall_seconds(launches: Sequence[Mapping[str, Any]], seen: float | None = None) -> float | None:
    """What all launches took; one that was killed and has noted no end, until `seen`, when it last wrote
    something.
    """
    known = [_seconds(launch, "seconds") for launch in launches if "seconds" in launch]
    if launches and "seconds" not in launches[-1] and seen is not None:
        with contextlib.suppress(ValueError):
            known.append(max(0.0, seen - datetime.fromisoformat(str(launches[-1].get("at"))).timestamp()))
    return sum(known) if known else None


def _startings(
    launches: Sequence[Mapping[str, Any]], starts: Sequence[Mapping[str, Any]]
) -> list[tuple[int, float]]:
    """Step and seconds of each launch's start: the first start of the loop after it says where."""
    found = []
    for launch in launches:
        steps = [
            int(_seconds(start, "from_step"))
            for start in starts
            if str(start.get("at", "")) >= str(launch.get("at", ""))
        ]
        if steps and "first_step_seconds" in launch:
            found.append((steps[0], _seconds(launch, "first_step_seconds")))
    return found


def _seconds(row: Mapping[str, Any], key: str) -> float:
    value = row.get(key)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0
