"""What a cluster adds to the objects that it stores: metadata, a service's address, a pod's status."""

from __future__ import annotations

from typing import Any

from trainfleet.rehearsal.simulation.pulumi_values import SIGNATURE, UNKNOWN, plain
from trainfleet.rehearsal.simulation.values import CREATED, address, digest


def stored(token: str, inputs: dict[str, Any], resource_id: str, *, preview: bool) -> dict[str, Any]:
    """Return an object as the cluster stores it.

    Args:
        token: its type.
        inputs: its inputs; empty for an object that a program reads by its id.
        resource_id: `NAMESPACE/NAME`, or the name alone.
        preview: whether it does not exist yet: what the cluster adds is then unknown.
    """
    result = {key: value for key, value in inputs.items() if not key.startswith("__")}
    if not inputs:
        result["metadata"] = _named(resource_id)
    added: dict[str, Any] = {
        "metadata": {
            "uid": digest(token, resource_id)[:36],
            "resourceVersion": "1",
            "generation": 1,
            "creationTimestamp": CREATED,
        }
    }
    if token.endswith(":Service"):
        added |= _service(result.get("spec"), resource_id)
    elif token == "kubernetes:core/v1:Pod":
        added |= _pod(resource_id)
    for name, values in added.items():
        own = result.get(name, {})
        if preview and not own:
            result[name] = UNKNOWN
        elif isinstance(own, dict) and SIGNATURE not in own:  # neither unknown nor a secret
            result[name] = {**(dict.fromkeys(values, UNKNOWN) if preview else values), **own}
    return result


def _named(resource_id: str) -> dict[str, Any]:
    namespace, _, name = resource_id.rpartition("/")
    return {"name": name, **({"namespace": namespace} if namespace else {})}


def _service(spec: Any, resource_id: str) -> dict[str, Any]:
    """Return the address and the status of a Service (Kubernetes API reference, ServiceSpec)."""
    host = {"hostname": f"{digest(resource_id)[:12]}.rehearsal.example"}
    status = {"status": {"loadBalancer": {"ingress": [host]}}}
    known = plain(spec) if isinstance(spec, dict) else {}
    if known.get("type") == "ExternalName":
        return status
    own = known.get("clusterIP") or address(resource_id, "service")
    return {"spec": {"clusterIP": own, "clusterIPs": [own]}, **status}


def _pod(resource_id: str) -> dict[str, Any]:
    """Return the status of a Pod that is ready: the provider waits for that."""
    own = address(resource_id, "pod")
    return {
        "status": {
            "phase": "Running",
            "podIP": own,
            "podIPs": [{"ip": own}],
            "hostIP": address(resource_id, "node"),
            "startTime": CREATED,
        }
    }
