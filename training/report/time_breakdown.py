"""Time breakdown of a run: computing, communicating, waiting for data, saving, validating, starting, lost
work.

Rows hold shares and seconds of their interval on rank 0. Other time of the launches belongs to no row and
never counts as computing.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from trainfleet.training.runs.reader import Rows

COMPUTING, COMMUNICATING, DATA, SAVING, VALIDATING = (
    "computing",
    "communicating",
    "waiting for data",
    "saving checkpoints",
    "validating",
)
QUEUEING, STARTING, LOST = "waiting in a queue", "starting", "ending and lost work"
PARTS = (COMPUTING, COMMUNICATING, DATA, SAVING, VALIDATING, QUEUEING, STARTING, LOST)
BINS = 60
"""Maximum number of columns of the stacked chart."""


@dataclass
class Span:
    """The time of the steps after `first`, up to `last`."""

    first: int
    last: int
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, parts: Mapping[str, float]) -> None:
        for part, seconds in parts.items():
            self.seconds[part] = self.seconds.get(part, 0.0) + seconds


def shares(
    rows: Rows, launches: Sequence[Mapping[str, Any]], last_activity: float | None = None
) -> list[tuple[str, float]]:
    """Seconds per part over the whole run, without parts that were not measured."""
    total = Span(0, 0)
    for span in intervals(rows):
        total.add(span.seconds)
    rest = (wall_seconds(launches, last_activity) or 0.0) - sum(total.seconds.values())
    if rest > 0:
        admitted = sum(_seconds(launch, "admitted_seconds") for launch in launches)
        queued = min(rest, admitted + sum(_seconds(launch, "requeued_seconds") for launch in launches))
        first_steps = sum(_seconds(launch, "first_step_seconds") for launch in launches)
        starting = min(rest - queued, max(0.0, first_steps - admitted))
        total.add({QUEUEING: queued, STARTING: starting, LOST: rest - queued - starting})
    return [(part, total.seconds[part]) for part in PARTS if total.seconds.get(part, 0.0) > 0]


def goodput(parts: Mapping[str, float]) -> float | None:
    """Share of the time for which machines were reserved that trained what the run has kept: computing and
    exchanging gradients. A queue reserves nothing. None without any time.
    """
    reserved = sum(parts.values()) - parts.get(QUEUEING, 0.0)
    return (parts.get(COMPUTING, 0.0) + parts.get(COMMUNICATING, 0.0)) / reserved if reserved > 0 else None


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
            {COMMUNICATING: exchanging} if "communication" in row else {}
        )
        spans.append(Span(first, row["step"], parts))
    return spans


def stacked(
    rows: Rows, launches: Sequence[Mapping[str, Any]], starts: Sequence[Mapping[str, Any]]
) -> list[Span]:
    """The breakdown over the steps in at most `BINS` columns; start-up time is at the step of the resume."""
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


def wall_seconds(launches: Sequence[Mapping[str, Any]], last_activity: float | None = None) -> float | None:
    """Total seconds of all launches. A killed launch without a recorded end counts until `last_activity`."""
    known = [_seconds(launch, "seconds") for launch in launches if "seconds" in launch]
    if launches and "seconds" not in launches[-1] and last_activity is not None:
        with contextlib.suppress(ValueError):
            known.append(
                max(0.0, last_activity - datetime.fromisoformat(str(launches[-1].get("at"))).timestamp())
            )
    return sum(known) if known else None


def _startings(
    launches: Sequence[Mapping[str, Any]], starts: Sequence[Mapping[str, Any]]
) -> list[tuple[int, float]]:
    """Step and seconds of each launch's start-up, at the first start of the loop after it."""
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
