"""Kubernetes API validation of metadata and pods: names, labels, selectors, volumes, probes, quantities.

Source: kubernetes pkg/apis/core/validation/validation.go and pkg/apis/apps/validation. Values that are not
known yet are not checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, TypeGuard

from trainfleet.rehearsal.simulation.check import Mistake
from trainfleet.rehearsal.simulation.kubernetes_types import (
    DNS_1035,
    DNS_LABEL,
    LABEL,
    amount,
    label_key_fault,
    subdomain,
)
from trainfleet.rehearsal.simulation.pulumi_values import SIGNATURE, UNKNOWN
from trainfleet.suggestions import did_you_mean

_TEMPLATES = (("template",), ("spec", "template"), ("spec", "jobTemplate", "spec", "template"))
_LABELLED = {"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job"}
_SELECTING = {"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"}
_DNS_LABELS = {"Namespace"}
_PATH_NAMES = {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}
_LONGEST = {"CronJob": 52, "Job": 63}
_HANDLERS = ("exec", "grpc", "httpGet", "tcpSocket")
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_RESOURCES = ("cpu", "memory", "ephemeral-storage", "storage")


def object_mistakes(kind: str, inputs: dict[str, Any]) -> Iterator[Mistake]:
    """Yield the mistakes in an object of a built-in kind beyond the types of its fields."""
    yield from metadata_mistakes(kind, inputs.get("metadata"))
    if kind == "Pod":
        yield from pod_mistakes("spec", inputs.get("spec"))
    if kind == "Namespace":
        yield from _security_levels(_at(inputs, "metadata", "labels"))
    claims = [_at(claim, "metadata", "name") for claim in _list(_at(inputs, "spec", "volumeClaimTemplates"))]
    for path in _TEMPLATES:
        where, template = ".".join(path), _at(inputs, *path)
        if isinstance(template, dict) and template.get("spec"):
            yield from template_mistakes(where, template, claims)
    yield from _selector(kind, inputs)
    yield from _service(inputs) if kind == "Service" else ()
    yield from _sizes(kind, _map(inputs.get("spec")))
    if kind == "RuntimeClass":
        yield from _quantities("overhead.podFixed", _at(inputs, "overhead", "podFixed"))
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
    if not _is_text(kind) or any(
        part is not None and (not isinstance(part, dict) or SIGNATURE in part) for part in parts
    ):
        return
    held = {
        key: (name, value)
        for name, part in zip(("data", "stringData"), parts, strict=True)
        for key, value in _map(part).items()
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
    if kind == "kubernetes.io/dockerconfigjson" and name == "stringData" and _is_text(text):
        try:
            json.loads(text)
        except ValueError:
            yield Mistake('stringData[".dockerconfigjson"]', "is not JSON", "write it with json.dumps")


def _selectors(path: str, value: Any) -> Iterator[Mistake]:
    """Yield the mistakes in selector labels, except for selectors that are checked with a pod template."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _selectors(f"{path}[{index}]", item)
    for name, item in _map(value).items():
        if name == "matchLabels":
            yield from labels_mistakes(f"{path}.{name}", item)
        elif isinstance(item, (dict, list)):
            yield from _selectors(f"{path}.{name}", item)


def _service(inputs: dict[str, Any]) -> Iterator[Mistake]:
    ports = _list(_at(inputs, "spec", "ports"))
    for index, port in enumerate(ports):
        if len(ports) > 1 and port != UNKNOWN and not _map(port).get("name"):
            yield Mistake(
                f"spec.ports[{index}].name",
                "missing, because there are several ports",
                "each needs its own name",
            )
    yield from labels_mistakes("spec.selector", _at(inputs, "spec", "selector"))


def _sizes(kind: str, spec: dict[str, Any]) -> Iterator[Mistake]:
    """Yield the mistakes in the quantities of objects that are not pods."""
    if kind == "PersistentVolumeClaim":
        yield from _resources("spec.resources", spec.get("resources"), extended=False)
    elif kind == "PersistentVolume":
        yield from _quantities("spec.capacity", spec.get("capacity"))
    elif kind == "ResourceQuota":
        yield from _quantities("spec.hard", spec.get("hard"))
    elif kind == "LimitRange":
        for index, limit in enumerate(_list(spec.get("limits"))):
            for name in ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio"):
                yield from _quantities(f"spec.limits[{index}].{name}", _map(limit).get(name))
            yield from _limit_order(f"spec.limits[{index}]", _map(limit))
    for index, claim in enumerate(_list(spec.get("volumeClaimTemplates"))):
        yield from _resources(
            f"spec.volumeClaimTemplates[{index}].spec.resources",
            _at(claim, "spec", "resources"),
            extended=False,
        )


_ORDER = ("min", "defaultRequest", "default", "max")


def _limit_order(where: str, limit: dict[str, Any]) -> Iterator[Mistake]:
    """Yield the mistakes in a limit range: min, request, limit and max out of order, or missing limits.

    Source: core/validation, ValidateLimitRange.
    """
    for low, high in combinations(_ORDER, 2):
        for name, value in _map(limit.get(low)).items():
            less, more = amount(value), amount(_map(limit.get(high)).get(name))
            if less is not None and more is not None and less > more:
                yield Mistake(
                    f'{where}.{low}["{name}"]',
                    f"{value!r} is more than `{high}`, which is {limit[high][name]!r}",
                    "put them in order",
                )
    if limit.get("type") == "Pod":
        for name in ("default", "defaultRequest"):
            if limit.get(name):
                yield Mistake(
                    f"{where}.{name}", "is not allowed for a Pod", "defaults belong to the type Container"
                )
    if limit.get("type") == "PersistentVolumeClaim" and not any(
        "storage" in _map(limit.get(name)) for name in ("min", "max")
    ):
        yield Mistake(f"{where}.max", "missing: the least or most storage", "as in {'storage': '1Ti'}")


def metadata_mistakes(kind: str, metadata: Any) -> Iterator[Mistake]:
    """Yield the mistakes in names, labels and annotations."""
    if not isinstance(metadata, dict):
        return
    name, namespace = metadata.get("name"), metadata.get("namespace")
    if _is_text(name):
        if kind in _DNS_LABELS:
            good, words = DNS_LABEL.fullmatch(name) is not None, "at most 63 small letters, digits and -"
        elif kind == "Service":
            good, words = (
                DNS_1035.fullmatch(name) is not None,
                "at most 63 small letters, digits and -, beginning with a letter",
            )
        elif kind in _PATH_NAMES:
            good, words = (
                bool(name) and not any(sign in name for sign in "/%") and name not in (".", ".."),
                "no / and no %",
            )
        else:
            most = _LONGEST.get(kind, 253)
            good, words = (
                subdomain(name, most),
                f"at most {most} small letters, digits, - and ., beginning and ending with a letter or digit",
            )
        if not good:
            yield Mistake("metadata.name", f"{name!r} is not a valid name", words)
    if _is_text(namespace) and not DNS_LABEL.fullmatch(namespace):
        yield Mistake(
            "metadata.namespace",
            f"{namespace!r} is not a valid name",
            "at most 63 small letters, digits and -",
        )
    yield from labels_mistakes("metadata.labels", metadata.get("labels"))
    for key in _map(metadata.get("annotations")):
        if fault := label_key_fault(key.lower()):
            yield Mistake(f'metadata.annotations["{key}"]', f"{key!r} is not a valid key", fault)


def _security_levels(labels: Any) -> Iterator[Mistake]:
    levels = ("privileged", "baseline", "restricted")
    for mode in ("enforce", "audit", "warn"):
        key = f"pod-security.kubernetes.io/{mode}"
        value = _map(labels).get(key)
        if _is_text(value) and value not in levels:
            yield Mistake(
                f'metadata.labels["{key}"]',
                f"{value!r} is not one of the values",
                did_you_mean(value, levels),
            )


def labels_mistakes(path: str, labels: Any) -> Iterator[Mistake]:
    """Yield the mistakes in the keys and values of labels."""
    for key, value in _map(labels).items():
        if fault := label_key_fault(key):
            yield Mistake(f'{path}["{key}"]', f"{key!r} is not a valid key", fault)
        if _is_text(value) and value and not LABEL.fullmatch(value):
            yield Mistake(
                f'{path}["{key}"]',
                f"{value!r} is not a valid value",
                "at most 63 letters, digits, - _ and ., beginning and ending with a letter or digit",
            )


def template_mistakes(path: str, template: dict[str, Any], claims: Sequence[Any] = ()) -> Iterator[Mistake]:
    """Yield the mistakes in a pod template. `claims` are the volumes that the object adds to its pods."""
    yield from labels_mistakes(f"{path}.metadata.labels", _at(template, "metadata", "labels"))
    yield from pod_mistakes(f"{path}.spec", template.get("spec"), claims)


def pod_mistakes(path: str, spec: Any, claims: Sequence[Any] = ()) -> Iterator[Mistake]:
    """Yield the mistakes in a pod specification."""
    if not isinstance(spec, dict):
        return
    if "containers" in spec and spec["containers"] == []:
        yield Mistake(f"{path}.containers", "is empty", "a pod has at least one container")
    yield from labels_mistakes(f"{path}.nodeSelector", spec.get("nodeSelector"))
    account = spec.get("serviceAccountName")
    if _is_text(account) and account and not subdomain(account):
        yield Mistake(
            f"{path}.serviceAccountName", f"{account!r} is not a valid name", "small letters, digits, - and ."
        )
    volumes = _volumes(spec, claims)
    yield from _volume_mistakes(path, spec)
    names: set[str] = set()
    for group in ("initContainers", "containers"):
        for index, container in enumerate(_list(spec.get(group))):
            if not isinstance(container, dict):
                continue
            where = f"{path}.{group}[{index}]"
            name = container.get("name")
            if _is_text(name) and not DNS_LABEL.fullmatch(name):
                yield Mistake(
                    f"{where}.name", f"{name!r} is not a valid name", "at most 63 small letters, digits and -"
                )
            if _is_text(name) and name in names:
                yield Mistake(
                    f"{where}.name", f"{name!r} is given twice", "each container needs its own name"
                )
            names.add(str(name))
            yield from _container(where, container, volumes)


def _container(where: str, container: dict[str, Any], volumes: set[str] | None) -> Iterator[Mistake]:
    image = container.get("image")
    if _is_text(image) and (
        image.strip() != image or " " in image or image.lower().startswith(("http://", "https://"))
    ):
        yield Mistake(f"{where}.image", f"{image!r} is not an image", "it must be like registry/name:tag")
    yield from _resources(f"{where}.resources", container.get("resources"), extended=True)
    for probe in _PROBES:
        value = container.get(probe)
        if isinstance(value, dict):
            given = [handler for handler in _HANDLERS if value.get(handler) is not None]
            if len(given) != 1:
                what = f"has {' and '.join(given)}" if given else "has no handler"
                yield Mistake(f"{where}.{probe}", what, f"it needs exactly one of {', '.join(_HANDLERS)}")
            yield from _probe_port(where, probe, value, container)
    security = _map(container.get("securityContext"))
    if security.get("privileged") is True and security.get("allowPrivilegeEscalation") is False:
        yield Mistake(
            f"{where}.securityContext.allowPrivilegeEscalation",
            "False conflicts with `privileged`",
            "leave one of them out",
        )
    paths: set[str] = set()
    for index, mount in enumerate(_list(container.get("volumeMounts"))):
        name, path = _map(mount).get("name"), _map(mount).get("mountPath")
        if volumes is not None and _is_text(name) and name not in volumes:
            yield Mistake(
                f"{where}.volumeMounts[{index}].name",
                f"{name!r} is not a volume of this pod",
                did_you_mean(name, volumes),
            )
        if _is_text(path) and path in paths:
            yield Mistake(
                f"{where}.volumeMounts[{index}].mountPath",
                f"{path!r} is given twice",
                "each path is mounted once",
            )
        paths.add(str(path))
    for index, variable in enumerate(_list(container.get("env"))):
        if isinstance(variable, dict) and variable.get("value") and variable.get("valueFrom"):
            yield Mistake(f"{where}.env[{index}].valueFrom", "conflicts with `value`", "give one of them")


def _probe_port(
    where: str, probe: str, value: dict[str, Any], container: dict[str, Any]
) -> Iterator[Mistake]:
    """Yield a mistake if a probe names a port that the container does not have.

    Source: core/v1 HTTPGetAction: the name must be a port of the container.
    """
    ports = container.get("ports")
    names = [_map(port).get("name") for port in _list(ports)]
    if (ports is not None and not isinstance(ports, list)) or UNKNOWN in (*names, *_list(ports)):
        return
    for handler in ("httpGet", "tcpSocket"):
        name = _map(value.get(handler)).get("port")
        if _is_text(name) and not name.isdigit() and name not in names:
            yield Mistake(
                f"{where}.{probe}.{handler}.port",
                f"{name!r} is not a port of this container",
                did_you_mean(name, filter(None, names)) if any(names) else "give the port a name",
            )


def _volumes(spec: dict[str, Any], claims: Sequence[Any]) -> set[str] | None:
    """Return the names of a pod's volumes, or None if some are not known yet."""
    volumes = spec.get("volumes")
    names = [*claims, *(_map(volume).get("name") for volume in _list(volumes))]
    known = (volumes is None or isinstance(volumes, list)) and all(_is_text(name) for name in names)
    return {str(name) for name in names} if known else None


def _volume_mistakes(path: str, spec: dict[str, Any]) -> Iterator[Mistake]:
    names: set[str] = set()
    for index, volume in enumerate(_list(spec.get("volumes"))):
        if not isinstance(volume, dict):
            continue
        where, name = f"{path}.volumes[{index}]", volume.get("name")
        if _is_text(name) and not DNS_LABEL.fullmatch(name):
            yield Mistake(
                f"{where}.name", f"{name!r} is not a valid name", "at most 63 small letters, digits and -"
            )
        if _is_text(name) and name in names:
            yield Mistake(f"{where}.name", f"{name!r} is given twice", "each volume needs its own name")
        names.add(str(name))
        sources = [key for key, value in volume.items() if key != "name" and value is not None]
        if len(sources) > 1:
            yield Mistake(
                f"{where}.{sources[1]}", f"conflicts with `{sources[0]}`", "a volume has one source"
            )
        limit = _map(volume.get("emptyDir")).get("sizeLimit")
        if limit not in (None, UNKNOWN) and amount(limit) is None:
            yield _no_quantity(f"{where}.emptyDir.sizeLimit", limit)


def _resources(path: str, resources: Any, *, extended: bool) -> Iterator[Mistake]:
    if not isinstance(resources, dict):
        return
    for name in ("requests", "limits"):
        yield from _quantities(f"{path}.{name}", resources.get(name), known=extended)
    requests, limits = _map(resources.get("requests")), _map(resources.get("limits"))
    for name, limit in limits.items():
        most = amount(limit)
        least = amount(requests[name]) if name in requests else None
        if most is not None and least is not None and least > most:
            yield Mistake(
                f'{path}.requests["{name}"]',
                f"{requests[name]!r} is more than the limit, which is {limit!r}",
                "a request is at most the limit",
            )
        elif extended and most is not None and least is not None and "/" in name and least != most:
            yield Mistake(
                f'{path}.requests["{name}"]',
                f"{requests[name]!r} differs from the limit, which is {limit!r}",
                "a device's request equals its limit",
            )
    for name in requests:
        if extended and "/" in name and name not in limits and isinstance(resources.get("limits", {}), dict):
            yield Mistake(
                f'{path}.limits["{name}"]', "missing, because it is requested", "a device needs a limit"
            )


def _quantities(path: str, values: Any, *, known: bool = False) -> Iterator[Mistake]:
    for name, value in _map(values).items():
        where = f'{path}["{name}"]'
        if value in (None, UNKNOWN) or isinstance(value, dict):
            continue
        number = amount(value)
        if number is None:
            yield _no_quantity(where, value)
        elif number < 0:
            yield Mistake(where, f"{value!r} is negative", "a quantity is at least 0")
        elif known and "/" in name and number != int(number):
            yield Mistake(where, f"{value!r} is not a whole number", "devices come whole")
        if known and "/" not in name and not name.startswith("hugepages-") and name not in _RESOURCES:
            yield Mistake(where, "unknown resource", did_you_mean(name, _RESOURCES))


def _no_quantity(path: str, value: Any) -> Mistake:
    return Mistake(path, f"{value!r} is not a quantity", "it must be like 500m, 4, 8Gi or 200M")


def _selector(kind: str, inputs: dict[str, Any]) -> Iterator[Mistake]:
    if kind not in _LABELLED:
        return
    expected = _at(inputs, "spec", "selector", "matchLabels")
    labels = _at(inputs, "spec", "template", "metadata", "labels")
    yield from labels_mistakes("spec.selector.matchLabels", expected)
    if isinstance(labels, dict) and SIGNATURE in labels:
        return
    template = _at(inputs, "spec", "template")
    if labels in (UNKNOWN,) or template in (None, UNKNOWN):
        return
    for key, value in _map(expected).items():
        found = _map(labels).get(key)
        if found is None:
            yield Mistake(
                f'spec.selector.matchLabels["{key}"]',
                f"{value!r} is not a label of the template",
                did_you_mean(key, _map(labels)) if labels else "give the template the same labels",
            )
        elif found != value and UNKNOWN not in (found, value):
            yield Mistake(
                f'spec.selector.matchLabels["{key}"]',
                f"{value!r} is not the template's label, which is {found!r}",
                "they must be the same",
            )
    selector = _at(inputs, "spec", "selector")
    if (
        kind in _SELECTING
        and isinstance(selector, dict)
        and not selector.get("matchLabels")
        and not selector.get("matchExpressions")
        and SIGNATURE not in selector
    ):
        yield Mistake("spec.selector", "is empty", "select the template's labels")


def _is_text(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and UNKNOWN not in value


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) and SIGNATURE not in value else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _at(value: Any, *path: str) -> Any:
    for name in path:
        value = _map(value).get(name)
    return value
