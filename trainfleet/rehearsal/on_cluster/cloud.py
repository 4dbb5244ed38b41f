"""A simulated cloud whose Kubernetes provider talks to a real API server.

Faults are injected before a request reaches the API server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.rehearsal.engine.sandbox import uninterrupted
from trainfleet.rehearsal.on_cluster.api import Api, ApiError, UnknownKindError, connected
from trainfleet.rehearsal.on_cluster.applier import Applier
from trainfleet.rehearsal.on_cluster.charts import Charts
from trainfleet.rehearsal.on_cluster.cluster_target import Target
from trainfleet.rehearsal.on_cluster.inventory import Inventory, inventory
from trainfleet.rehearsal.on_cluster.objects import as_it_is, to_object
from trainfleet.rehearsal.simulation.cloud_object import CloudObject
from trainfleet.rehearsal.simulation.kubernetes.model import is_object
from trainfleet.rehearsal.simulation.pulumi_values import plain
from trainfleet.rehearsal.simulation.state import Cloud, RefusedError


@dataclass
class ClusterCloud(Cloud):
    """A simulated cloud with a real Kubernetes API."""

    target: Target = field(kw_only=True)
    applier: Applier = field(kw_only=True)
    charts: Charts = field(kw_only=True)
    before: Inventory = field(kw_only=True)
    """The objects on the cluster when the rehearsal started."""

    @property
    def api(self) -> Api:
        """The client of the cluster's API server."""
        return self.applier.api

    def perform(self, verb: str, record: CloudObject) -> None:
        token = record.token
        if token.startswith("kubernetes:helm.sh/"):
            self.charts.perform(verb, plain(record.inputs))
        elif token.startswith("kubernetes:") and is_object(token) and record.inputs:
            document = to_object(record.inputs)
            self.charts.provide(document["apiVersion"], document["kind"])
            if verb == "delete":
                self.applier.remove(self._path(record))
            else:
                live = self.applier.make(document) if verb == "create" else self.applier.change(document)
                _note(record.outputs, live["metadata"])

    def _path(self, record: CloudObject | None) -> str:
        if (
            record is None
            or not record.inputs
            or not record.token.startswith("kubernetes:")
            or not is_object(record.token)
        ):
            return ""
        try:
            return self.api.path_of(to_object(record.inputs))
        except (UnknownKindError, ApiError):
            return ""

    def delete(self, token: str, resource_id: str, urn: str, place: str = "") -> None:
        path = self._path(self.records.get((token, resource_id, place)))
        super().delete(token, resource_id, urn, place)
        if path:
            self.applier.wait_gone(path)

    def find(self, token: str, resource_id: str, place: str = "") -> CloudObject | None:
        """Return a record with its live values; None also if the object was deleted from the cluster."""
        found = super().find(token, resource_id, place)
        path = self._path(found)
        if found is None or path not in self.applier.made:
            return found
        try:
            live = self.api.get(path)
        except ApiError as error:
            raise RefusedError(error.message) from error
        if live is None:
            with self._lock:
                self.records.pop(found.key, None)
                self.applier.made.pop(path, None)
            return None
        now = as_it_is(found.inputs, live)
        if now != found.inputs:
            found.inputs = now
            found.outputs = {
                **found.outputs,
                **{key: value for key, value in now.items() if key != "metadata"},
            }
            found.outputs["metadata"] = {
                **(found.outputs.get("metadata") or {}),
                **(now.get("metadata") or {}),
            }
            _drop_missing(found.outputs.get("metadata"), now.get("metadata"))
        return found

    def live_path(self, urn: str) -> str:
        """Return the path of the object that a resource created on the cluster, or an empty string."""
        path = self._path(self.of_urn(urn))
        return path if path in self.applier.made else ""


def _note(outputs: dict[str, Any], metadata: dict[str, Any]) -> None:
    """Copy the live object's UID and creation time to the outputs."""
    known = outputs.get("metadata")
    if isinstance(known, dict):
        known |= {key: metadata[key] for key in ("uid", "creationTimestamp") if key in metadata}


def _drop_missing(known: Any, now: Any) -> None:
    """Remove deleted labels and annotations from the outputs."""
    for name in ("labels", "annotations"):
        if isinstance(known, dict) and isinstance(now, dict) and name in known:
            known[name] = now.get(name) or {}


@contextlib.contextmanager
def on(target: Target, quotas: dict[str, int] | None = None) -> Iterator[ClusterCloud]:
    """Return a cloud that creates its Kubernetes objects on `target`.

    On exit, also after an error, everything that it created is deleted, unless `leave` is set.

    Raises:
        TrainfleetError: the cluster cannot be reached, or an object cannot be deleted.
    """
    with connected(target) as api:
        applier = Applier(api, shares_namespaces=target.built_in is not None)
        charts = Charts(target, applier)
        cloud = ClusterCloud(
            quotas=quotas or {}, target=target, applier=applier, charts=charts, before=inventory(api)
        )
        try:
            yield cloud
        finally:
            with uninterrupted():
                applier.close()
                left = [] if cloud.leave else [*charts.end(), *applier.clear()]
            if left:
                raise TrainfleetError(
                    "the cluster was not restored", [Problem(target.context, text) for text in left]
                )
