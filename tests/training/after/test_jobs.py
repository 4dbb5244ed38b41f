"""Jobs in processes of their own: what they return and raise comes back as it was, and an end is asked for
before it is forced.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any

import pytest

from trainfleet.errors import InputError, Interrupted, TrainfleetError
from trainfleet.training.runtime import subprocess_jobs

HERE = "tests.training.after.work"


def ignore(event: Mapping[str, Any]) -> None:
    """Hear nothing."""


def test_what_is_sent_and_returned_comes_back_from_another_process() -> None:
    heard: list[int] = []
    found = subprocess_jobs.run(
        f"{HERE}:double", {"numbers": [1, 2, 3]}, hear=lambda event: heard.append(event["value"])
    )
    assert (found["sum"], heard) == (12, [1, 2, 3])
    assert found["pid"] != os.getpid()


def test_an_error_that_can_be_mended_is_raised_as_it_was() -> None:
    with pytest.raises(InputError) as caught:
        subprocess_jobs.run(f"{HERE}:refuse", {}, hear=ignore)
    assert [str(problem) for problem in caught.value.problems] == ["here: is wrong (do this)", "there: too"]


def test_a_bug_is_told_with_its_last_words() -> None:
    with pytest.raises(TrainfleetError, match="ValueError: a bug") as caught:
        subprocess_jobs.run(f"{HERE}:break_off", {}, hear=ignore)
    assert any("ValueError: a bug" in problem.what for problem in caught.value.problems)


@pytest.mark.parametrize("grace", [60.0, 0.0])
def test_a_job_that_is_asked_to_stop_may_finish_if_it_has_the_time(grace: float) -> None:
    def interrupt(event: Mapping[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    if grace:
        assert subprocess_jobs.run(f"{HERE}:wait", {}, hear=interrupt, grace_s=grace) == "stopped"
    else:
        with pytest.raises(Interrupted):
            subprocess_jobs.run(f"{HERE}:go_on", {}, hear=interrupt, grace_s=grace)
