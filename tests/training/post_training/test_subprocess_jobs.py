"""Jobs in subprocesses: results and errors come back unchanged, and a job is asked to stop before it is
killed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any

import pytest

from trainfleet.errors import InputError, Interrupted, TrainfleetError
from trainfleet.training.runtime import subprocess_jobs

JOB_FUNCTIONS = "tests.training.post_training.job_functions"


def ignore(event: Mapping[str, Any]) -> None:
    """Ignore the event."""


def test_events_and_the_result_arrive_from_another_process() -> None:
    received: list[int] = []
    found = subprocess_jobs.run(
        f"{JOB_FUNCTIONS}:double", {"numbers": [1, 2, 3]}, hear=lambda event: received.append(event["value"])
    )
    assert (found["sum"], received) == (12, [1, 2, 3])
    assert found["pid"] != os.getpid()


def test_an_error_of_the_user_is_raised_unchanged() -> None:
    with pytest.raises(InputError) as caught:
        subprocess_jobs.run(f"{JOB_FUNCTIONS}:refuse", {}, hear=ignore)
    assert [str(problem) for problem in caught.value.problems] == ["here: is wrong (do this)", "there: too"]


def test_a_bug_is_reported_with_its_last_log_lines() -> None:
    with pytest.raises(TrainfleetError, match="ValueError: a bug") as caught:
        subprocess_jobs.run(f"{JOB_FUNCTIONS}:fail", {}, hear=ignore)
    assert any("ValueError: a bug" in problem.what for problem in caught.value.problems)


@pytest.mark.parametrize("grace", [60.0, 0.0])
def test_a_job_that_is_asked_to_stop_can_finish_within_the_grace_period(grace: float) -> None:
    def interrupt(event: Mapping[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    if grace:
        assert subprocess_jobs.run(f"{JOB_FUNCTIONS}:wait", {}, hear=interrupt, grace_s=grace) == "stopped"
    else:
        with pytest.raises(Interrupted):
            subprocess_jobs.run(f"{JOB_FUNCTIONS}:ignore_stop", {}, hear=interrupt, grace_s=grace)
