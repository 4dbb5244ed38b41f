"""Pure conversions between Pulumi inputs and Kubernetes API objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainfleet.rehearsal.simulation.kubernetes_types import amount
from trainfleet.rehearsal.simulation.pulumi_values import is_secret, plain

Json = Any
_WORKLOADS = {"Job", "DaemonSet", "Deployment", "StatefulSet", "ReplicaSet"}


def to_object(inputs: dict[str, Json]) -> dict[str, Json]:
    """Return the API object for a resource's inputs (wire values)."""
    made = _named_as_in_the_api(_without_nothing(plain(inputs)))
    return {key: value for key, value in made.items() if not key.startswith("__")}


def _without_nothing(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _without_nothing(item) for key, item in value.items() if item is not None}
    return [_without_nothing(item) for item in value] if isinstance(value, list) else value


def _api_name(key: str) -> str:
    return key.replace("_", "-") if key.startswith("x_kubernetes_") else key


def _named_as_in_the_api(value: Json) -> Json:
    if isinstance(value, dict):
        return {_api_name(key): _named_as_in_the_api(item) for key, item in value.items()}
    return [_named_as_in_the_api(item) for item in value] if isinstance(value, list) else value


def as_it_is(inputs: Json, live: Json) -> Json:
    """Return the inputs with the live object's values; fields that are not in the inputs are ignored.

    Secrets keep their input value, because they are not read back.
    """
    if is_secret(inputs) or inputs is None:
        return inputs
    if isinstance(inputs, dict) and isinstance(live, dict):
        return {
            key: _member(item, live, _api_name(key))
            for key, item in inputs.items()
            if _is_present(key, item, live)
        }
    if isinstance(inputs, list) and isinstance(live, list) and len(inputs) == len(live):
        return [as_it_is(mine, theirs) for mine, theirs in zip(inputs, live, strict=True)]
    return inputs if _same(plain(inputs), live) else live


def _member(item: Json, live: dict[str, Json], key: str) -> Json:
    return as_it_is(item, live[key]) if key in live else item


def _is_present(key: str, item: Json, live: dict[str, Json]) -> bool:
    """Return whether a key counts as present: the server drops empty values and never returns stringData."""
    return (
        key.startswith("__")
        or _api_name(key) in live
        or item in (None, {}, [], "", False, 0)
        or key == "stringData"
    )


def _same(mine: Json, theirs: Json) -> bool:
    if mine == theirs:
        return True
    numbers = amount(mine), amount(theirs)
    return isinstance(mine, (str, int, float)) and None not in numbers and numbers[0] == numbers[1]


def pods(document: dict[str, Json]) -> Iterator[dict[str, Json]]:
    """Yield the pod that a workload would create, as a separate object.

    Admission only warns about a workload, but rejects its pods.
    """
    if document["kind"] not in _WORKLOADS:
        return
    template = document["spec"]["template"]
    metadata = {**(template.get("metadata") or {}), "name": f"{document['metadata']['name'][:50]}-pod"}
    metadata["namespace"] = document["metadata"].get("namespace") or "default"
    yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def shown(document: dict[str, Json]) -> str:
    """Return the display name, for example `Role training/trainfleet-launcher`."""
    metadata = document.get("metadata") or {}
    place = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
    return f"{document.get('kind', '')} {place}{metadata.get('name', '')}"
