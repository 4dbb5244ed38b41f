"""What a namespace admits: pods at its Pod Security level, and requests within its quotas.

Source: kubernetes.io/docs/concepts/security/pod-security-standards and
kubernetes.io/docs/concepts/policy/resource-quotas. A controller whose pods are refused exists without pods;
it is refused here, since it never becomes ready.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trainfleet.rehearsal.simulation.kubernetes.object_access import as_list, as_map, value_at
from trainfleet.rehearsal.simulation.kubernetes_types import amount
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN, plain
from trainfleet.rehearsal.simulation.stateful_rules.references import logical_name

if TYPE_CHECKING:
    from trainfleet.rehearsal.simulation.cloud_object import CloudObject

Row = dict[str, Any]
Others = list["CloudObject"]
ENFORCED = "pod-security.kubernetes.io/enforce"
BASELINE_CAPABILITIES = frozenset(
    (
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE"),
        *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
    )
)
"""The capabilities that the level baseline lets a container add."""


def pod_security(row: Row, record: CloudObject, others: Others) -> str:
    """Return which Pod Security level of its namespace the pods of a workload violate."""
    for other in others:
        inputs = plain(other.inputs)
        if (
            other.token != "kubernetes:core/v1:Namespace"
            or other.place != record.place
            or value_at(inputs, "metadata", "name") != _namespace(record)
        ):
            continue
        level = as_map(value_at(inputs, "metadata", "labels")).get(ENFORCED)
        spec = as_map(value_at(plain(record.inputs), *row["at"].split(".")))
        checks = {"baseline": (_baseline,), "restricted": (_baseline, _restricted)}.get(str(level), ())
        found = next((why for check in checks for why in check(spec)), "")
        if found:
            return f"namespace {_namespace(record)} admits pods at the level {level}: {found}"
    return ""


def _baseline(spec: dict[str, Any]) -> Iterator[str]:
    for host in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(host) is True:
            yield f"{host} is true"
    for volume in map(as_map, as_list(spec.get("volumes"))):
        if volume.get("hostPath"):
            yield f"volume {volume.get('name')} is a hostPath"
    for container in _containers(spec):
        security = as_map(container.get("securityContext"))
        name = container.get("name")
        if security.get("privileged") is True:
            yield f"container {name} is privileged"
        added = as_list(value_at(security, "capabilities", "add"))
        if extra := sorted({str(each) for each in added} - BASELINE_CAPABILITIES - {UNKNOWN}):
            yield f"container {name} adds the capability {extra[0]}"
        if any(as_map(port).get("hostPort") for port in as_list(container.get("ports"))):
            yield f"container {name} has a hostPort"


def _restricted(spec: dict[str, Any]) -> Iterator[str]:
    pod = as_map(spec.get("securityContext"))
    for container in _containers(spec):
        security, name = as_map(container.get("securityContext")), container.get("name")
        if security.get("allowPrivilegeEscalation") not in (False, UNKNOWN):
            yield f"container {name} does not set allowPrivilegeEscalation to false"
        if "ALL" not in as_list(value_at(security, "capabilities", "drop")):
            yield f"container {name} does not drop ALL capabilities"
        if security.get("runAsNonRoot", pod.get("runAsNonRoot")) not in (True, UNKNOWN):
            yield f"container {name} does not set runAsNonRoot to true"
        profile = as_map(security.get("seccompProfile")) or as_map(pod.get("seccompProfile"))
        if profile.get("type") not in ("RuntimeDefault", "Localhost", UNKNOWN):
            yield f"container {name} has no seccompProfile RuntimeDefault"


def within_quota(row: Row, record: CloudObject, others: Others) -> str:
    """Return which quota of its namespace the pods of a workload do not fit, or which request they lack."""
    same = [
        other for other in others if other.place == record.place and _namespace(other) == _namespace(record)
    ]
    spec = as_map(value_at(plain(record.inputs), *row["at"].split(".")))
    pods = value_at(plain(record.inputs), *row["pods"].split(".")) if "pods" in row else 1
    defaults = any(other.token == "kubernetes:core/v1:LimitRange" for other in same)
    for quota in (other for other in same if other.token == "kubernetes:core/v1:ResourceQuota"):
        limits = as_map(plain(quota.inputs).get("spec"))
        if limits.get("scopeSelector") or limits.get("scopes"):
            continue
        for key, hard in as_map(limits.get("hard")).items():
            kind, _, resource = key.rpartition(".")
            if resource not in ("cpu", "memory") or kind not in ("", "requests", "limits"):
                continue
            needed = _total(spec, kind or "requests", resource)
            if needed is None and not defaults:
                return f"quota {logical_name(quota)} is on {key}, and a container does not state it"
            most = amount(str(hard))
            if needed and most is not None and isinstance(pods, int | float) and needed * int(pods) > most:
                return f"{int(pods)} pods do not fit in {key} {hard} of quota {logical_name(quota)}"
    return ""


def _total(spec: dict[str, Any], kind: str, resource: str) -> Any:
    """The sum over the containers; None if one does not state it (a limit is also the request)."""
    total: Any = 0
    for container in map(as_map, as_list(spec.get("containers"))):
        resources = as_map(container.get("resources"))
        given = as_map(resources.get(kind)).get(resource)
        if given is None and kind == "requests":
            given = as_map(resources.get("limits")).get(resource)
        if given is None:
            return None
        total += amount(str(given)) or 0
    return total


def _containers(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for group in ("initContainers", "containers"):
        yield from map(as_map, as_list(spec.get(group)))


def _namespace(record: CloudObject) -> str:
    return str(value_at(plain(record.inputs), "metadata", "namespace") or "default")


NAMESPACE_KINDS: Mapping[str, set[str]] = {
    "pod_security": {"type", "at", "source"},
    "within_quota": {"type", "at", "source"},
}
NAMESPACE_CHECKS: Mapping[str, Callable[[Row, CloudObject, Others], str]] = {
    "pod_security": pod_security,
    "within_quota": within_quota,
}
