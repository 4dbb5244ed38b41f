"""What a user may change of a run's pods: strategic merge patches of the pod templates of the head and of the
workers, in a stack, a recipe or a file. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainfleet.errors import Problem
from trainfleet.suggestions import did_you_mean

Document = dict[str, Any]

CONTAINER = "trainer"
"""What a patch calls the container that runs Ray and the training."""
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "resourceClaims": "name",
    "topologySpreadConstraints": "topologyKey",
}
"""Lists whose items are merged by a key (`x-kubernetes-patch-merge-key` of the Kubernetes API). Others are
replaced, such as `tolerations` and `args`."""
GRACE = "terminationGracePeriodSeconds"
DIRECTIVE = "$patch"
RESERVED_LABELS = ("trainfleet.io/", "ray.io/", "kueue.x-k8s.io/", "app.kubernetes.io/managed-by")
"""By these the launchers, KubeRay and Kueue find a run's pods."""
LAUNCHERS_OWN = {
    "image": "--image REF",
    "command": "a `lifecycle.postStart` or an init container",
    "args": "a `lifecycle.postStart` or an init container",
}
"""Keys of the container that a patch cannot set, and what to use instead."""
GPU = "nvidia.com/gpu"


def patch_problems(document: Any) -> Iterator[Problem]:
    """What is wrong with the patches `{head: ..., workers: ...}`; `where` is the path in the document."""
    if not isinstance(document, dict):
        yield Problem("", "is not a mapping", "write `workers:` and `head:`")
        return
    for role, patch in document.items():
        if role not in ("head", "workers"):
            yield Problem(str(role), "is not a kind of pod", did_you_mean(str(role), ["head", "workers"]))
        elif not isinstance(patch, dict):
            yield Problem(role, "is not a mapping", "write `metadata:` and `spec:`")
        else:
            yield from _problems_of_patch(role, patch)


def _problems_of_patch(role: str, patch: Document) -> Iterator[Problem]:
    for key in patch:
        if key not in ("metadata", "spec"):
            yield Problem(f"{role}.{key}", "is not a key of a pod template", "write `metadata:` and `spec:`")
    metadata, spec = patch.get("metadata") or {}, patch.get("spec") or {}
    if not isinstance(metadata, dict) or not isinstance(spec, dict):
        yield Problem(role, "`metadata` and `spec` must be mappings")
        return
    for key in metadata:
        if key not in ("labels", "annotations"):
            where = f"{role}.metadata.{key}"
            yield Problem(where, "is set by the launcher", "only `labels` and `annotations` can be changed")
    for key in ("labels", "annotations"):
        if not isinstance(metadata.get(key) or {}, dict):
            yield Problem(f"{role}.metadata.{key}", "is not a mapping")
    labels = metadata.get("labels")
    for label in labels if isinstance(labels, dict) else ():
        if str(label).startswith(RESERVED_LABELS):
            yield Problem(
                f"{role}.metadata.labels.{label}", "is how the run's pods are found", "leave it out"
            )
    yield from _problems_of_lists(f"{role}.spec", spec)
    grace = spec.get(GRACE)
    if grace is not None and (type(grace) is not int or grace < 0):
        yield Problem(f"{role}.spec.{GRACE}", "is not a number of seconds", "a whole number, such as 60")
    containers = spec.get("containers")
    for number, each in enumerate(containers if isinstance(containers, list) else []):
        if isinstance(each, dict) and each.get("name") == CONTAINER:
            yield from _problems_of_container(f"{role}.spec.containers[{number}]", each)


def _problems_of_container(where: str, container: Document) -> Iterator[Problem]:
    for key, instead in LAUNCHERS_OWN.items():
        if key in container:
            yield Problem(f"{where}.{key}", "is set by the launcher", f"use {instead}")
    resources = container.get("resources") or {}
    if not isinstance(resources, dict):
        yield Problem(f"{where}.resources", "is not a mapping", "write `requests:` and `limits:`")
        return
    for kind, amounts in resources.items():
        if isinstance(amounts, dict) and GPU in amounts:
            place = f"{where}.resources.{kind}.{GPU}"
            yield Problem(place, "is one for each worker of the pod", "scaling.workers, or --pool")


def _problems_of_lists(where: str, part: Document) -> Iterator[Problem]:
    """Lists that cannot be merged, because an item lacks the key."""
    for name, value in part.items():
        if name in MERGE_KEYS and isinstance(value, list):
            for number, item in enumerate(value):
                yield from _problems_of_item(f"{where}.{name}[{number}]", name, item)
        elif name in MERGE_KEYS and value is not None:
            yield Problem(f"{where}.{name}", "is not a list")
        elif isinstance(value, dict):
            yield from _problems_of_lists(f"{where}.{name}", value)


def _problems_of_item(where: str, name: str, item: Any) -> Iterator[Problem]:
    if isinstance(item, dict) and MERGE_KEYS[name] in item:
        yield from _problems_of_lists(where, item)
    else:
        fix = f"`name: {CONTAINER}` for the container of the training" if name == "containers" else ""
        yield Problem(where, f"has no `{MERGE_KEYS[name]}`", fix)
