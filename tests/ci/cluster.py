"""A stand-in for the cluster of a platform: an API server with KubeRay, whose runs print what a test says.

What a launch sends and reads is real: the contract, the user's code in the bucket, the RayJob, and the log.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from tests.training.launch.fake_api import JOBS, PODS, FakeApi, serving
from tests.training.launch.kuberay_follower import LOG, running

IMAGE = "registry.example.com/trainfleet:1"
NAMESPACE = "training"


class Cluster:
    """Its runs print `lines` and end; with None, their pods never start."""

    def __init__(self, name: str, api: FakeApi) -> None:
        self.name, self.api = name, api
        self.lines: list[Any] | None = LOG
        self.runs: list[dict[str, Any]] = []
        """The RayJobs that were created."""
        api.on_request = self._reconcile

    @property
    def contract(self) -> dict[str, Any]:
        """What a platform's outputs say of it."""
        return {
            "namespace": NAMESPACE,
            "image": IMAGE,
            "kube_context": self.name,
            "kubeconfig": json.dumps(kubeconfig(self.name, self.api.address)),
        }

    @property
    def left(self) -> list[str]:
        """The RayJobs that exist."""
        return [path for path in self.api.objects if path.startswith(f"{JOBS}/")]

    def _reconcile(self, api: FakeApi) -> None:
        """Do what KubeRay's operator does."""
        for path in self.left:
            job = api.objects[path]
            if job["metadata"]["uid"] not in [each["metadata"]["uid"] for each in self.runs]:
                self.runs.append(job)
            state = "Running" if self.lines else "Initializing"
            job["status"] = {"jobDeploymentStatus": state, "rayClusterName": "rc"}
        api.objects.pop(f"{PODS}/submitter", None)
        if self.left and self.lines:
            running(api, self.lines)


def kubeconfig(name: str, address: str) -> dict[str, Any]:
    """A kubeconfig as a contract has it, for a server without TLS."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": address}}],
        "users": [{"name": name, "user": {"token": "of-a-test"}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


@contextlib.contextmanager
def cluster(name: str) -> Iterator[Cluster]:
    """Serve a cluster until the end of the block."""
    with serving() as api:
        yield Cluster(name, api)
