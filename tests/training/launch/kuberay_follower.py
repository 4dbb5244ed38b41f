"""A follower of a RayJob in this process, and what the fake API server answers it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.training.launch.fake_api import JOB, PODS, FakeApi
from tests.training.launch.kuberay_launches import launch
from trainfleet.training.launch.kuberay import follow
from trainfleet.training.launch.kuberay.launcher import KubeRay
from trainfleet.training.launch.kuberay.messages import KubeRaySpec
from trainfleet.training.launch.kuberay.run_spec import resolve
from trainfleet.training.launch.remote.kubernetes import Cluster, connect

PLACE: dict[str, Any] = {"context": "fake", "namespace": "training", "image": "me/trainfleet:1"}


EVENT = "/api/v1/namespaces/training/events"


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
    return follow.Follower(spec, connect("fake", "", "", "training"), output), output  # type: ignore[arg-type]


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


def cluster_of(api: FakeApi) -> Cluster:
    return connect("fake", "", "", "training")
