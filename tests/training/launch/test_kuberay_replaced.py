"""A RayJob that another launch has created under the name of the run is neither followed nor deleted."""

from __future__ import annotations

import pytest

from tests.training.launch.fake_api import JOB, FakeApi
from tests.training.launch.kuberay_follower import LOG, cluster_of, follower, status
from trainfleet.errors import TrainfleetError
from trainfleet.training.launch.kuberay import runs
from trainfleet.training.launch.kuberay.follow import Follower
from trainfleet.training.launch.kuberay.own_job import launch_of
from trainfleet.training.launch.remote.follower import exit_code


def launched_elsewhere(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> Follower:
    """Another machine launches the run again once its RayJob has ended."""
    status(api, jobDeploymentStatus="Complete")
    other, _ = follower(monkeypatch)
    other._create()
    status(api, jobDeploymentStatus="Running", rayClusterName="rc")
    return other


def launch_there(api: FakeApi) -> str:
    return launch_of(api.objects[JOB])


def test_the_end_of_a_launch_keeps_the_rayjob_of_the_next_one(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    suspended, _ = follower(monkeypatch)
    suspended._create()
    other = launched_elsewhere(api, monkeypatch)
    suspended._handle(LOG[-1])
    suspended.log.ended = True
    assert suspended._follow() == 0
    assert launch_there(api) == other.spec.launch


def test_a_rayjob_of_another_launch_is_not_followed(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    found, output = follower(monkeypatch)
    other: list[Follower] = []

    def replace(text: str) -> None:
        if not other and "submitted as" in text:
            api.objects.pop(JOB)  # `runs stop`
            other.append(launched_elsewhere(api, monkeypatch))

    monkeypatch.setattr(found, "note", replace)
    assert exit_code(found.run, output) == 1
    assert "is no longer in the cluster" in output.of("error")[0]["problems"][0][1]
    assert launch_there(api) == other[0].spec.launch


def test_of_two_launches_that_find_the_same_ended_rayjob_only_one_starts(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower(monkeypatch)[0]._create()
    status(api, jobDeploymentStatus="Complete")
    late, _ = follower(monkeypatch)

    def replace(api: FakeApi) -> None:
        if api.asked[-1] == ("DELETE", JOB):
            api.objects[JOB] = {"metadata": {"name": "tf-lm-tiny", "uid": "another"}}

    api.on_request = replace
    with pytest.raises(TrainfleetError, match="already exists"):
        late._create()
    assert api.objects[JOB]["metadata"]["uid"] == "another"


@pytest.mark.parametrize("now", [True, False])
def test_a_stop_ends_the_run_that_it_was_asked_for(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, now: bool
) -> None:
    follower(monkeypatch)[0]._create()
    status(api, jobDeploymentStatus="Running", rayClusterName="rc")
    cluster = cluster_of(api)
    found = runs.find(cluster, "lm-tiny")
    other = launched_elsewhere(api, monkeypatch)
    monkeypatch.setattr(runs, "ask_ranks", lambda *_: 1)
    monkeypatch.setattr(runs, "POLL_S", 0.01)
    how = runs.stop(cluster, found, bool, now=now, within_s=5, report=lambda _: None)
    assert how == ("ended at once" if now else "saved and ended")
    assert launch_there(api) == other.spec.launch


def test_a_log_ends_when_another_launch_replaces_the_rayjob(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower(monkeypatch)[0]._create()
    status(api, jobDeploymentStatus="Running", rayClusterName="rc")
    cluster = cluster_of(api)
    found = runs.find(cluster, "lm-tiny")
    launched_elsewhere(api, monkeypatch)
    with pytest.raises(TrainfleetError, match="printed nothing yet"):
        list(runs.lines(cluster, found, follow=True))
