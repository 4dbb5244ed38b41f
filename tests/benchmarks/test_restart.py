"""What the measuring of a restart hears, whom it kills and when, and how it splits the seconds."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import pytest

from benchmarks.restart import PHASES, Seen, Watch
from tests.training.launches import wait_for
from trainfleet.errors import TrainfleetError


@pytest.fixture
def ranks() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes that stand in for workers."""
    started = [subprocess.Popen(["sleep", "300"]) for _ in range(2)]
    yield started
    for each in started:
        each.kill()
        each.wait()


def until_the_kill(watch: Watch, ranks: list[subprocess.Popen[bytes]]) -> None:
    for rank, each in enumerate(ranks):
        watch.handle({"kind": "worker", "rank": rank, "pid": each.pid})
    watch.handle({"kind": "checkpoint", "step": 10})
    watch.handle({"kind": "step", "step": 12})
    assert [each.poll() for each in ranks] == [None, None], "there is but one checkpoint"
    watch.handle({"kind": "checkpoint", "step": 20})
    watch.handle({"kind": "step", "step": 21})


def test_the_last_rank_is_killed_after_the_second_checkpoint_and_the_time_is_split(
    ranks: list[subprocess.Popen[bytes]],
) -> None:
    watch = Watch(settled_s=0)
    until_the_kill(watch, ranks)
    assert ranks[1].wait(20) == -signal.SIGKILL
    assert ranks[0].poll() is None
    with pytest.raises(TrainfleetError, match="did not come back"):
        watch.seconds()
    ranks[0].terminate()
    wait_for(lambda: "noticed" in watch.at, "the end of the other worker was not seen", 20)
    watch.handle({"kind": "step", "step": 22})
    watch.handle({"kind": "worker", "rank": 0, "pid": 1})
    watch.handle({"kind": "event", "what": "resumed", "text": ""})
    with pytest.raises(Seen):
        watch.handle({"kind": "step", "step": 21})
    seconds = watch.seconds()
    assert set(seconds) == {*PHASES, "in all"}
    assert all(each >= 0 for each in seconds.values())
    assert seconds["in all"] == pytest.approx(sum(seconds[phase] for phase in PHASES))


def test_a_run_with_one_worker_has_none_to_kill() -> None:
    watch = Watch(settled_s=0)
    watch.handle({"kind": "worker", "rank": 0, "pid": 1})
    watch.handle({"kind": "checkpoint", "step": 10})
    watch.handle({"kind": "checkpoint", "step": 20})
    with pytest.raises(TrainfleetError, match="no second worker"):
        watch.handle({"kind": "step", "step": 21})


def test_a_run_that_has_only_begun_is_left_alone(ranks: list[subprocess.Popen[bytes]]) -> None:
    watch = Watch()
    until_the_kill(watch, ranks)
    assert [each.poll() for each in ranks] == [None, None]
    assert watch.killed is None
