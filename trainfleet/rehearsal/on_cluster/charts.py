"""What stands for each Helm release on the cluster: charts cannot be had here, so their parts are made as far
as there are any, and it is said.

KubeRay's operator is the one built from source, started as its chart would start it (`operator.py`); charts
that bring definitions of kinds are
these definitions (`definitions.py`); nothing stands for the others. Easy to get wrong: on a cluster that has
the chart already, what it brought is
used and left alone.
"""

from __future__ import annotations

import threading
from typing import Any

from trainfleet.rehearsal.on_cluster.api import ApiError, Document
from trainfleet.rehearsal.on_cluster.applier import Maker
from trainfleet.rehearsal.on_cluster.cluster_target import Target
from trainfleet.rehearsal.on_cluster.definitions import KINDS, brought, definitions_of
from trainfleet.rehearsal.on_cluster.operator import Operator
from trainfleet.rehearsal.simulation.state import RefusedError

KUBERAY = "kuberay-operator"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class Charts:
    """The releases of one rehearsal."""

    def __init__(self, target: Target, maker: Maker) -> None:
        self.maker = maker
        self.operator = Operator(target.built_in, target, maker) if target.built_in else None
        self.told: dict[str, str] = {}
        """What stands for each chart, in words."""
        self.brought: list[str] = []
        """Definitions that no release brings, or whose release went before their objects: they go at the end."""
        self._paths: dict[str, list[str]] = {}
        self._lock = threading.Lock()

    def carry_out(self, verb: str, release: dict[str, Any]) -> None:
        """Install, change or remove what stands for a release.

        Raises:
            RefusedError: its namespace is missing, or the API server refuses a part.
        """
        name = str(release.get("chart", "")).rsplit("/", 1)[-1]
        with self._lock:
            if verb == "delete":
                self._remove(name)
            else:
                self._install(name, release)

    def _install(self, name: str, release: dict[str, Any]) -> None:
        namespace = str(release.get("namespace") or "default")
        if self._there(f"/api/v1/namespaces/{namespace}") is None:
            raise RefusedError(f"the namespace {namespace} of the release is not there")
        version = f"{name} {release.get('version', '')}".strip()
        if name == KUBERAY and self.operator is not None:
            self.told[name] = (
                f"{version}: the operator built from source, with {self.operator.start(namespace, release.get('values') or {})}"
            )
        elif name in KINDS:
            self.told[name] = f"{version}: {self._define(name)}, no controller"
        else:
            self.told[name] = f"{version}: nothing (no chart can be had here)"

    def _define(self, name: str) -> str:
        mine, there = [], []
        for document in definitions_of(name):
            path = f"{DEFINITIONS}/{document['metadata']['name']}"
            if path in self.maker.made or self._there(path) is None:
                self.maker.make(document)
                self.brought = [other for other in self.brought if other != path]
                self._paths.setdefault(name, []).append(path)
                mine.append(document["spec"]["names"]["kind"])
            else:
                there.append(document["spec"]["names"]["kind"])
        words = [f"definitions of {', '.join(mine)} from the schemas held here"] if mine else []
        return "; ".join(words + ([f"{', '.join(there)} as they were"] if there else []))

    def bring(self, api_version: str, kind: str) -> None:
        """Define a kind that a cloud's own clusters know and this one does not.

        Raises:
            RefusedError: the API server refuses the definition.
        """
        definition = brought(f"{api_version}:{kind}")
        if definition is None:
            return
        with self._lock:
            path = f"{DEFINITIONS}/{definition['metadata']['name']}"
            if path not in self.brought and self._there(path) is None:
                self.maker.make(definition)
                self.brought.append(path)
                self.told[kind] = (
                    f"{kind}: its cloud's clusters define it, here a definition from the schema held here does, no controller"
                )

    def _there(self, path: str) -> Document | None:
        try:
            return self.maker.api.get(path)
        except ApiError as error:
            raise RefusedError(f"the API server says: {error.message}") from error

    def _remove(self, name: str) -> None:
        if name == KUBERAY and self.operator is not None:
            self.operator.stop()
        paths = self._paths.pop(name, [])
        # A definition takes every object of its kind with it. When a release is replaced its objects are
        # still there: the definition stays.
        used = [path for path in paths if self._is_used(path)]
        self.brought += used
        for path in paths:
            if path not in used:
                self.maker.remove(path)
        for path in paths:
            if path not in used:
                self.maker.wait_gone(path)

    def _is_used(self, path: str) -> bool:
        plural, _, group = path.rpartition("/")[2].partition(".")
        return any(made.startswith(f"/apis/{group}/") and f"/{plural}/" in made for made in self.maker.made)

    def end(self) -> list[str]:
        """Put the built-in cluster's own operator back; returns what could not be."""
        with self._lock:  # a start that is under way ends first
            return self.operator.end() if self.operator is not None else []
