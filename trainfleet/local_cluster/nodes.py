"""The nodes as the API server sees them: which are registered and ready, and their labels and taints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from trainfleet.local_cluster import node as node_process
from trainfleet.local_cluster.kubectl import kubectl
from trainfleet.local_cluster.state import Node, State

REGION = "local"
TIMEOUT_S = 20.0


def read(cluster: State) -> dict[str, dict[str, Any]]:
    """The Node objects by name; empty when the API server does not answer."""
    done = kubectl(cluster, "get", "nodes", "-o", "json", check=False, timeout=TIMEOUT_S)
    if done.returncode:
        return {}
    return {item["metadata"]["name"]: item for item in json.loads(done.stdout)["items"]}


def is_ready(node: Node, document: dict[str, Any]) -> bool:
    """Whether a node runs, and its kubelet has reported since its start that it accepts pods. The report of
    a node that was lost remains until the control plane notices.
    """
    if node_process.pid_of(node) is None or not node.file("ready").exists():
        return False
    started = int(node.file("ready").stat().st_mtime)
    return any(
        row["type"] == "Ready"
        and row["status"] == "True"
        and datetime.fromisoformat(row["lastHeartbeatTime"]).timestamp() >= started
        for row in document.get("status", {}).get("conditions", ())
    )


def labels_of(node: Node) -> dict[str, str]:
    """The labels that a node has besides its kubelet's. Each node is in its own zone unless it is given one,
    of the region `local`.
    """
    letter = "abcdefgh"[node.number - 1]
    places = {"region": REGION, "zone": f"{REGION}-{letter}"}
    return {f"topology.kubernetes.io/{place}": name for place, name in places.items()} | node.settings.labels


def apply_settings(cluster: State, nodes: Sequence[Node]) -> None:
    """Label and taint registered nodes.

    Raises:
        TrainfleetError: the API server rejects a label or a taint.
    """
    items = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.name, "labels": labels_of(node)}}
        for node in nodes
    ]
    flags = ("--server-side", "--force-conflicts", "--field-manager=trainfleet-nodes")
    document = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    kubectl(cluster, "apply", *flags, "-f", "-", stdin=document)
    for node in nodes:
        if node.settings.taints:
            kubectl(cluster, "taint", "--overwrite", "node", node.name, *node.settings.taints)
