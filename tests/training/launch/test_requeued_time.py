"""The time that a preempted run waits in its queue is recorded apart, and is not time on machines."""

from __future__ import annotations

import pytest

from trainfleet.training.launch.run_record import Reported
from trainfleet.training.runs.machine_time import machine_times

ADMITTED, REQUEUED, STEP = ({"kind": kind, "step": 1} for kind in ("admitted", "requeued", "step"))


@pytest.mark.parametrize(
    ("after", "requeued"),
    [
        ([], 0.0),
        ([(REQUEUED, 100.0), (ADMITTED, 160.0)], 60.0),
        (
            [(REQUEUED, 100.0), (REQUEUED, 110.0), (ADMITTED, 160.0), (REQUEUED, 200.0), (ADMITTED, 210.0)],
            70.0,
        ),
        ([(REQUEUED, 100.0)], 200.0),  # the launch ends while it waits
    ],
)
def test_each_wait_after_a_preemption_counts_and_costs_nothing(
    after: list[tuple[dict[str, object], float]], requeued: float
) -> None:
    reported = Reported()
    for event, seconds in [(ADMITTED, 20.0), (STEP, 50.0), *after]:
        reported.on_event(event, seconds)
    assert reported.admitted_s == 20.0
    assert reported.requeued_until(300.0) == requeued
    launch = {
        "id": "one",
        "at": "2026-01-01T00:00:00+00:00",
        "seconds": 300.0,
        "admitted_seconds": 20.0,
        "requeued_seconds": requeued,
    }
    (times,) = machine_times({"launches": [launch]})
    assert (times.queued_s, times.held_s) == (20.0 + requeued, 280.0 - requeued)
