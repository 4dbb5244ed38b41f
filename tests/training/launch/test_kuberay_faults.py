"""Errors of a cluster: a rejected launch creates nothing and reports why, and a run that cannot start is
deleted with the reason.

The cluster is a loopback server with errors that a real one cannot produce on demand. tests/cluster uses a
real one.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.training.launch.fake_api import JOB, JOBS, NAMESPACE, PODS, FakeApi, serving
from tests.training.launch.kuberay_launches import launch
from trainfleet.errors import InputError, MissingToolError, TrainfleetError
from trainfleet.training.cli.connection import launched_on
from trainfleet.training.launch.kuberay import client, follow, runs
from trainfleet.training.launch.kuberay.client import ApiError, Cluster, retry_unreachable
from trainfleet.training.launch.kuberay.launcher import KubeRay
from trainfleet.training.launch.kuberay.messages import KubeRaySpec
from trainfleet.training.launch.kuberay.run_spec import resolve
from trainfleet.training.launch.remote.follower import exit_code

PLACE: dict[str, Any] = {"context": "fake", "namespace": "training", "image": "me/trainfleet:1"}
EVENT = "/api/v1/namespaces/training/events"


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    with serving() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path / "kubeconfig")))
        for name in (
            "AWS_ENDPOINT_URL",
            "TRAINFLEET_S3_ENDPOINT",
            "STORAGE_EMULATOR_HOST",
            "AWS_CA_BUNDLE",
            "SSL_CERT_FILE",
        ):
            monkeypatch.delenv(name, raising=False)
        # kube_config reads KUBECONFIG at import
        monkeypatch.setattr(
            "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "kubeconfig")
        )
        yield server


class RecordedEvents:
    """Records the events that a follower sends to its launcher."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def send(self, kind: str, **fields: Any) -> None:
        self.events.append({"kind": kind, **fields})

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == kind]

    def notes(self) -> str:
        return "\n".join(event["text"] for event in self.of("note"))


def check(*overrides: str, **request: Any) -> None:
    KubeRay().check(*launch(*overrides, **(PLACE | request)))


def follower(monkeypatch: pytest.MonkeyPatch, **request: Any) -> tuple[follow.Follower, RecordedEvents]:
    """A follower as `trainfleet launch` starts it, in this process and with short timeouts."""
    for name, value in {
        "POLL_S": 0.05,
        "TICK_S": 0.01,
        "IMAGE_TIMEOUT_S": 0.3,
        "OPERATOR_TIMEOUT_S": 0.5,
        "LAST_LINES_S": 0.5,
    }.items():
        monkeypatch.setattr(follow, name, value)
    recipe, target = launch(**(PLACE | request))
    launcher = KubeRay()
    run = resolve(recipe, target, launcher.options(target), {})
    spec = KubeRaySpec.model_validate_json(launcher.follower_spec(run, target).model_dump_json())
    output = RecordedEvents()
    return follow.Follower(spec, client.connect("fake", "", "", "training"), output), output  # type: ignore[arg-type]


def status(api: FakeApi, **fields: Any) -> None:
    if JOB in api.objects:
        api.objects[JOB]["status"] = {**api.objects[JOB].get("status", {}), **fields}


def pod(
    name: str, role: str, *, ready: bool = False, waiting: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": name, "labels": {"ray.io/node-type": role, "ray.io/cluster": "rc"}},
        "status": {
            "phase": "Running" if ready else "Pending",
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [
                {
                    "name": f"ray-{role}",
                    "image": "me/trainfleet:1",
                    "state": {"waiting": waiting} if waiting else {},
                }
            ],
        },
    }


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


def test_waiting_in_a_queue_is_reported(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    def kueue(api: FakeApi) -> None:
        if JOB in api.objects:
            api.objects[JOB]["spec"]["suspend"] = True
            owner = [{"uid": api.objects[JOB]["metadata"]["uid"]}]
            waiting = {
                "type": "QuotaReserved",
                "status": "False",
                "message": "insufficient quota for nvidia.com/gpu",
            }
            workload = {"metadata": {"ownerReferences": owner}, "status": {"conditions": [waiting]}}
            api.objects["/apis/kueue.x-k8s.io/v1beta1/namespaces/training/workloads/1"] = workload

    api.on_request = kueue
    found, output = follower(monkeypatch, within_s=0.5)
    assert exit_code(found.run, output) == 1
    assert "insufficient quota for nvidia.com/gpu" in output.notes()


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


LOG = [
    {"kind": "attempt", "started": "1"},
    {"kind": "step", "step": 1, "total": 2},
    {"kind": "step", "step": 2, "total": 2},
    {"kind": "result", "status": "finished", "step": 2, "metrics": {}},
]


def running(api: FakeApi, lines: list[Any]) -> None:
    """A run whose submitter has written these lines and has exited."""
    api.objects[f"{PODS}/submitter"] = {
        "metadata": {"name": "submitter", "labels": {}},
        "status": {"phase": "Succeeded"},
    }
    output = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    api.logs["submitter"] = "".join(
        f"2026-01-01T00:00:{number:02}.000000000Z {line}\n" for number, line in enumerate(output)
    )


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


# Existing runs


def cluster_of(api: FakeApi) -> Cluster:
    return client.connect("fake", "", "", "training")


def test_runs_are_listed_with_their_status(api: FakeApi) -> None:
    for name, state in (("a", "Running"), ("b", "Failed")):
        api.objects[f"{JOBS}/tf-{name}"] = {
            "metadata": {
                "name": f"tf-{name}",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"trainfleet.io/run": name},
            },
            "status": {"jobDeploymentStatus": state},
        }
    assert [(run.name, run.state) for run in runs.list_runs(cluster_of(api))] == [
        ("a", "running"),
        ("b", "failed"),
    ]


def test_a_missing_run_is_reported_with_a_suggestion(api: FakeApi) -> None:
    api.objects[f"{JOBS}/tf-night"] = {
        "metadata": {"name": "tf-night", "labels": {"trainfleet.io/run": "night"}}
    }
    with pytest.raises(InputError, match=r"has no run `nigth` \(.*night"):
        runs.find(cluster_of(api), "nigth")


def test_a_log_is_printed_without_repetitions(api: FakeApi) -> None:
    running(api, [LOG[0], "a", LOG[0], "a", "b"])
    api.objects[JOB] = {"metadata": {"name": "tf-lm-tiny"}, "status": {"jobDeploymentStatus": "Complete"}}
    found = runs.find(cluster_of(api), "lm-tiny")
    assert [line for line in runs.lines(cluster_of(api), found, follow=True) if isinstance(line, str)] == [
        "a",
        "b",
    ]


def test_a_run_without_events_is_reported(api: FakeApi) -> None:
    api.objects[JOB] = {"metadata": {"name": "tf-lm-tiny"}, "status": {"jobDeploymentStatus": "Initializing"}}
    found = runs.find(cluster_of(api), "lm-tiny")
    with pytest.raises(TrainfleetError, match="printed nothing yet"):
        list(runs.lines(cluster_of(api), found, follow=False))


def test_a_stop_deletes_the_run(api: FakeApi) -> None:
    api.objects[JOB] = {"metadata": {"name": "tf-lm-tiny"}, "status": {"jobDeploymentStatus": "Initializing"}}
    cluster = cluster_of(api)
    assert (
        runs.stop(cluster, runs.find(cluster, "lm-tiny"), now=False, within_s=1, report=print)
        == "ended at once"
    )
    assert JOB not in api.objects


def test_a_run_is_found_where_it_was_launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "night").mkdir(parents=True)
    launches = [
        {"on": "kuberay", "context": "old"},
        {"on": "kuberay", "context": "kind-kind", "namespace": "mine"},
    ]
    (tmp_path / "runs" / "night" / "run.json").write_text(json.dumps({"launches": launches}))
    assert launched_on("night") == (None, "kind-kind", "mine")
    assert launched_on("day") == launched_on("../runs/night") == (None, None, None)


def test_a_dashboard_without_a_run_lists_the_existing_runs(api: FakeApi) -> None:
    with pytest.raises(InputError, match="has no Ray cluster"):
        runs.head_of(cluster_of(api), None)
    api.objects[f"{PODS}/head"] = pod("head", "head", ready=True)
    assert runs.head_of(cluster_of(api), None) == ("head", "rc")
    with pytest.raises(InputError, match="Ray clusters: rc"):
        runs.head_of(cluster_of(api), "other")
