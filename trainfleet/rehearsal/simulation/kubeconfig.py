"""Kubeconfigs: that of a simulated cluster, and which cluster one is for."""

from __future__ import annotations

from typing import Any

import yaml

from trainfleet import yaml_limits


def kubeconfig(cluster: str, user: str, server: str, certificate: str) -> dict[str, Any]:
    """Return a kubeconfig whose user has a token.

    Args:
        cluster: the name of the cluster and of the context.
        user: the name of the user.
        server: the URL of the API server.
        certificate: the certificate authority, in Base64.
    """
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": cluster, "cluster": {"server": server, "certificate-authority-data": certificate}}
        ],
        "users": [{"name": user, "user": {"token": "rehearsal"}}],
        "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": user}}],
        "current-context": cluster,
    }


def read(document: Any) -> Any:
    """Return a kubeconfig as an object; what is not YAML or JSON, such as a path, does not change."""
    try:
        found = yaml_limits.load(document) if isinstance(document, str) else document
    except yaml.YAMLError:
        return document
    return found if isinstance(found, dict) else document


def active_cluster(document: Any, context: Any = None, cluster: Any = None) -> dict[str, Any] | None:
    """Return the cluster of the current context, or None if it is not a kubeconfig that has one.

    Args:
        document: a kubeconfig as an object, or as YAML or JSON.
        context: the name of another context.
        cluster: the name of another cluster.
    """
    try:
        document = read(document)
        contexts = {each["name"]: each["context"]["cluster"] for each in document["contexts"]}
        clusters = {each["name"]: each["cluster"] for each in document["clusters"]}
        found = clusters[cluster or contexts[context or document["current-context"]]]
    except (KeyError, TypeError):
        return None
    return found if isinstance(found, dict) else None
