"""The monitor of the restart benchmark: which rank it kills and when, and how it splits the time."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import pytest

from benchmarks.restart import PHASES, Finished, RestartMonitor
from tests.training.launches import wait_for
from trainfleet.errors import TrainfleetError


@pytest.fixture
def ranks() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes in place of workers."""
    started = [subprocess.Popen(["sleep", "300"]) for _ in range(2)]
    yield started
    for each in started:
        each.kill()
        each.wait()


def train_to_second_checkpoint(monitor: RestartMonitor, ranks: list[subprocess.Popen[bytes]]) -> None:
    for rank, each in enumerate(ranks):
        monitor.handle({"kind": "worker", "rank": rank, "pid": each.pid})
    monitor.handle({"kind": "checkpoint", "step": 10})
    monitor.handle({"kind": "step", "step": 12})
    assert [each.poll() for each in ranks] == [None, None], "only one checkpoint exists"
    monitor.handle({"kind": "checkpoint", "step": 20})
    monitor.handle({"kind": "step", "step": 21})


def test_the_last_rank_is_killed_after_the_second_checkpoint_and_the_time_is_split(
    ranks: list[subprocess.Popen[bytes]],
) -> None:
    monitor = RestartMonitor(settled_s=0)
    train_to_second_checkpoint(monitor, ranks)
    assert ranks[1].wait(20) == -signal.SIGKILL
    assert ranks[0].poll() is None
    with pytest.raises(TrainfleetError, match="did not recover"):
        monitor.seconds()
    ranks[0].terminate()
    wait_for(lambda: "noticed" in monitor.at, "the end of the other worker was not noticed", 20)
    monitor.handle({"kind": "step", "step": 22})
    monitor.handle({"kind": "worker", "rank": 0, "pid": 1})
    monitor.handle({"kind": "event", "what": "resumed", "text": ""})
    with pytest.raises(Finished):
        monitor.handle({"kind": "step", "step": 21})
    seconds = monitor.seconds()
    assert set(seconds) == {*PHASES, "in all"}
    assert all(each >= 0 for each in seconds.values())
    assert seconds["in all"] == pytest.approx(sum(seconds[phase] for phase in PHASES))


def test_a_run_with_one_worker_is_rejected() -> None:
    monitor = RestartMonitor(settled_s=0)
    monitor.handle({"kind": "worker", "rank": 0, "pid": 1})
    monitor.handle({"kind": "checkpoint", "step": 10})
    monitor.handle({"kind": "checkpoint", "step": 20})
    with pytest.raises(TrainfleetError, match="no second worker"):
        monitor.handle({"kind": "step", "step": 21})


def test_no_rank_is_killed_during_the_warm_up(ranks: list[subprocess.Popen[bytes]]) -> None:
    monitor = RestartMonitor()
    train_to_second_checkpoint(monitor, ranks)
    assert [each.poll() for each in ranks] == [None, None]
    assert monitor.killed is None
