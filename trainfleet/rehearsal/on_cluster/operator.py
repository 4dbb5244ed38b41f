"""Runs KubeRay's operator on the built-in cluster with the flags and permissions of the stack's Helm release.

It replaces the cluster's own operator (all namespaces, KubeRay's complete ClusterRole), which is restored
afterwards. Flags and permissions come from the chart's deployment.yaml, multiple_namespaces_role.yaml and
leader_election_role.yaml at ray-project/kuberay v1.6.0.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from trainfleet.errors import TrainfleetError
from trainfleet.files import write_whole
from trainfleet.local_cluster import builds, pins
from trainfleet.local_cluster.start import is_healthy, set_processes
from trainfleet.local_cluster.state import State
from trainfleet.rehearsal.on_cluster.api import ApiError, Document
from trainfleet.rehearsal.on_cluster.applier import Applier
from trainfleet.rehearsal.on_cluster.cluster_target import Target
from trainfleet.rehearsal.simulation.state import RefusedError

ACCOUNT = "kuberay-operator"
SERVER = "ray-operator"
RBAC = "rbac.authorization.k8s.io/v1"
READY_S = 60.0
TOKEN_S = 24 * 3600
LEADER_RULES = (
    {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"],
    },
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["create", "get", "list", "update"],
    },
)


def flags(values: dict[str, Any], namespace: str) -> list[str]:
    """Return the flags that the chart derives from its values."""
    watched = values.get("watchNamespace") or ([namespace] if values.get("singleNamespaceInstall") else [])
    given = [f"--watch-namespace={','.join(watched)}"] if watched else []
    given.append(f"--enable-leader-election={str(values.get('leaderElectionEnabled', True)).lower()}")
    return [*given, "--enable-metrics=true", "--log-stdout-encoder=json"]


def variables(values: dict[str, Any]) -> dict[str, str]:
    """Return the environment variables that the chart derives from its values."""
    return {str(each["name"]): str(each["value"]) for each in values.get("env") or []}


def rights(values: dict[str, Any], namespace: str) -> list[Document]:
    """Return the service account and its permissions in the watched namespaces."""
    rules = yaml.safe_load((builds.folder_of(pins.RAY_OPERATOR) / builds.ROLE_FILE).read_text())["rules"]
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": ACCOUNT, "namespace": namespace},
    }
    made: list[Document] = [account]
    for place in values.get("watchNamespace") or [namespace]:
        made += _bound(ACCOUNT, place, namespace, rules)
    return made + _bound(f"{ACCOUNT}-leader-election", namespace, namespace, list(LEADER_RULES))


def _bound(name: str, place: str, namespace: str, rules: list[Any]) -> list[Document]:
    metadata = {"name": name, "namespace": place}
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    return [
        {"apiVersion": RBAC, "kind": "Role", "metadata": metadata, "rules": rules},
        {
            "apiVersion": RBAC,
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": role,
            "subjects": [subject],
        },
    ]


def login(it: State) -> Path:
    """Return the path of the operator's kubeconfig."""
    return it.file("config", "stack-operator.kubeconfig")


class Operator:
    """The KubeRay operator of one rehearsal."""

    def __init__(self, it: State, target: Target, applier: Applier) -> None:
        self.it, self.target, self.applier = it, target, applier
        self._before: dict[str, Any] | None = None
        self._paths: list[str] = []
        self.kubeconfig = login(it)

    def start(self, namespace: str, values: dict[str, Any]) -> str:
        """Start the operator, or restart it with other flags; return the flags.

        Raises:
            RefusedError: the API server rejects its account or permissions, or the operator does not become
            ready.
        """
        for document in rights(values, namespace):
            path = self.applier.api.path_of(document)
            self.applier.make(document)
            if path not in self._paths:
                self._paths.append(path)
        self._log_in(namespace)
        given = flags(values, namespace)
        settings = self._settings()
        if self._before is None:
            self._before = settings[SERVER]
        command = [
            self._before["command"][0],
            f"--kubeconfig={self.kubeconfig}",
            *given,
            f"--leader-election-namespace={namespace}",
        ]
        command += [
            flag for flag in self._before["command"] if flag.startswith(("--metrics-addr", "--health-probe"))
        ]
        self._run(
            {
                **self._before,
                "command": command,
                "environment": {**self._before.get("environment", {}), **variables(values)},
            }
        )
        return " ".join(given)

    def _log_in(self, namespace: str) -> None:
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{ACCOUNT}/token"
        asked = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": TOKEN_S},
        }
        try:
            token = self.applier.api.request("POST", path, body=asked)["status"]["token"]
        except ApiError as error:
            raise RefusedError(f"rejected by the API server: {error.message}") from error
        document = {
            **self.target.document,
            "users": [{"name": self.target.context, "user": {"token": token}}],
        }
        write_whole(self.kubeconfig, json.dumps(document), 0o600)

    def _settings(self) -> dict[str, Any]:
        return dict(json.loads(self.it.file("processes.json").read_text()))

    def _run(self, server: dict[str, Any]) -> None:
        starts = self._starts()
        if self._settings()[SERVER] == server:
            return
        set_processes(self.it.control_plane, {**self._settings(), SERVER: server})
        api = self.applier.api
        ready = f"http://{self.it.node_address}:8082/readyz"
        if not api.wait(lambda: self._starts() != starts and is_healthy(ready), READY_S):
            raise RefusedError(f"KubeRay's operator did not answer in {READY_S:.0f} s: {self._last_output()}")

    def _starts(self) -> Any:
        try:
            return json.loads(self.it.file("running.json").read_text())[SERVER]
        except (OSError, ValueError, KeyError):
            return None

    def _last_output(self) -> str:
        lines = self.it.file("logs", f"{SERVER}.log").read_text(errors="replace").strip().splitlines()
        return " / ".join(lines[-3:]) or "no output"

    def stop(self) -> None:
        """Restore the cluster's own operator and remove this one with its account and permissions.

        Raises:
            RefusedError: the cluster's own operator does not become ready.
        """
        if self._before is not None:
            self._run(self._before)
            self._before = None
        self.kubeconfig.unlink(missing_ok=True)
        paths, self._paths = self._paths, []
        for path in reversed(paths):
            self.applier.remove(path)
        for path in reversed(paths):
            self.applier.wait_gone(path)

    def end(self) -> list[str]:
        """Restore the cluster's own operator if necessary; return the errors."""
        try:
            self.stop()
        except (RefusedError, TrainfleetError, OSError) as error:
            return [f"KubeRay's operator: {error}"]
        return []
