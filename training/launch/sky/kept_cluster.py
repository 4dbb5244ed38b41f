"""Whether a run fits a SkyPilot cluster that exists.

SkyPilot compares context, image and GPUs of a task with a cluster's, and not CPUs, memory and the settings of
pods (`sky/resources.py`, `less_demanding_than`), which a task cannot change either.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from trainfleet.errors import Problem
from trainfleet.training.launch.sky.messages import SkySpec

CLUSTER_LABEL = "trainfleet.io/cluster"
SETTINGS_LABEL = "trainfleet.io/pod-settings"
"""A digest of the settings that pods have from their creation on."""
SIZE = re.compile(r"([\d.]+)CPU--([\d.]+)GB")
"""SkyPilot's name for a size of pods (`sky/provision/kubernetes/utils.py`, `KubernetesInstanceType`)."""
OTHER = "--cluster with another name, or `sky down {name}` first"


def settings_digest(overrides: Mapping[str, Any]) -> str:
    """The digest of the pods' settings, other than their memory."""
    found = copy.deepcopy(dict(overrides))
    for container in found["pod_config"]["spec"].get("containers", ()):
        for part in ("limits", "requests"):
            container.get("resources", {}).get(part, {}).pop("memory", None)
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]


def misfits(record: Any, spec: SkySpec) -> list[Problem]:
    """Why the run cannot use the cluster."""
    has, name = record.handle.launched_resources, spec.cluster
    where, fix = f"--cluster {name}", OTHER.format(name=name)
    if SETTINGS_LABEL not in (has.labels or {}):
        return [Problem(where, "was not created by Trainfleet", fix)]
    expected = _on(has.region, spec.task)
    if not expected:
        tried = ", ".join(dict.fromkeys(spec.contexts))
        return [Problem(where, f"is on {has.region}, and the run on {tried}", fix)]
    nodes = spec.task["num_nodes"]
    found = []
    if nodes != record.handle.launched_nodes:
        found.append(f"has {record.handle.launched_nodes} pods, and the run needs {nodes}")
    reasons = [_misfit(has, each) for each in expected]
    return [Problem(where, each, fix) for each in [*found, *min(reasons, key=len)]]


def fitting(record: Any, task: Mapping[str, Any]) -> dict[str, Any]:
    """The task with the alternative that is this cluster, because SkyPilot runs no choice on one."""
    has = record.handle.launched_resources
    resources = min(_on(has.region, task), key=lambda each: len(_misfit(has, each)))
    return {**task, "resources": resources}


def _on(context: str, task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The alternatives of a task on this context."""
    resources = task["resources"]
    alternatives: Iterable[dict[str, Any]] = resources.get("ordered", [resources])
    return [each for each in alternatives if each["infra"] == f"k8s/{context}"]


def _misfit(has: Any, expected: Mapping[str, Any]) -> list[str]:
    """How the pods of a cluster differ from what is expected of each."""
    found = []
    image, own = str(expected["image_id"]).removeprefix("docker:"), has.extract_docker_image()
    if own != image:
        found.append(f"has the image {own}, and the run {image}")
    gpus, expected_gpus = has.accelerators or {}, _gpus(expected)
    if dict(gpus) != expected_gpus:
        found.append(f"has {_gpu_text(gpus)} in each pod, and the run needs {_gpu_text(expected_gpus)}")
    size = SIZE.match(str(has.instance_type))
    cpus, memory = (float(size[1]), float(size[2])) if size else (0.0, 0.0)
    if float(expected["cpus"]) > cpus:
        found.append(f"has {cpus:g} CPUs in each pod, and the run needs {expected['cpus']:g}")
    if float(expected["memory"]) > memory:
        found.append(f"has {memory:g} GiB of memory in each pod, and the run needs {expected['memory']:g}")
    if has.labels[SETTINGS_LABEL] != expected["labels"][SETTINGS_LABEL]:
        found.append("has pods with other settings: node pool, --from-secret, --pod-template or stack")
    return found


def _gpus(expected: Mapping[str, Any]) -> dict[str, int]:
    name, _, count = str(expected.get("accelerators", "")).partition(":")
    return {name: int(count)} if name else {}


def _gpu_text(gpus: Mapping[str, float]) -> str:
    return ", ".join(f"{count:g} x {name}" for name, count in gpus.items()) or "no GPU"
