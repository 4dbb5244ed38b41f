"""Stand-ins for Helm releases: a rehearsal downloads no charts and applies the parts that it has.

KubeRay's operator is built from source and started like its chart does (`operator.py`).
CustomResourceDefinitions are generated from schemas (`definitions.py`). Other charts have no stand-in.
"""

from __future__ import annotations

import threading
from typing import Any

from trainfleet.rehearsal.on_cluster.api import ApiError, Document
from trainfleet.rehearsal.on_cluster.applier import Applier
from trainfleet.rehearsal.on_cluster.cluster_target import Target
from trainfleet.rehearsal.on_cluster.definitions import KINDS, definitions_of, provided
from trainfleet.rehearsal.on_cluster.operator import Operator
from trainfleet.rehearsal.simulation.state import RefusedError

KUBERAY, KUEUE = "kuberay-operator", "kueue"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class Charts:
    """The Helm releases of one rehearsal."""

    def __init__(self, target: Target, applier: Applier) -> None:
        self.applier = applier
        self.operator = Operator(target.built_in, target, applier) if target.built_in else None
        self.queue = target.built_in is not None and target.built_in.queue
        self.reports: dict[str, str] = {}
        """The stand-in for each chart, for display."""
        self.provided: list[str] = []
        """CustomResourceDefinitions without a release, or in use when it was removed; deleted at the end."""
        self._paths: dict[str, list[str]] = {}
        self._lock = threading.Lock()

    def perform(self, verb: str, release: dict[str, Any]) -> None:
        """Install, change or remove the stand-in for a release.

        Raises:
            RefusedError: its namespace is missing, or the API server rejects a part.
        """
        name = str(release.get("chart", "")).rsplit("/", 1)[-1]
        with self._lock:
            if verb == "delete":
                self._remove(name)
            else:
                self._install(name, release)

    def _install(self, name: str, release: dict[str, Any]) -> None:
        namespace = str(release.get("namespace") or "default")
        if self._exists(f"/api/v1/namespaces/{namespace}") is None:
            raise RefusedError(f"the namespace {namespace} of the release does not exist")
        version = f"{name} {release.get('version', '')}".strip()
        if name == KUBERAY and self.operator is not None:
            self.reports[name] = (
                f"{version}: the operator built from source, with"
                f" {self.operator.start(namespace, release.get('values') or {})}"
            )
        elif name == KUEUE and self.queue:
            self.reports[name] = f"{version}: the controller of `cluster up --queue`"
        elif name in KINDS:
            self.reports[name] = f"{version}: {self._define(name)}, no controller"
        else:
            self.reports[name] = f"{version}: nothing (the chart is not available here)"

    def _define(self, name: str) -> str:
        mine, there = [], []
        for document in definitions_of(name):
            path = f"{DEFINITIONS}/{document['metadata']['name']}"
            if path in self.applier.made or self._exists(path) is None:
                self.applier.make(document)
                self.provided = [other for other in self.provided if other != path]
                self._paths.setdefault(name, []).append(path)
                mine.append(document["spec"]["names"]["kind"])
            else:
                there.append(document["spec"]["names"]["kind"])
        words = [f"definitions of {', '.join(mine)} from the shipped schemas"] if mine else []
        return "; ".join(words + ([f"{', '.join(there)} already defined"] if there else []))

    def provide(self, api_version: str, kind: str) -> None:
        """Define a kind that is built into a cloud's managed clusters and missing in this cluster.

        Raises:
            RefusedError: the API server rejects the definition.
        """
        definition = provided(f"{api_version}:{kind}")
        if definition is None:
            return
        with self._lock:
            path = f"{DEFINITIONS}/{definition['metadata']['name']}"
            if path not in self.provided and self._exists(path) is None:
                self.applier.make(definition)
                self.provided.append(path)
                self.reports[kind] = (
                    f"{kind}: defined from the shipped schema, as in its cloud's clusters; no controller"
                )

    def _exists(self, path: str) -> Document | None:
        try:
            return self.applier.api.get(path)
        except ApiError as error:
            raise RefusedError(f"rejected by the API server: {error.message}") from error

    def _remove(self, name: str) -> None:
        if name == KUBERAY and self.operator is not None:
            self.operator.stop()
        paths = self._paths.pop(name, [])
        # NOTE: deleting a CustomResourceDefinition deletes all objects of its kind. While a release is being
        # replaced, its objects still exist, so the definition must stay.
        used = [path for path in paths if self._is_used(path)]
        self.provided += used
        for path in paths:
            if path not in used:
                self.applier.remove(path)
        for path in paths:
            if path not in used:
                self.applier.wait_gone(path)

    def _is_used(self, path: str) -> bool:
        plural, _, group = path.rpartition("/")[2].partition(".")
        return any(made.startswith(f"/apis/{group}/") and f"/{plural}/" in made for made in self.applier.made)

    def end(self) -> list[str]:
        """Restore the built-in cluster's own operator; return what could not be restored."""
        with self._lock:  # wait for a start in progress
            return self.operator.end() if self.operator is not None else []
