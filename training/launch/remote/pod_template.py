"""The user's changes of a run's pods, from the file of `--pod-template`: strategic merge patches of the pod
templates of the head and of the workers, applied as by `kubectl patch`. Pure, except for `load`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trainfleet.errors import InputError, Problem
from trainfleet.suggestions import did_you_mean

Document = dict[str, Any]

CONTAINER = "trainer"
"""What the file calls the container that runs Ray and the training."""
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
DIRECTIVE = "$patch"
RESERVED_LABELS = ("trainfleet.io/", "ray.io/", "kueue.x-k8s.io/", "app.kubernetes.io/managed-by")
"""By these the launchers, KubeRay and Kueue find a run's pods."""
LAUNCHERS_OWN = {
    "image": "--image REF",
    "command": "a `lifecycle.postStart` or an init container",
    "args": "a `lifecycle.postStart` or an init container",
}
"""Keys of the container that a file cannot set, and what to use instead."""
GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class PodTemplates:
    """The patches of a file."""

    head: Document = field(default_factory=dict)
    workers: Document = field(default_factory=dict)


def load(file: str | None) -> PodTemplates:
    """The patches in a file; none without a file.

    Raises:
        InputError: it cannot be read, or has mistakes: all of them.
    """
    if file is None:
        return PodTemplates()
    try:
        document = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = str(getattr(error, "strerror", None) or error).splitlines()[0]
        raise InputError("cannot read the pod template", [Problem(file, reason)]) from error
    problems = list(_problems(document))
    if problems:
        found = [Problem(f"{file}: {each.where}".rstrip(": "), each.what, each.fix) for each in problems]
        raise InputError("mistakes in the pod template", found)
    return PodTemplates(document.get("head") or {}, document.get("workers") or {})


def merged(template: Document, patch: Document, container: str) -> Document:
    """A pod template with a patch of the file.

    Args:
        template: metadata and spec; not changed.
        patch: the same, as the file has it.
        container: the name that CONTAINER has in the template.
    """
    renamed = copy.deepcopy(patch)
    for each in renamed.get("spec", {}).get("containers", []):
        if each["name"] == CONTAINER:
            each["name"] = container
    return dict(_merged(template, renamed))


def for_check(patch: Document) -> Document:
    """The part of the workers' patch that decides whether an image starts and user code can be imported: pull
    secrets, volumes and variables, without sidecars, resources and the choice of nodes.
    """
    spec = patch.get("spec", {})
    containers = [
        {key: each[key] for key in ("name", "env", "envFrom", "volumeMounts") if key in each}
        for each in spec.get("containers", [])
        if each["name"] == CONTAINER
    ]
    kept = {key: spec[key] for key in ("imagePullSecrets", "volumes", "serviceAccountName") if key in spec}
    return {"spec": kept | ({"containers": containers} if containers else {})}


def grace_seconds(patch: Document, default: int) -> int:
    """How long the pod may take to end."""
    return int(patch.get("spec", {}).get("terminationGracePeriodSeconds", default))


def _merged(base: Any, patch: Any, key: str = "") -> Any:
    if isinstance(patch, dict) and isinstance(base, dict) and patch.get(DIRECTIVE) != "replace":
        found = dict(base)
        for name, value in patch.items():
            if value is None:
                found.pop(name, None)
            elif name != DIRECTIVE:
                found[name] = _merged(found.get(name), value, name)
        return found
    if isinstance(patch, list) and key in MERGE_KEYS:
        return _merged_list(base or [], patch, MERGE_KEYS[key])
    if isinstance(patch, dict):
        return _merged({}, {name: value for name, value in patch.items() if name != DIRECTIVE})
    return copy.deepcopy(patch)


def _merged_list(base: list[Any], patch: list[Any], key: str) -> list[Any]:
    found = list(base)
    for item in patch:
        place = next((number for number, each in enumerate(found) if each.get(key) == item.get(key)), None)
        if item.get(DIRECTIVE) == "delete":
            found = [each for each in found if each.get(key) != item.get(key)]
        elif place is None:
            found.append(_merged({}, item))
        else:
            found[place] = _merged(found[place], item)
    return found


def _problems(document: Any) -> Iterator[Problem]:
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
    for label in metadata.get("labels") or {}:
        if str(label).startswith(RESERVED_LABELS):
            yield Problem(
                f"{role}.metadata.labels.{label}", "is how the run's pods are found", "leave it out"
            )
    yield from _problems_of_lists(f"{role}.spec", spec)
    for number, each in enumerate(spec.get("containers") or []):
        if isinstance(each, dict) and each.get("name") == CONTAINER:
            yield from _problems_of_container(f"{role}.spec.containers[{number}]", each)


def _problems_of_container(where: str, container: Document) -> Iterator[Problem]:
    for key, instead in LAUNCHERS_OWN.items():
        if key in container:
            yield Problem(f"{where}.{key}", "is set by the launcher", f"use {instead}")
    for kind, amounts in (container.get("resources") or {}).items():
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
