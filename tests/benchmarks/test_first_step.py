"""The phases of the benchmark of the first step: which event ends each, and what becomes of a missing one."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.first_step import phases
from trainfleet.errors import TrainfleetError

SKY = [
    (1.0, {"kind": "note", "text": "starting SkyPilot"}),
    (3.0, {"kind": "note", "text": "asking SkyPilot"}),
    (4.5, {"kind": "note", "text": "on the cluster warm, which is deleted 30 minutes after its last run"}),
    (6.0, {"kind": "note", "text": "the task is queued as job 2"}),
    (9.0, {"kind": "note", "text": "the task runs in the pods: Ray starts"}),
    (9.5, {"kind": "note", "text": "Ray runs in the pods: the driver starts the workers"}),
    (14.0, {"kind": "worker", "rank": 0}),
    (20.0, {"kind": "step", "step": 1}),
    (21.0, {"kind": "step", "step": 2}),
]


def events(*without: int) -> list[dict[str, Any]]:
    return [{**event, "at": 100 + at} for number, (at, event) in enumerate(SKY) if number not in without]


def test_each_phase_ends_with_its_event_and_the_total_with_the_first_step() -> None:
    found = phases("sky", 100.0, events())
    assert list(found.values()) == [1.0, 2.0, 1.5, 1.5, 3.0, 0.5, 4.5, 6.0, 20.0]
    assert found["Ray"] == 0.5
    assert sum(found.values()) == pytest.approx(2 * found["in all"])


def test_a_phase_whose_event_is_missing_is_part_of_the_next() -> None:
    found = phases("sky", 100.0, events(4))
    assert "start of the task" not in found
    assert (found["Ray"], found["in all"]) == (3.5, 20.0)


def test_an_event_that_arrives_late_makes_no_negative_phase() -> None:
    late = events()
    late[3]["at"] = 109.2
    found = phases("sky", 100.0, late)
    assert (found["start of the task"], found["in all"]) == (0.0, 20.0)


def test_a_run_without_a_step_has_no_times() -> None:
    with pytest.raises(TrainfleetError, match="made no step"):
        phases("sky", 100.0, events(7, 8))
