"""Managed jobs: queued, followed, moved to other machines and stopped, with SkyPilot's client replaced."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.training.launch.fake_sky import LOG, FakeSky, driven
from trainfleet.errors import InputError, TrainfleetError
from trainfleet.training.launch.remote.follower import Stopped
from trainfleet.training.launch.sky import follow
from trainfleet.training.launch.sky.follow import Follower


class FakeJobs(ModuleType):
    """The part of SkyPilot's managed jobs that a follower calls: a log and a status for each set of pods.

    `own` and `others` are the numbers of jobs named `tf-night` that have not ended, by whose they are.
    """

    def __init__(self, lives: list[tuple[list[str], str]], reason: str = "", controller: str = "") -> None:
        super().__init__("sky.jobs")
        self.lives, self.reason, self.controller = iter(lives), reason, controller
        self.calls: list[tuple[Any, ...]] = []
        self.own: list[int] = []
        self.others: list[int] = []
        self.status = "PENDING"
        self.cancelled = threading.Event()

    def queue_v2(
        self,
        refresh: bool,
        skip_finished: bool = False,
        all_users: bool = False,
        job_ids: list[int] | None = None,
        fields: Any = (),
    ) -> str:
        if not skip_finished:
            return "job"
        return "all" if all_users else "own"

    def launch(self, task: Any, name: str) -> None:
        self.calls.append(("launch", name))

    def cancel(self, job_ids: list[int]) -> None:
        self.calls.append(("cancel", *job_ids))
        self.cancelled.set()

    def tail_logs(self, job_id: int, follow: bool, output_stream: Any, controller: bool = False) -> None:
        if controller:
            output_stream.write(self.controller)
            return
        log, self.status = next(self.lives)
        for line in log:
            output_stream.write(line)

    def answer(self, request: str) -> Any:
        if request == "job":
            return [self.record()], 0, {}, 0
        found = self.own + (self.others if request == "all" else [])
        return [SimpleNamespace(job_name="tf-night", job_id=each) for each in found], 0, {}, 0

    def record(self) -> Any:
        status = SimpleNamespace(
            value=self.status,
            is_terminal=lambda: self.status in ("SUCCEEDED", "FAILED", "FAILED_NO_RESOURCE", "CANCELLED"),
        )
        return SimpleNamespace(status=status, failure_reason=self.reason)


@pytest.fixture
def managed(reported: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Follower]:
    """Returns a function that follows a managed job."""

    def make(jobs: FakeJobs, **order: Any) -> Follower:
        package = ModuleType("sky")
        package.jobs = jobs  # type: ignore[attr-defined]  # a module made here
        monkeypatch.setitem(sys.modules, "sky", package)
        monkeypatch.setitem(sys.modules, "sky.jobs", jobs)
        monkeypatch.setattr(follow, "list_pods", lambda contexts, run: [])
        sky = FakeSky()
        monkeypatch.setattr(sky, "get", jobs.answer)
        monkeypatch.setattr(sky, "stream_and_get", lambda request, output_stream: ([4], None))
        return driven(
            reported, sky, managed=True, task={"resources": {"infra": "k8s/near"}, "num_nodes": 2}, **order
        )

    return make


def test_a_managed_job_is_queued_followed_and_not_deleted_after_its_end(
    managed: Callable[..., Follower],
) -> None:
    jobs = FakeJobs([(LOG, "SUCCEEDED")])
    assert managed(jobs).run() == 0
    assert jobs.calls == [("launch", "tf-night")]


def test_a_first_managed_job_does_not_need_a_controller(
    managed: Callable[..., Follower], monkeypatch: pytest.MonkeyPatch
) -> None:
    class ClusterNotUpError(Exception):
        """Has the name of SkyPilot's own error."""

    jobs = FakeJobs([(LOG, "SUCCEEDED")])
    one = managed(jobs)
    answer = one.sky.get

    def get(request: str) -> Any:
        if request == "all":
            raise ClusterNotUpError
        return answer(request)

    monkeypatch.setattr(one.sky, "get", get)
    assert one.run() == 0


@pytest.mark.parametrize("whose", ["own", "others"])
def test_a_second_managed_job_of_one_name_is_rejected_and_the_first_is_kept(
    managed: Callable[..., Follower], whose: str
) -> None:
    jobs = FakeJobs([])
    setattr(jobs, whose, [3])
    with pytest.raises(InputError, match=r"(?s)already in progress.*sky jobs cancel 3"):
        managed(jobs).run()
    assert jobs.calls == []


def test_a_managed_job_that_failed_cancels_no_job_of_its_name(managed: Callable[..., Follower]) -> None:
    class Failing(FakeJobs):
        def tail_logs(self, *args: Any, **options: Any) -> None:
            self.others = [9]
            super().tail_logs(*args, **options)

    jobs = Failing([([], "FAILED")])
    with pytest.raises(TrainfleetError, match="the managed job ended: FAILED"):
        managed(jobs).run()
    assert jobs.calls == [("launch", "tf-night"), ("cancel", 4)]


@pytest.mark.parametrize("own", [[], [5]], ids=["not queued", "queued"])
def test_a_managed_job_whose_launch_failed_is_looked_up_among_those_of_its_user(
    managed: Callable[..., Follower], monkeypatch: pytest.MonkeyPatch, own: list[int]
) -> None:
    jobs = FakeJobs([])
    one = managed(jobs)

    def fail(request: Any, output_stream: Any) -> None:
        jobs.own, jobs.others = own, [9]
        raise ConnectionError("reset")

    monkeypatch.setattr(one.sky, "stream_and_get", fail)
    with pytest.raises(TrainfleetError, match="could not start the run"):
        one.run()
    assert jobs.calls == [("launch", "tf-night"), *([("cancel", 5)] if own else [])]


def test_the_last_events_of_lost_pods_do_not_decide_the_result(
    managed: Callable[..., Follower], reported: list[dict[str, Any]]
) -> None:
    lost = [
        '{"kind": "crash", "rank": 1, "error": "worker gone", "trace": ""}\n',
        '{"kind": "exit", "code": 1}\n',
    ]
    jobs = FakeJobs([(lost, "RUNNING"), ([], "RECOVERING"), (LOG, "SUCCEEDED")])
    assert managed(jobs).run() == 0
    assert not any(each["kind"] == "crash" for each in reported)
    assert {"kind": "step", "step": 3, "total": 9} in reported


def test_a_failure_on_healthy_pods_is_reported_with_its_exit_code(
    managed: Callable[..., Follower], reported: list[dict[str, Any]]
) -> None:
    failed = [
        '{"kind": "error", "summary": "no data", "problems": [], "exit_code": 2}\n',
        '{"kind": "exit", "code": 2}\n',
    ]
    assert managed(FakeJobs([(failed, "FAILED")])).run() == 2
    assert reported[-1] == {"kind": "error", "summary": "no data", "problems": [], "exit_code": 2}


def test_a_managed_job_that_never_ran_reports_the_reason_of_its_controller(
    managed: Callable[..., Follower],
) -> None:
    refused = 'pods "tf-night-head" is forbidden: exceeded quota: none, requested: pods=1, used: pods=0'
    jobs = FakeJobs([([], "FAILED_NO_RESOURCE")], reason="all places refused", controller=f"{refused}\n")
    with pytest.raises(TrainfleetError, match="the managed job ended: FAILED_NO_RESOURCE") as raised:
        managed(jobs).run()
    assert "the quota `none` does not allow pods=1 more" in str(raised.value)


def test_a_managed_job_without_capacity_ends_at_the_launch_timeout(
    managed: Callable[..., Follower],
) -> None:
    class Waiting(FakeJobs):
        def tail_logs(self, job_id: int, follow: bool, output_stream: Any, controller: bool = False) -> None:
            if not controller:
                assert self.cancelled.wait(60), "the job was not cancelled"
            super().tail_logs(job_id, follow, output_stream, controller)

    jobs = Waiting([([], "CANCELLING")], controller="exceeded quota: none, requested: pods=1\n")
    with pytest.raises(
        TrainfleetError, match="no capacity anywhere within 0 minutes; tried near, far"
    ) as raised:
        managed(jobs, within_s=0.0).run()
    assert "the quota `none` does not allow" in str(raised.value)
    assert jobs.calls == [("launch", "tf-night"), ("cancel", 4)]


@pytest.mark.parametrize("log", [[], LOG[:2]], ids=["before the first step", "at its newest checkpoint"])
def test_a_managed_job_that_a_stop_cancels_has_not_failed(
    managed: Callable[..., Follower],
    reported: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    log: list[str],
) -> None:
    """Its pods cannot be asked to save, or there is nothing to save."""

    class Waiting(FakeJobs):
        def tail_logs(self, job_id: int, follow: bool, output_stream: Any, controller: bool = False) -> None:
            super().tail_logs(job_id, follow, output_stream, controller)
            one.placed.set()
            (tmp_path / "stop").touch()
            assert self.cancelled.wait(60), "the job was not cancelled"

    monkeypatch.setenv("TRAINFLEET_STOP_FILE", str(tmp_path / "stop"))
    monkeypatch.setattr(follow, "POLL_S", 0.02)
    jobs = Waiting([(log, "CANCELLED")])
    one = managed(jobs, server="https://sky.example")
    with pytest.raises(Stopped):
        one.run()
    when = "at its newest checkpoint" if log else "before the first step"
    assert reported[-1]["text"] == f"stopped {when}; its job was canceled"
    assert jobs.calls == [("launch", "tf-night"), ("cancel", 4)]
