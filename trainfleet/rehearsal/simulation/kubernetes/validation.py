"""Kubernetes API validation of objects: selectors, secrets, services and quantities.

Source: kubernetes pkg/apis/core/validation/validation.go and pkg/apis/apps/validation. Values that are not
known yet are not checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from trainfleet.rehearsal.simulation.check import Mistake
from trainfleet.rehearsal.simulation.kubernetes.metadata import (
    labels_mistakes,
    metadata_mistakes,
    security_levels,
)
from trainfleet.rehearsal.simulation.kubernetes.object_access import as_list, as_map, is_text, value_at
from trainfleet.rehearsal.simulation.kubernetes.pods import pod_mistakes, template_mistakes
from trainfleet.rehearsal.simulation.kubernetes.resources import (
    limit_order,
    quantities_mistakes,
    resources_mistakes,
)
from trainfleet.rehearsal.simulation.pulumi_values import SIGNATURE, UNKNOWN
from trainfleet.suggestions import did_you_mean

_TEMPLATES = (("template",), ("spec", "template"), ("spec", "jobTemplate", "spec", "template"))
_LABELLED = {"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job"}
_SELECTING = {"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"}


def object_mistakes(kind: str, inputs: dict[str, Any]) -> Iterator[Mistake]:
    """Yield the mistakes in an object of a built-in kind beyond the types of its fields."""
    yield from metadata_mistakes(kind, inputs.get("metadata"))
    if kind == "Pod":
        yield from pod_mistakes("spec", inputs.get("spec"))
    if kind == "Namespace":
        yield from security_levels(value_at(inputs, "metadata", "labels"))
    claims = [
        value_at(claim, "metadata", "name")
        for claim in as_list(value_at(inputs, "spec", "volumeClaimTemplates"))
    ]
    for path in _TEMPLATES:
        where, template = ".".join(path), value_at(inputs, *path)
        if isinstance(template, dict) and template.get("spec"):
            yield from template_mistakes(where, template, claims)
    yield from _selector(kind, inputs)
    yield from _service(inputs) if kind == "Service" else ()
    yield from _sizes(kind, as_map(inputs.get("spec")))
    if kind == "RuntimeClass":
        yield from quantities_mistakes("overhead.podFixed", value_at(inputs, "overhead", "podFixed"))
    if kind == "Secret":
        yield from _secret(inputs)
    if kind not in _LABELLED:
        yield from _selectors("spec", inputs.get("spec"))


_HELD = {
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
}


def _secret(inputs: dict[str, Any]) -> Iterator[Mistake]:
    """Yield the mistakes in a secret of a built-in type (core/validation, ValidateSecret)."""
    kind = inputs.get("type")
    parts = [inputs.get(name) for name in ("data", "stringData")]
    if not is_text(kind) or any(
        part is not None and (not isinstance(part, dict) or SIGNATURE in part) for part in parts
    ):
        return
    held = {
        key: (name, value)
        for name, part in zip(("data", "stringData"), parts, strict=True)
        for key, value in as_map(part).items()
    }
    for key in _HELD.get(kind, ()):
        if key not in held:
            yield Mistake(
                f'data["{key}"]',
                f"missing, because `type` is {kind!r}",
                did_you_mean(key, held) if held else "",
            )
    if kind == "kubernetes.io/basic-auth" and not {"username", "password"} & set(held):
        yield Mistake(
            'data["username"]', f"missing, because `type` is {kind!r}", "give username, password or both"
        )
    name, text = held.get(".dockerconfigjson", ("", None))
    if kind == "kubernetes.io/dockerconfigjson" and name == "stringData" and is_text(text):
        try:
            json.loads(text)
        except ValueError:
            yield Mistake('stringData[".dockerconfigjson"]', "is not JSON", "write it with json.dumps")


def _selectors(path: str, value: Any) -> Iterator[Mistake]:
    """Yield the mistakes in selector labels, except for selectors that are checked with a pod template."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _selectors(f"{path}[{index}]", item)
    for name, item in as_map(value).items():
        if name == "matchLabels":
            yield from labels_mistakes(f"{path}.{name}", item)
        elif isinstance(item, (dict, list)):
            yield from _selectors(f"{path}.{name}", item)


def _service(inputs: dict[str, Any]) -> Iterator[Mistake]:
    ports = as_list(value_at(inputs, "spec", "ports"))
    for index, port in enumerate(ports):
        if len(ports) > 1 and port != UNKNOWN and not as_map(port).get("name"):
            yield Mistake(
                f"spec.ports[{index}].name",
                "missing, because there are several ports",
                "each needs its own name",
            )
    yield from labels_mistakes("spec.selector", value_at(inputs, "spec", "selector"))


def _sizes(kind: str, spec: dict[str, Any]) -> Iterator[Mistake]:
    """Yield the mistakes in the quantities of objects that are not pods."""
    if kind == "PersistentVolumeClaim":
        yield from resources_mistakes("spec.resources", spec.get("resources"), extended=False)
    elif kind == "PersistentVolume":
        yield from quantities_mistakes("spec.capacity", spec.get("capacity"))
    elif kind == "ResourceQuota":
        yield from quantities_mistakes("spec.hard", spec.get("hard"))
    elif kind == "LimitRange":
        for index, limit in enumerate(as_list(spec.get("limits"))):
            for name in ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio"):
                yield from quantities_mistakes(f"spec.limits[{index}].{name}", as_map(limit).get(name))
            yield from limit_order(f"spec.limits[{index}]", as_map(limit))
    for index, claim in enumerate(as_list(spec.get("volumeClaimTemplates"))):
        yield from resources_mistakes(
            f"spec.volumeClaimTemplates[{index}].spec.resources",
            value_at(claim, "spec", "resources"),
            extended=False,
        )


def _selector(kind: str, inputs: dict[str, Any]) -> Iterator[Mistake]:
    if kind not in _LABELLED:
        return
    expected = value_at(inputs, "spec", "selector", "matchLabels")
    labels = value_at(inputs, "spec", "template", "metadata", "labels")
    yield from labels_mistakes("spec.selector.matchLabels", expected)
    if isinstance(labels, dict) and SIGNATURE in labels:
        return
    template = value_at(inputs, "spec", "template")
    if labels in (UNKNOWN,) or template in (None, UNKNOWN):
        return
    for key, value in as_map(expected).items():
        found = as_map(labels).get(key)
        if found is None:
            yield Mistake(
                f'spec.selector.matchLabels["{key}"]',
                f"{value!r} is not a label of the template",
                did_you_mean(key, as_map(labels)) if labels else "give the template the same labels",
            )
        elif found != value and UNKNOWN not in (found, value):
            yield Mistake(
                f'spec.selector.matchLabels["{key}"]',
                f"{value!r} is not the template's label, which is {found!r}",
                "they must be the same",
            )
    selector = value_at(inputs, "spec", "selector")
    if (
        kind in _SELECTING
        and isinstance(selector, dict)
        and not selector.get("matchLabels")
        and not selector.get("matchExpressions")
        and SIGNATURE not in selector
    ):
        yield Mistake("spec.selector", "is empty", "select the template's labels")
