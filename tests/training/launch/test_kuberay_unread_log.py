"""A run whose log cannot be read keeps its machines, and the launcher reports why it shows no steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.launch.fake_api import JOB, PODS, FakeApi
from tests.training.launch.kuberay_follower import follower, pod, status
from trainfleet.training.launch.kuberay import follow, pod_log
from trainfleet.training.launch.remote.follower import exit_code

REJECTIONS = {403: 'cannot get resource "pods/log"', 500: "dial tcp 10.0.0.9:10250: i/o timeout"}
LOG = ("GET", f"{PODS}/submitter/log")


@pytest.fixture(params=sorted(REJECTIONS))
def unread(api: FakeApi, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A run whose pods are ready, and the message with which its log is rejected."""
    monkeypatch.setattr(pod_log, "RETRY_S", 0.01)
    for name, role in (("head", "head"), ("worker-1", "worker"), ("worker-2", "worker")):
        api.objects[f"{PODS}/{name}"] = pod(name, role, ready=True)
    api.objects[f"{PODS}/submitter"] = {
        "metadata": {"name": "submitter", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {}},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    api.refusals[LOG] = (request.param, REJECTIONS[request.param])
    return REJECTIONS[request.param]


def test_a_run_that_ray_has_is_not_deleted_for_want_of_machines(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, unread: str
) -> None:
    state = {"jobDeploymentStatus": "Running", "jobStatus": "RUNNING", "rayClusterName": "rc"}

    def kuberay(api: FakeApi) -> None:
        ended = {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}
        status(api, **(state | ended if api.asked.count(("GET", JOB)) > 8 else state))

    api.on_request = kuberay
    found, output = follower(monkeypatch, within_s=0.0)
    exit_code(found.run, output)
    assert not output.of("error")
    assert f"its log cannot be read: {unread}" in output.notes()


def test_a_run_that_ray_does_not_have_is_deleted_in_time(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, unread: str
) -> None:
    api.on_request = lambda api: status(api, jobDeploymentStatus="Initializing", rayClusterName="rc")
    found, output = follower(monkeypatch, within_s=0.2)
    assert exit_code(found.run, output) == 1
    assert "did not get its machines in time" in output.of("error")[0]["summary"]
    assert unread not in output.notes()
    assert JOB not in api.objects


@pytest.mark.usefixtures("unread")
def test_a_run_is_asked_to_save_although_its_steps_are_not_known(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRAINFLEET_STOP_FILE", str(tmp_path / "stop"))
    asked: list[bool] = []
    monkeypatch.setattr(follow, "ask_ranks", lambda *_: asked.append(JOB in api.objects) or 1)

    def kuberay(api: FakeApi) -> None:
        state = ("Complete", "SUCCEEDED") if asked else ("Running", "RUNNING")
        status(api, jobDeploymentStatus=state[0], jobStatus=state[1], rayClusterName="rc")
        if api.asked.count(LOG) > 2:
            (tmp_path / "stop").touch()

    api.on_request = kuberay
    found, output = follower(monkeypatch)
    exit_code(found.run, output)
    assert asked == [True]
    assert JOB not in api.objects
