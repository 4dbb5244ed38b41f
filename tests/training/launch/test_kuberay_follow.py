"""A run on a cluster is followed to its end, through a stop request, an error and a control plane that restarts."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.training.launch.fake_api import JOB, FakeApi
from tests.training.launch.kuberay_follower import LOG, follower, running, status
from trainfleet.errors import TrainfleetError
from trainfleet.training.launch.kuberay import follow
from trainfleet.training.launch.remote.follower import STOPPED, Stopped, exit_code
from trainfleet.training.launch.remote.kubernetes import ApiError, retry_unreachable


def test_a_run_is_followed_to_its_end_and_deleted(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    running(api, ["Ray's own words", *LOG])
    api.on_request = lambda api: status(api, jobDeploymentStatus="Running", rayClusterName="rc")
    found, output = follower(monkeypatch)
    assert exit_code(found.run, output) == 0
    assert [event["step"] for event in output.of("step")] == [1, 2]
    assert output.of("result")[0]["status"] == "finished"
    assert JOB not in api.objects


def test_a_run_that_is_asked_to_stop_ends_after_its_save(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRAINFLEET_STOP_FILE", str(tmp_path / "stop"))
    monkeypatch.setattr(follow, "ask_ranks", lambda *_: asked.append(True) or 1)
    asked: list[bool] = []
    api.on_request = lambda api: status(api, jobDeploymentStatus="Running", rayClusterName="rc")
    found, output = follower(monkeypatch)
    log = iter([LOG[:2], [{"kind": "result", "status": "stopped", "step": 1, "metrics": {}}]])

    def drain() -> list[Any]:
        if output.of("step") and not asked:
            (tmp_path / "stop").touch()
            return []
        return next(log, [])

    monkeypatch.setattr(found.log, "drain", drain)
    assert exit_code(found.run, output) == 0
    assert output.of("result")[0]["status"] == "stopped"
    assert JOB not in api.objects


def test_a_job_that_saves_nothing_is_deleted_at_once(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRAINFLEET_STOP_FILE", str(tmp_path / "stop"))
    monkeypatch.setattr(follow, "ask_ranks", lambda *_: pytest.fail("there is nothing to save"))
    api.on_request = lambda api: status(api, jobDeploymentStatus="Running", rayClusterName="rc")
    found, output = follower(monkeypatch, job="{}")

    def drain() -> list[Any]:
        (tmp_path / "stop").touch()
        return LOG[:2]

    monkeypatch.setattr(found.log, "drain", drain)
    assert exit_code(found.run, output) == STOPPED
    assert output.of("step")
    assert JOB not in api.objects


def test_sigterm_within_a_call_of_the_api_deletes_the_run(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Stopped

    def act(api: FakeApi) -> None:
        status(api, jobDeploymentStatus="Initializing", rayClusterName="rc")
        if api.asked.count(("GET", JOB)) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.2)  # the follower waits for this answer

    before = signal.signal(signal.SIGTERM, stop)
    try:
        api.on_request = act
        found, output = follower(monkeypatch, within_s=5.0)
        assert exit_code(found.run, output) == STOPPED
    finally:
        signal.signal(signal.SIGTERM, before)
    assert JOB not in api.objects


def test_a_run_that_another_command_stopped_and_deleted_has_ended_as_stopped(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.on_request = lambda api: status(api, jobDeploymentStatus="Running", rayClusterName="rc")
    found, output = follower(monkeypatch)
    stopped = {"kind": "result", "status": "stopped", "step": 1, "metrics": {}}

    def drain() -> list[Any]:
        if output.of("result"):
            api.on_request = lambda api: api.objects.pop(JOB, None)
            return []
        return [*LOG[:2], stopped]

    monkeypatch.setattr(found.log, "drain", drain)
    assert exit_code(found.run, output) == 0
    assert output.of("result")[0]["status"] == "stopped"
    assert not output.of("error")


def test_an_error_of_the_run_is_reported_after_its_machines_are_released(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    running(api, [LOG[0], {"kind": "error", "summary": "bad data", "problems": [], "exit_code": 2}])
    api.on_request = lambda api: status(
        api, jobDeploymentStatus="Failed", jobStatus="FAILED", reason="AppFailed", message="exit code 2"
    )
    found, output = follower(monkeypatch)
    seen: list[bool] = []
    reported = output.send
    monkeypatch.setattr(
        output,
        "send",
        lambda kind, **fields: (
            seen.append(JOB in api.objects) if kind == "error" else None,
            reported(kind, **fields),
        ),
    )
    exit_code(found.run, output)
    assert seen == [False]


def test_a_run_that_ends_without_a_message_reports_the_status_of_kuberay(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = {
        "jobDeploymentStatus": "Failed",
        "reason": "SubmissionFailed",
        "message": "Job submission has failed",
    }
    api.on_request = lambda api: status(api, **failed)
    found, output = follower(monkeypatch)
    assert exit_code(found.run, output) == 1
    assert "SubmissionFailed: Job submission has failed" in output.of("crash")[0]["error"]


def test_a_control_plane_that_restarts_does_not_end_the_run(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = iter([True] * 3)
    calls: list[int] = []

    def call() -> str:
        calls.append(1)
        if next(away, False):
            raise ApiError(0, "", "connection refused")
        return "here"

    notes: list[str] = []
    assert retry_unreachable(call, notes.append, wait_s=0.01) == "here"
    assert len(calls) == 4
    assert [note.split("(")[0].strip() for note in notes] == [
        "the cluster does not answer",
        "the cluster answers again",
    ]


def test_a_rejected_call_is_not_retried() -> None:
    calls: list[int] = []

    def call() -> None:
        calls.append(1)
        raise ApiError(403, "Forbidden", "no")

    with pytest.raises(ApiError):
        retry_unreachable(call, lambda _: None)
    assert len(calls) == 1


def test_retries_end_after_their_time_limit() -> None:
    def call() -> None:
        raise ApiError(503, "", "still starting")

    with pytest.raises(ApiError, match="still starting"):
        retry_unreachable(call, lambda _: None, retry_for_s=0.05, wait_s=0.01)


def test_a_long_lived_cluster_waits_in_the_queue_for_as_long_as_it_needs(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, output = follower(monkeypatch, cluster="shared-ray")
    run.spec.queue, run.spec.within_s = "training", 0.0
    run._create()
    (cluster,) = [each for each in api.objects.values() if each["kind"] == "RayCluster"]
    job = {**api.objects[JOB], "status": {"jobDeploymentStatus": "Initializing"}}
    cluster["spec"]["suspend"] = True  # as Kueue's webhook sets it
    api.objects["/apis/kueue.x-k8s.io"] = {"versions": [{"version": "v1beta2"}]}
    run._poll(job)
    assert output.notes().splitlines()[-1] == "queued in `training`"
    cluster["spec"]["suspend"] = False
    run._poll(job)
    with pytest.raises(TrainfleetError, match="did not get its machines in time"):
        run._poll(job)


def test_a_preempted_run_is_reported_as_queued_and_not_as_lost(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, output = follower(monkeypatch)
    run.spec.queue, run.spec.within_s = "training", 60.0
    run._create()
    job = {**api.objects[JOB], "status": {"jobDeploymentStatus": "Running"}}
    run._poll(job)
    run.started = run.stepped = True
    run._restarts = {"tf-run-worker": 0}
    why = "Preempted to accommodate a workload (UID: 1, JobUID: 2) due to prioritization"
    workload = {
        "metadata": {"ownerReferences": [{"uid": job["metadata"]["uid"]}]},
        "status": {"conditions": [{"type": "Evicted", "status": "True", "message": why}]},
    }
    api.objects["/apis/kueue.x-k8s.io"] = {"kind": "APIGroup", "versions": [{"version": "v1beta2"}]}
    api.objects["/apis/kueue.x-k8s.io/v1beta2/namespaces/training/workloads/1"] = workload
    job = {**job, "spec": {**job["spec"], "suspend": True}}
    run._poll(job)
    assert output.notes().splitlines()[-1] == f"requeued in `training`: {why}"
    assert "was lost" not in output.notes()
    run._poll({**job, "spec": {**job["spec"], "suspend": False}})
    run._handle({"kind": "attempt"})
    assert "the head was lost" not in output.notes()
    changes = [each["kind"] for each in output.events if each["kind"] in ("admitted", "requeued")]
    assert changes == ["admitted", "requeued", "admitted"]
