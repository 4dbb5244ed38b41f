"""A detached launch, a stop and a log that is followed survive an API server that fails for a moment, and a
launch that waits can be stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.training.launch.fake_api import JOB, PODS, FakeApi
from tests.training.launch.kuberay_follower import LOG, cluster_of, follower, running, status
from trainfleet.errors import TrainfleetError
from trainfleet.training.launch.kuberay import follow, runs
from trainfleet.training.launch.remote import kubernetes
from trainfleet.training.launch.remote.follower import STOPPED, Stopped, exit_code

AWAY = {429: "Too many requests", 500: "etcdserver: leader changed"}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes.retry_unreachable, "__kwdefaults__", {"retry_for_s": 60.0, "wait_s": 0.01})
    monkeypatch.setattr(runs, "POLL_S", 0.01)


def failing(
    call: tuple[str, str], code: int, then: Callable[[FakeApi], object], number: int = 2
) -> Callable[[FakeApi], None]:
    """Reject one call: the one of this number among those of its kind that are asked from now on."""
    seen: list[bool] = []

    def on_request(api: FakeApi) -> None:
        then(api)
        api.refusals.pop(call, None)
        if api.asked[-1] == call:
            seen.append(True)
            if len(seen) == number:
                api.refusals[call] = (code, AWAY[code])

    return on_request


@pytest.mark.parametrize("code", sorted(AWAY))
def test_a_launch_detaches_although_one_call_fails(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def kuberay(api: FakeApi) -> None:
        if api.asked.count(("GET", JOB)) > 2:
            status(api, jobDeploymentStatus="Initializing")

    api.on_request = failing(("GET", JOB), code, kuberay)
    found, output = follower(monkeypatch, detach=True)
    assert exit_code(found.run, output) == 0
    assert AWAY[code] in output.notes()
    assert output.of("detached")
    assert JOB in api.objects


def test_a_launch_that_is_stopped_before_it_detaches_leaves_nothing(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRAINFLEET_STOP_FILE", str(tmp_path / "stop"))

    def on_request(api: FakeApi) -> None:
        if JOB in api.objects:
            (tmp_path / "stop").touch()
        if api.asked.count(("GET", JOB)) > 3:
            status(api, jobDeploymentStatus="Initializing")

    api.on_request = on_request
    found, output = follower(monkeypatch, detach=True)
    assert exit_code(found.run, output) == STOPPED
    assert not output.of("detached")
    assert JOB not in api.objects


def test_sigterm_before_a_launch_detaches_leaves_nothing(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: float) -> None:
        raise Stopped

    found, output = follower(monkeypatch, detach=True)
    monkeypatch.setattr(follow.time, "sleep", interrupted)
    assert exit_code(found.run, output) == STOPPED
    assert JOB not in api.objects


def test_sigterm_between_two_objects_leaves_nothing(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(document: dict[str, object]) -> None:
        assert JOB in api.objects
        raise Stopped

    found, output = follower(monkeypatch)
    monkeypatch.setattr(found, "_apply", interrupted)
    assert exit_code(found.run, output) == STOPPED
    assert JOB not in api.objects


@pytest.mark.parametrize(("method", "number"), [("GET", 2), ("DELETE", 1)])
def test_a_stop_waits_for_the_save_and_deletes_although_one_call_fails(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, method: str, number: int
) -> None:
    follower(monkeypatch)[0]._create()
    status(api, jobDeploymentStatus="Running", rayClusterName="rc")
    monkeypatch.setattr(runs, "ask_ranks", lambda *_: 1)
    cluster, reported = cluster_of(api), list[str]()
    found = runs.find(cluster, "lm-tiny")

    def kuberay(api: FakeApi) -> None:
        if api.asked.count(("GET", JOB)) > 5:
            status(api, jobDeploymentStatus="Complete")

    api.on_request = failing((method, JOB), 429, kuberay, number)
    assert (
        runs.stop(cluster, found, bool, now=False, within_s=20, report=reported.append) == "saved and ended"
    )
    assert AWAY[429] in "\n".join(reported)
    assert JOB not in api.objects


@pytest.mark.parametrize("call", [("GET", JOB), ("GET", f"{PODS}/submitter/log")])
def test_a_log_is_followed_although_one_call_fails(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, call: tuple[str, str]
) -> None:
    follower(monkeypatch)[0]._create()
    status(api, jobDeploymentStatus="Running", rayClusterName="rc")
    running(api, ["a"])
    cluster = cluster_of(api)
    found = runs.find(cluster, "lm-tiny")

    def kuberay(api: FakeApi) -> None:
        if api.asked.count(call) > 3:
            running(api, ["a", LOG[-1]])
            status(api, jobDeploymentStatus="Complete")

    api.on_request = failing(call, 500, kuberay)
    first, note, last = runs.lines(cluster, found, follow=True)
    assert first == "a"
    assert isinstance(note, dict)
    assert AWAY[500] in note["text"]
    assert last == LOG[-1]


def test_a_log_that_cannot_be_read_for_long_is_reported(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower(monkeypatch)[0]._create()
    status(api, jobDeploymentStatus="Running", rayClusterName="rc")
    running(api, ["a"])
    monkeypatch.setattr(runs, "RETRY_FOR_S", 0.1)
    cluster = cluster_of(api)
    found = runs.find(cluster, "lm-tiny")
    for code, follows in ((403, True), (500, True), (500, False)):
        api.refusals["GET", f"{PODS}/submitter/log"] = (code, "no log")
        with pytest.raises(TrainfleetError, match="no log"):
            list(runs.lines(cluster, found, follow=follows))
