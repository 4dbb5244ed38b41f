"""The follower of `--on ray-up`: when it deletes the machines, and when it leaves them to their head."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.training.launch import fake_ray_up
from tests.training.launch.kuberay_follower import RecordedEvents
from tests.training.launch.test_ray_up_cluster_yaml import run_spec
from trainfleet.errors import TrainfleetError
from trainfleet.training.launch.ray_up import follow, processes
from trainfleet.training.launch.ray_up.launcher import _follower_spec
from trainfleet.training.launch.remote.follower import Stopped
from trainfleet.training.runtime.events import DETACH, STOP_FILE

WAIT_S = 60.0
LAUNCH = "0123456789abcdef"
JOB = "tf-lm-tiny-01234567"
"""The run's job on machines that stay."""


class Jobs:
    """Ray's client of the jobs of a cluster."""

    def __init__(self, *jobs: str) -> None:
        self.training = set(jobs)
        self.stopped: list[str] = []

    def stop_job(self, job: str) -> bool:
        if job not in self.training:
            raise RuntimeError(f"Request failed with status code 404: Job {job} does not exist.")
        self.stopped.append(job)
        return self.stopped.count(job) == 1

    def get_job_status(self, job: str) -> Any:
        return SimpleNamespace(is_terminal=lambda: self.stopped.count(job) > 1)

    def get_job_info(self, job: str) -> Any:
        return SimpleNamespace(message=f"{job} ended with 3")


class Started:
    """A follower in a thread of its own, with a fake of Ray."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, detach: bool, stays: bool, within_s: float
    ) -> None:
        self.folder = folder
        (folder / "calls").touch()
        stand_in = [sys.executable, fake_ray_up.__file__, str(folder)]
        for module in (follow, processes):
            monkeypatch.setattr(module, "RAY", [*stand_in, "ray"])
        real = processes.start
        submit = [*stand_in, "submit"]
        monkeypatch.setattr(
            processes, "start", lambda command, **given: real(submit if "-m" in command else command, **given)
        )
        monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
        monkeypatch.setenv(STOP_FILE, str(folder / "stop"))
        # The thread is not the main one, which alone may ignore a signal.
        monkeypatch.setattr(follow.signal, "signal", lambda *_: None)
        self.events = RecordedEvents()
        monkeypatch.setattr(follow, "RETRY_S", 0.01)
        spec = _follower_spec(run_spec("aws", image="my/trainfleet:1"), detach=detach)
        self.spec = spec = spec.model_copy(update={"stays": stays, "within_s": within_s, "launch": LAUNCH})
        self.code: int | None = None
        self.error: BaseException | None = None
        self._follower = follow.Follower(spec, self.events)  # type: ignore[arg-type]
        self.jobs = Jobs(JOB)
        monkeypatch.setattr(self._follower, "_client", lambda address: self.jobs)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.code = self._follower.run()
        except BaseException as error:  # noqa: BLE001 - the test reads it
            self.error = error

    def create(self, name: str) -> None:
        (self.folder / name).touch()

    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, (self.calls(), self.events.events, self.error)
            threading.Event().wait(0.01)

    def ended(self) -> list[str]:
        """Wait for its end; what Ray's command line was asked to."""
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), self.calls()
        return [each for each in self.calls() if each in ("ray up", "ray down")]


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda *, detach=False, stays=False, within_s=1800.0: Started(
        tmp_path, monkeypatch, detach=detach, stays=stays, within_s=within_s
    )


def test_the_machines_are_deleted_after_the_run(started: Callable[..., Started]) -> None:
    run = started()
    for name in ("head", "accept", "end"):
        run.create(name)
    assert run.ended() == ["ray up", "ray down"]
    assert run.code == 0
    assert run.events.of("result")


@pytest.mark.parametrize("saved", [True, False])
def test_a_run_whose_machines_another_command_took_down_has_ended(
    saved: bool, started: Callable[..., Started]
) -> None:
    """`runs stop` deletes the machines, so that Ray never says how the job ended."""
    run = started()
    for name in ("head", "accept", "stopped" if saved else "never-ends"):
        run.create(name)
    run.until(lambda: bool(run.events.of("result")) if saved else "Ray has the run" in run.events.notes())
    shutil.rmtree(Path(run.spec.file).parent)
    assert run.ended() == ["ray up"]
    assert run.code == (0 if saved else 1)
    assert [each["status"] for each in run.events.of("result")] == (["stopped"] if saved else [])
    assert [each["error"] for each in run.events.of("crash")] == (
        [] if saved else ["another command has taken the machines down"]
    )


def test_a_submitter_that_dies_does_not_end_the_run(started: Callable[..., Started]) -> None:
    """It may be killed for the memory of this machine; the run is elsewhere."""
    run = started()
    for name in ("head", "accept"):
        run.create(name)
    run.until(lambda: "Ray has the run" in run.events.notes())
    run.create("dies")
    run.until(lambda: run.calls().count("submit ") == 2)
    assert "ray down" not in run.calls()
    run.create("end")
    assert run.ended() == ["ray up", "ray down"]
    assert run.code == 0
    assert "ended with 137; starting it again" in run.events.notes()


def test_a_run_that_cannot_be_followed_is_left_alone(
    started: Callable[..., Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "SUBMITTERS", 1)
    run = started()
    for name in ("head", "accept"):
        run.create(name)
    run.until(lambda: "Ray has the run" in run.events.notes())
    run.create("dies")
    assert run.ended() == ["ray up"]
    assert run.code == 0
    assert run.events.of("detached")


@pytest.mark.parametrize("detach", [True, False], ids=["--detach", "closed terminal"])
def test_a_run_is_left_only_once_ray_has_it(detach: bool, started: Callable[..., Started]) -> None:
    """Machines without a run would be paid for until their head deletes them, and the run would not start."""
    run = started(detach=detach)
    if not detach:
        run.create(DETACH)
    run.until(lambda: "ray up" in run.calls())
    run.create("head")
    run.until(lambda: "submit " in run.calls())
    assert not run.events.of("detached")
    run.create("accept")
    assert run.ended() == ["ray up"]
    assert run.code == 0
    (left,) = run.events.of("detached")
    assert left["cluster"] == "tf-lm-tiny"
    assert Path(left["cluster_file"]).is_file()
    assert any("m7i.xlarge" in line and "20 minutes after the last run" in line for line in left["how"])


@pytest.mark.parametrize("before", ["head", "accept"])
def test_a_stop_before_the_first_step_deletes_the_machines(
    before: str, started: Callable[..., Started]
) -> None:
    run = started()
    if before == "accept":
        run.create("head")
        run.until(lambda: "submit " in run.calls())
    else:
        run.until(lambda: "ray up" in run.calls())
    run.create("stop")
    assert run.ended() == ["ray up", "ray down"]
    assert isinstance(run.error, Stopped)


def test_only_a_training_is_waited_for_while_it_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    run = run_spec("aws", image="my/trainfleet:1")
    specs = [_follower_spec(each, detach=False) for each in (run, replace(run, instead="{}"))]
    assert [each.saves for each in specs] == [True, False]


def test_what_is_paid_for_is_shown_before_the_machines_start(started: Callable[..., Started]) -> None:
    run = started()
    run.until(lambda: "ray up" in run.calls())
    assert run.events.notes().startswith("paid for: 2 x ")
    run.create("stop")
    run.ended()


def test_a_stop_before_the_first_step_ends_the_job_on_machines_that_stay(
    started: Callable[..., Started],
) -> None:
    """It would train on, and the next launch would be rejected."""
    run = started(stays=True)
    for name in ("head", "accept"):
        run.create(name)
    run.until(lambda: "Ray has the run" in run.events.notes())
    run.create("stop")
    assert run.ended() == ["ray up"]
    assert isinstance(run.error, Stopped)
    assert run.jobs.stopped == [JOB, JOB], "it was not asked until the job had ended"
    assert not run.events.of("warning")


def test_a_run_without_its_machines_in_time_ends_its_job_on_machines_that_stay(
    started: Callable[..., Started],
) -> None:
    run = started(stays=True, within_s=1.0)
    for name in ("head", "accept"):
        run.create(name)
    assert run.ended() == ["ray up"]
    assert isinstance(run.error, TrainfleetError)
    assert run.jobs.stopped == [JOB, JOB]


def test_a_stop_before_the_run_is_submitted_ends_no_job(started: Callable[..., Started]) -> None:
    run = started(stays=True)
    run.jobs.training.clear()
    run.create("head")
    run.until(lambda: "submit " in run.calls())
    run.create("stop")
    assert run.ended() == ["ray up"]
    assert isinstance(run.error, Stopped)
    assert not run.events.of("warning")


def test_a_job_that_may_still_train_is_named(
    started: Callable[..., Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "END_JOB_S", 0.0)
    run = started(stays=True)
    for name in ("head", "accept"):
        run.create(name)
    run.until(lambda: "Ray has the run" in run.events.notes())
    run.create("stop")
    run.ended()
    assert isinstance(run.error, Stopped)
    (warning,) = run.events.of("warning")
    assert warning["text"].startswith(f"the job {JOB} may still train on tf-lm-tiny: {JOB} has not ended")
    assert "trainfleet runs stop lm-tiny" in warning["text"]


def test_machines_that_stay_without_a_head_are_named_with_the_command(
    started: Callable[..., Started],
) -> None:
    """Only a head that was set up deletes them."""
    run = started(stays=True)
    run.until(lambda: "ray up" in run.calls())
    run.create("stop")
    assert run.ended() == ["ray up"]
    (warning,) = run.events.of("warning")
    assert warning["text"] == f"machines may exist, and cost money: ray down {run.spec.file}"


def test_ray_gives_the_reason_of_a_failure_on_machines_that_stay(started: Callable[..., Started]) -> None:
    run = started(stays=True)
    for name in ("head", "accept", "fails"):
        run.create(name)
    assert run.ended() == ["ray up"]
    assert run.code == 1
    assert [each["error"] for each in run.events.of("crash")] == [f"{JOB} ended with 3"]
