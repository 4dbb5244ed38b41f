"""`--pod-template` merges as `kubectl patch` does, which reads the merge keys from the Kubernetes API types."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Cluster
from tests.training.launch.kuberay_launches import run_spec
from trainfleet.training.launch.kuberay.pods import worker_pod
from trainfleet.training.launch.remote.pod_template import CONTAINER, merged

pytestmark = [pytest.mark.cluster]
CONTAINER_CHANGES: list[dict[str, Any]] = [
    {"env": [{"name": "HOME", "value": "/scratch"}, {"name": "NEW", "value": "1"}]},
    {"env": [{"name": "HOME", "$patch": "delete"}]},
    {"env": None},
    {"volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "shm", "mountPath": "/tmp"}]},
    {"resources": {"requests": {"cpu": "7"}, "limits": None}},
    {"ports": [{"containerPort": 8080, "name": "metrics", "protocol": "TCP"}]},
    {"lifecycle": {"$patch": "replace", "postStart": {"exec": {"command": ["true"]}}}},
    {"securityContext": {"capabilities": {"drop": ["NET_RAW"]}}},
    {"livenessProbe": {"httpGet": None, "exec": {"command": ["true"]}}},
]
POD_CHANGES: list[dict[str, Any]] = [
    {"tolerations": [{"key": "mine", "operator": "Exists"}]},
    {"volumes": [{"name": "shm", "emptyDir": {"sizeLimit": "64Gi"}}, {"name": "data", "emptyDir": {}}]},
    {"volumes": [{"name": "scratch", "$patch": "delete"}]},
    {"imagePullSecrets": [{"name": "login"}]},
    {"nodeSelector": {"trainfleet.io/pool": None, "zone": "a"}},
    {"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["store"]}]},
    {"initContainers": [{"name": "certificate", "env": [{"name": "RAY_SIGNER", "$patch": "delete"}]}]},
    {"topologySpreadConstraints": [{"topologyKey": "kubernetes.io/hostname", "maxSkew": 2}]},
    {"terminationGracePeriodSeconds": 900},
    {"securityContext": {"$patch": "replace", "runAsUser": 7}},
]
NUMBER = 40


def drawn(draw: random.Random) -> dict[str, Any]:
    """A patch with several changes of the pod and of its container."""
    spec: dict[str, Any] = {}
    for change in draw.sample(POD_CHANGES, draw.randint(0, 4)):
        spec |= change
    container: dict[str, Any] = {"name": CONTAINER}
    for change in draw.sample(CONTAINER_CHANGES, draw.randint(0, 3)):
        container |= change
    sidecar = [{"name": "sidecar", "image": "example/sidecar:1"}] if draw.random() < 0.3 else []
    spec["containers"] = [container, *sidecar]
    return {"metadata": {"annotations": {"example.com/a": "b"}}, "spec": spec}


def test_a_patch_has_the_result_of_kubectl(cluster: Cluster, tmp_path: Path) -> None:
    template = worker_pod(run_spec("scaling.use_gpu=true"))
    for number in range(NUMBER):
        patch = drawn(random.Random(number))
        assert as_set(merged(template, patch, "ray-worker")) == as_set(
            _by_kubectl(cluster, template, patch, tmp_path)
        ), f"{number}: {patch}"


def _by_kubectl(
    cluster: Cluster, template: dict[str, Any], patch: dict[str, Any], folder: Path
) -> dict[str, Any]:
    file = folder / "pod.json"
    named = {**template["metadata"], "name": "a"}
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", **template, "metadata": named}))
    text = json.dumps(patch).replace(f'"{CONTAINER}"', '"ray-worker"')
    flags = ["patch", "--local", "-f", str(file), "--type", "strategic", "-p", text, "-o", "json"]
    found: dict[str, Any] = json.loads(cluster.kubectl(*flags))
    del found["metadata"]["name"]
    return {"metadata": found["metadata"], "spec": found["spec"]}


def as_set(value: Any) -> Any:
    """A document without the order of lists: kubectl puts added items first, which no list here minds."""
    if isinstance(value, dict):
        return {key: as_set(each) for key, each in value.items() if each not in ({}, [], None)}
    if isinstance(value, list):
        return sorted(json.dumps(as_set(each), sort_keys=True) for each in value)
    return value
