"""Find the cluster of a kubeconfig without taking its credentials."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainfleet import yaml_limits
from trainfleet.errors import InputError, Problem
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.suggestions import did_you_mean


@dataclass(frozen=True)
class KubeCluster:
    """The cluster to use: its context, and a kubeconfig without credentials (empty without a file)."""

    context: str
    document: dict[str, Any]


def kubeconfig_path(spec: PlatformSpec) -> Path:
    """The spec's file, else the first of $KUBECONFIG, else ~/.kube/config."""
    written = spec.kubernetes.kubeconfig or os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    return Path(written).expanduser() if written else Path.home() / ".kube" / "config"


def find_cluster(spec: PlatformSpec, path: Path) -> KubeCluster:
    """Find the context of the spec, or the current one, in a kubeconfig.

    Raises:
        InputError: the file cannot be read, or lacks the context. A missing file is an error only if the spec
            names it, because a rehearsal needs no cluster.
    """
    where = "kubernetes.kubeconfig" if spec.kubernetes.kubeconfig else str(path)
    if not path.is_file():
        if spec.kubernetes.kubeconfig:
            raise _refused(
                Problem(
                    where,
                    f"{path} does not exist",
                    "the path of the cluster's kubeconfig, or leave it out for the default",
                )
            )
        return KubeCluster(spec.kubernetes.context, {})
    try:
        document = yaml_limits.load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise _refused(
            Problem(where, f"{path} cannot be read: {str(error).splitlines()[0]}", "a kubeconfig in YAML")
        ) from error
    if not isinstance(document, dict):
        raise _refused(
            Problem(where, f"{path} is not a kubeconfig", "a file with clusters, users and contexts")
        )
    contexts = _by_name(document, "contexts", "context")
    name = spec.kubernetes.context or str(document.get("current-context") or "")
    if name not in contexts:
        what = (
            f"the kubeconfig {path} has no context `{name}`"
            if name
            else f"the kubeconfig {path} has no current context"
        )
        fix = (
            did_you_mean(name, contexts)
            if contexts
            else "add a cluster to it, for example with `kind create cluster`"
        )
        raise _refused(Problem("kubernetes.context", what, fix))
    cluster_name = str(contexts[name].get("cluster", ""))
    cluster = _by_name(document, "clusters", "cluster").get(cluster_name)
    if cluster is None:
        raise _refused(
            Problem(
                "kubernetes.context",
                f"context `{name}` of {path} names a cluster `{cluster_name}` that is not in it",
                "",
            )
        )
    return KubeCluster(name, without_credentials(name, cluster))


def without_credentials(context: str, cluster: dict[str, Any]) -> dict[str, Any]:
    """A kubeconfig with the cluster's address and without credentials."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": context, "cluster": cluster}],
        "users": [{"name": context, "user": {}}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
        "current-context": context,
    }


def _by_name(document: dict[str, Any], key: str, inner: str) -> dict[str, dict[str, Any]]:
    entries = document.get(key) or []
    return {str(entry.get("name")): entry.get(inner) or {} for entry in entries if isinstance(entry, dict)}


def _refused(problem: Problem) -> InputError:
    return InputError("the existing cluster cannot be used", [problem])
