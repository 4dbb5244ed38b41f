"""Errors of a cluster: a rejected launch creates nothing and reports why, and a run that cannot start is
deleted with the reason.

The cluster is a loopback server with errors that a real one cannot produce on demand. tests/cluster uses a
real one.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.launch.fake_api import JOB, JOBS, NAMESPACE, PODS, FakeApi
from tests.training.launch.kuberay_follower import EVENT, check, follower, pod, status
from trainfleet.errors import InputError, MissingToolError, TrainfleetError
from trainfleet.training.launch.kuberay import follow
from trainfleet.training.launch.remote.follower import exit_code

# Before anything is created


def test_a_check_asks_the_cluster_and_creates_nothing(api: FakeApi) -> None:
    before = dict(api.objects)
    check()
    assert api.objects == before
    assert ("POST", JOBS) in api.asked, "a dry run calls the admission webhooks"


REFUSALS: dict[str, tuple[Callable[[FakeApi], Any], type[TrainfleetError], str]] = {
    "expired token": (
        lambda api: api.refusals.update({("GET", NAMESPACE): (401, "Unauthorized")}),
        InputError,
        "login has expired",
    ),
    "namespace missing": (lambda api: api.objects.pop(NAMESPACE), InputError, "no such namespace"),
    "no KubeRay": (lambda api: api.objects.pop("/apis/ray.io"), MissingToolError, "has no KubeRay"),
    "KubeRay too old": (
        lambda api: api.objects.update({"/apis/ray.io": {"versions": [{"version": "v1alpha1"}]}}),
        MissingToolError,
        "serves ray.io/v1alpha1, not v1",
    ),
    "KubeRay that lacks a field": (
        lambda api: api.refusals.update(
            {
                ("POST", JOBS): (
                    400,
                    'RayJob in version "v1" cannot be handled: strict decoding error: unknown field "spec.x"',
                )
            }
        ),
        MissingToolError,
        'unknown field "spec.x"',
    ),
    "no right to make runs": (
        lambda api: api.refusals.update({("POST", JOBS): (403, "rayjobs is forbidden")}),
        InputError,
        "trainfleet-launcher",
    ),
    "a namespace that is going": (
        lambda api: api.refusals.update(
            {("POST", JOBS): (403, 'rayjobs "x" is forbidden: because it is being terminated')}
        ),
        InputError,
        "is being deleted",
    ),
    "quota of objects": (
        lambda api: api.refusals.update(
            {
                ("POST", JOBS): (
                    403,
                    "exceeded quota: q, requested: count/rayjobs.ray.io=1, used: count/rayjobs.ray.io=0, limited: count/rayjobs.ray.io=0",
                )
            }
        ),
        InputError,
        "allows 0 count/rayjobs",
    ),
    "an admission policy": (
        lambda api: api.refusals.update({("POST", JOBS): (422, "denied: images must be signed")}),
        InputError,
        "images must be signed",
    ),
    "an API server out of order": (
        lambda api: api.refusals.update({("GET", NAMESPACE): (503, "etcd is gone")}),
        InputError,
        "etcd is gone",
    ),
}


@pytest.mark.parametrize("case", sorted(REFUSALS))
def test_an_error_of_the_cluster_is_reported_in_plain_words(case: str, api: FakeApi) -> None:
    arrange, kind, output = REFUSALS[case]
    arrange(api)
    with pytest.raises(kind, match=output):
        check()
    assert JOB not in api.objects


def test_a_missing_cluster_is_reported_with_its_name(api: FakeApi, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    api.address = f"http://127.0.0.1:{port}"
    api.kubeconfig(tmp_path / "kubeconfig")
    with pytest.raises(InputError, match=r"the cluster does not answer\n  fake: .*refused"):
        check()


def test_a_cluster_that_needs_no_proxy_is_reached_without_it(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    check()
    assert ("GET", NAMESPACE) in api.asked


def test_a_missing_context_is_reported_with_a_suggestion(api: FakeApi) -> None:
    with pytest.raises(InputError, match=r"no context `fak` \(.*fake"):
        check(context="fak")


def test_a_missing_secret_is_reported_before_pods_wait_for_it(api: FakeApi) -> None:
    with pytest.raises(InputError, match="secrets/s3-keys: is not in namespace training"):
        check(from_secrets=("s3-keys",))


def test_a_second_launch_with_the_same_name_reports_how_to_continue(api: FakeApi) -> None:
    api.objects[JOB] = {
        "metadata": {"name": "tf-lm-tiny", "uid": "1"},
        "status": {"jobDeploymentStatus": "Running"},
    }
    with pytest.raises(InputError, match="trainfleet runs attach lm-tiny"):
        check()


def test_a_finished_run_does_not_block_a_new_one(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.objects[JOB] = {
        "metadata": {"name": "tf-lm-tiny", "uid": "old"},
        "status": {"jobDeploymentStatus": "Failed"},
    }
    check()
    found, output = follower(monkeypatch, detach=True)
    api.on_request = lambda api: (
        status(api, jobDeploymentStatus="Initializing")
        if api.objects.get(JOB, {}).get("metadata", {}).get("uid") != "old"
        else None
    )
    assert exit_code(found.run, output) == 0
    assert api.objects[JOB]["metadata"]["uid"] != "old"
    assert output.of("detached")[0]["job"] == "tf-lm-tiny"


# After it was created


def test_an_image_that_cannot_be_pulled_ends_and_deletes_the_run(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.objects[f"{PODS}/head"] = pod(
        "head", "head", waiting={"reason": "ImagePullBackOff", "message": "me/trainfleet:1: not found"}
    )
    api.on_request = lambda api: status(api, jobDeploymentStatus="Initializing", rayClusterName="rc")
    found, output = follower(monkeypatch)
    assert exit_code(found.run, output) == 2
    (error,) = output.of("error")
    assert "no such image or tag" in error["problems"][0][1]
    assert "--image" in error["problems"][0][2]
    assert JOB not in api.objects


def test_an_invalid_image_name_is_not_retried(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    api.objects[f"{PODS}/head"] = pod(
        "head", "head", waiting={"reason": "InvalidImageName", "message": "couldn't parse image"}
    )
    api.on_request = lambda api: status(api, jobDeploymentStatus="Initializing", rayClusterName="rc")
    found, output = follower(monkeypatch)
    monkeypatch.setattr(follow, "IMAGE_TIMEOUT_S", 1e9)
    assert exit_code(found.run, output) == 2
    assert "couldn't parse image" in output.of("error")[0]["problems"][0][1]


def test_a_quota_of_zero_reports_what_was_tried_and_times_out(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = "Failed to create worker Pod: exceeded quota: gpus, requested: nvidia.com/gpu=1, used: nvidia.com/gpu=0, limited: nvidia.com/gpu=0"
    api.objects[f"{EVENT}/1"] = {"type": "Warning", "reason": "FailedToCreateWorkerPod", "message": message}
    api.on_request = lambda api: status(api, jobDeploymentStatus="Initializing", rayClusterName="rc")
    found, output = follower(monkeypatch, within_s=0.6)
    assert exit_code(found.run, output) == 1
    assert "allows 0 nvidia.com/gpu" in output.notes()
    (error,) = output.of("error")
    assert "did not get its machines in time" in error["summary"]
    assert "allows 0 nvidia.com/gpu" in error["problems"][0][1]
    assert JOB not in api.objects, "an incomplete run must be deleted"


def test_a_queue_is_reported_and_its_time_does_not_count(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls: list[bool] = []
    api.objects["/apis/kueue.x-k8s.io"] = {"versions": [{"version": "v1beta1"}]}

    def kueue(api: FakeApi) -> None:
        if JOB in api.objects:
            polls.append(len(polls) < 60)
            api.objects[JOB]["spec"]["suspend"] = polls[-1]
            if not polls[-1]:
                status(api, jobDeploymentStatus="Initializing", rayClusterName="rc")
            owner = [{"uid": api.objects[JOB]["metadata"]["uid"]}]
            waiting = {
                "type": "QuotaReserved",
                "status": "False",
                "message": "insufficient quota for nvidia.com/gpu",
            }
            workload = {"metadata": {"ownerReferences": owner}, "status": {"conditions": [waiting]}}
            api.objects["/apis/kueue.x-k8s.io/v1beta1/namespaces/training/workloads/1"] = workload

    api.on_request = kueue
    found, output = follower(monkeypatch, within_s=0.05)
    assert exit_code(found.run, output) == 1
    assert "insufficient quota for nvidia.com/gpu" in output.notes()
    assert "did not get its machines in time" in output.of("error")[0]["summary"]
    assert not polls[-1], "the time before the admission was counted"


def test_following_a_run_of_another_launch_never_deletes_it(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    launched, _ = follower(monkeypatch)
    launched._create()
    one = launched.spec.launch
    stuck = {"reason": "InvalidImageName", "message": "couldn't parse image"}
    api.on_request = lambda api: status(api, jobDeploymentStatus="Initializing", rayClusterName="rc")
    slow, output = follower(monkeypatch, attach=True, launch=one, within_s=0.0)
    monkeypatch.setenv("TRAINFLEET_STOP_FILE", str(tmp_path / "stop"))
    monkeypatch.setattr(slow, "_reject_hopeless", lambda _: (tmp_path / "detach").touch())
    assert exit_code(slow.run, output) == 0, "the time limit is that of the launch"
    assert output.of("detached")
    (tmp_path / "detach").unlink()
    api.objects[f"{PODS}/head"] = pod("head", "head", waiting=stuck)
    failed, output = follower(monkeypatch, attach=True, launch=one)
    assert exit_code(failed.run, output) == 2
    (tmp_path / "stop").touch()
    stopped, output = follower(monkeypatch, attach=True, launch=one)
    assert exit_code(stopped.run, output) == 130
    assert JOB in api.objects


def test_a_run_from_which_the_launcher_detaches_continues(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRAINFLEET_STOP_FILE", str(tmp_path / "stop"))
    (tmp_path / "detach").touch()
    api.on_request = lambda api: status(api, jobDeploymentStatus="Running", rayClusterName="rc")
    found, output = follower(monkeypatch)
    assert exit_code(found.run, output) == 0
    assert "runs attach lm-tiny" in " ".join(output.of("detached")[0]["how"])
    assert JOB in api.objects, "it was created before the launcher left"


def test_a_cluster_without_an_operator_is_reported_and_nothing_is_left(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    for detach in (False, True):
        found, output = follower(monkeypatch, detach=detach)
        assert exit_code(found.run, output) == 1
        assert "does not handle the run" in output.of("error")[0]["summary"]
        assert JOB not in api.objects


def test_the_run_is_kept_if_the_cluster_stops_answering(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "retry_unreachable", lambda call, _: call())
    api.on_request = lambda api: (
        api.refusals.update({("GET", JOB): (503, "etcd is gone")}) if JOB in api.objects else None
    )
    found, output = follower(monkeypatch)
    assert exit_code(found.run, output) == 1
    assert "the run continues there" in output.of("error")[0]["problems"][0][2]
    assert JOB in api.objects


def test_a_run_that_is_deleted_by_someone_else_ends_with_the_reason(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.on_request = lambda api: (
        api.objects.pop(JOB, None)
        if api.asked.count(("GET", JOB)) > 3
        else status(api, jobDeploymentStatus="Initializing")
    )
    found, output = follower(monkeypatch)
    assert exit_code(found.run, output) == 1
    assert "somebody deleted it" in output.of("error")[0]["problems"][0][1]


def test_objects_are_deleted_if_one_of_them_cannot_be_created(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.refusals["PATCH", f"{NAMESPACE}/configmaps/tf-lm-tiny"] = (403, "configmaps is forbidden")
    found, output = follower(monkeypatch)
    assert exit_code(found.run, output) == 2
    assert "configmaps is forbidden" in json.dumps(output.of("error"))
    assert JOB not in api.objects


def test_a_launcher_of_an_older_platform_starts_a_run_without_a_disruption_budget(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = f"{NAMESPACE.replace('/api/v1', '/apis/policy/v1')}/poddisruptionbudgets/tf-lm-tiny"
    api.refusals["PATCH", budget] = (403, "budgets are forbidden")
    found, output = follower(monkeypatch)
    found._create()
    assert JOB in api.objects
    assert f"{NAMESPACE}/configmaps/tf-lm-tiny" in api.objects
    assert budget not in api.objects
    assert "no disruption budget" in output.notes()


# Existing runs
