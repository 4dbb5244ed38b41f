"""Kubernetes API validation of pods: containers, images, volumes, mounts and probes.

Source: kubernetes pkg/apis/core/validation/validation.go. Values that are not known yet are not checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trainfleet.rehearsal.simulation.check import Mistake
from trainfleet.rehearsal.simulation.kubernetes.metadata import labels_mistakes
from trainfleet.rehearsal.simulation.kubernetes.object_access import as_list, as_map, is_text, value_at
from trainfleet.rehearsal.simulation.kubernetes.resources import no_quantity, resources_mistakes
from trainfleet.rehearsal.simulation.kubernetes_types import DNS_LABEL, amount, subdomain
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN
from trainfleet.suggestions import did_you_mean

_HANDLERS = ("exec", "grpc", "httpGet", "tcpSocket")
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")


def template_mistakes(path: str, template: dict[str, Any], claims: Sequence[Any] = ()) -> Iterator[Mistake]:
    """Yield the mistakes in a pod template. `claims` are the volumes that the object adds to its pods."""
    yield from labels_mistakes(f"{path}.metadata.labels", value_at(template, "metadata", "labels"))
    yield from pod_mistakes(f"{path}.spec", template.get("spec"), claims)


def pod_mistakes(path: str, spec: Any, claims: Sequence[Any] = ()) -> Iterator[Mistake]:
    """Yield the mistakes in a pod specification."""
    if not isinstance(spec, dict):
        return
    if "containers" in spec and spec["containers"] == []:
        yield Mistake(f"{path}.containers", "is empty", "a pod has at least one container")
    yield from labels_mistakes(f"{path}.nodeSelector", spec.get("nodeSelector"))
    account = spec.get("serviceAccountName")
    if is_text(account) and account and not subdomain(account):
        yield Mistake(
            f"{path}.serviceAccountName",
            f"{account!r} is not a valid name",
            "lowercase letters, digits, - and .",
        )
    volumes = _volumes(spec, claims)
    yield from _volume_mistakes(path, spec)
    names: set[str] = set()
    for group in ("initContainers", "containers"):
        for index, container in enumerate(as_list(spec.get(group))):
            if not isinstance(container, dict):
                continue
            where = f"{path}.{group}[{index}]"
            name = container.get("name")
            if is_text(name) and not DNS_LABEL.fullmatch(name):
                yield Mistake(
                    f"{where}.name",
                    f"{name!r} is not a valid name",
                    "at most 63 lowercase letters, digits and -",
                )
            if is_text(name) and name in names:
                yield Mistake(
                    f"{where}.name", f"{name!r} is given twice", "each container needs its own name"
                )
            names.add(str(name))
            yield from _container(where, container, volumes)


def _container(where: str, container: dict[str, Any], volumes: set[str] | None) -> Iterator[Mistake]:
    image = container.get("image")
    if is_text(image) and (
        image.strip() != image or " " in image or image.lower().startswith(("http://", "https://"))
    ):
        yield Mistake(f"{where}.image", f"{image!r} is not an image", "it must be like registry/name:tag")
    yield from resources_mistakes(f"{where}.resources", container.get("resources"), extended=True)
    for probe in _PROBES:
        value = container.get(probe)
        if isinstance(value, dict):
            given = [handler for handler in _HANDLERS if value.get(handler) is not None]
            if len(given) != 1:
                what = f"has {' and '.join(given)}" if given else "has no handler"
                yield Mistake(f"{where}.{probe}", what, f"it needs exactly one of {', '.join(_HANDLERS)}")
            yield from _probe_port(where, probe, value, container)
    security = as_map(container.get("securityContext"))
    if security.get("privileged") is True and security.get("allowPrivilegeEscalation") is False:
        yield Mistake(
            f"{where}.securityContext.allowPrivilegeEscalation",
            "False conflicts with `privileged`",
            "leave one of them out",
        )
    paths: set[str] = set()
    for index, mount in enumerate(as_list(container.get("volumeMounts"))):
        name, path = as_map(mount).get("name"), as_map(mount).get("mountPath")
        if volumes is not None and is_text(name) and name not in volumes:
            yield Mistake(
                f"{where}.volumeMounts[{index}].name",
                f"{name!r} is not a volume of this pod",
                did_you_mean(name, volumes),
            )
        if is_text(path) and path in paths:
            yield Mistake(
                f"{where}.volumeMounts[{index}].mountPath",
                f"{path!r} is given twice",
                "each path is mounted once",
            )
        paths.add(str(path))
    for index, variable in enumerate(as_list(container.get("env"))):
        if isinstance(variable, dict) and variable.get("value") and variable.get("valueFrom"):
            yield Mistake(f"{where}.env[{index}].valueFrom", "conflicts with `value`", "give one of them")


def _probe_port(
    where: str, probe: str, value: dict[str, Any], container: dict[str, Any]
) -> Iterator[Mistake]:
    """Yield a mistake if a probe names a port that the container does not have.

    Source: core/v1 HTTPGetAction: the name must be a port of the container.
    """
    ports = container.get("ports")
    names = [as_map(port).get("name") for port in as_list(ports)]
    if (ports is not None and not isinstance(ports, list)) or UNKNOWN in (*names, *as_list(ports)):
        return
    for handler in ("httpGet", "tcpSocket"):
        name = as_map(value.get(handler)).get("port")
        if is_text(name) and not name.isdigit() and name not in names:
            yield Mistake(
                f"{where}.{probe}.{handler}.port",
                f"{name!r} is not a port of this container",
                did_you_mean(name, filter(None, names)) if any(names) else "give the port a name",
            )


def _volumes(spec: dict[str, Any], claims: Sequence[Any]) -> set[str] | None:
    """Return the names of a pod's volumes, or None if some are not known yet."""
    volumes = spec.get("volumes")
    names = [*claims, *(as_map(volume).get("name") for volume in as_list(volumes))]
    known = (volumes is None or isinstance(volumes, list)) and all(is_text(name) for name in names)
    return {str(name) for name in names} if known else None


def _volume_mistakes(path: str, spec: dict[str, Any]) -> Iterator[Mistake]:
    names: set[str] = set()
    for index, volume in enumerate(as_list(spec.get("volumes"))):
        if not isinstance(volume, dict):
            continue
        where, name = f"{path}.volumes[{index}]", volume.get("name")
        if is_text(name) and not DNS_LABEL.fullmatch(name):
            yield Mistake(
                f"{where}.name", f"{name!r} is not a valid name", "at most 63 lowercase letters, digits and -"
            )
        if is_text(name) and name in names:
            yield Mistake(f"{where}.name", f"{name!r} is given twice", "each volume needs its own name")
        names.add(str(name))
        sources = [key for key, value in volume.items() if key != "name" and value is not None]
        if len(sources) > 1:
            yield Mistake(
                f"{where}.{sources[1]}", f"conflicts with `{sources[0]}`", "a volume has one source"
            )
        limit = as_map(volume.get("emptyDir")).get("sizeLimit")
        if limit not in (None, UNKNOWN) and amount(limit) is None:
            yield no_quantity(f"{where}.emptyDir.sizeLimit", limit)
