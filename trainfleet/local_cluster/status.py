"""The status of a cluster: its servers with their memory, its nodes, and whether it accepts pods."""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path
from typing import Any

from trainfleet.local_cluster import network, nodes, pins, state
from trainfleet.local_cluster import node as node_process
from trainfleet.local_cluster.node_settings import STAND_INS
from trainfleet.local_cluster.start import dns_is_ready
from trainfleet.local_cluster.state import Node, State

VERSIONS = {
    **dict.fromkeys(
        ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"), pins.KUBE
    ),
    "ray-operator": pins.RAY_OPERATOR,
    "kwok": pins.KWOK,
    "device-plugin": pins.DEVICE_PLUGIN,
    "network-policies": pins.NETWORK_POLICIES,
}
PRESSURES = {"DiskPressure": "disk", "MemoryPressure": "memory", "PIDPressure": "process numbers"}
"""The pressure conditions of a node: under pressure, it accepts no new pods and evicts some."""
DNS_QUERIES = 3
"""A query is a UDP packet, which may be lost, so a resolver repeats it."""
_DEBIAN = {"containerd": "containerd", "etcd": "etcd-server"}


def cluster_status(name: str) -> dict[str, Any]:
    """The document that `trainfleet cluster status --json` prints."""
    cluster = state.load(name)
    document: dict[str, Any] = {
        "name": name,
        "exists": cluster is not None,
        "ready": False,
        "not_ready": [],
        "context": f"trainfleet-{name}",
        "servers": [],
        "nodes": [],
    }
    document["memory_mib"] = 0
    if cluster is None:
        document["not_ready"] = [f"there is no cluster {name}: `{state.up_command(name)}`"]
        return document
    document |= {
        "kubeconfig": str(cluster.kubeconfig),
        "network": str(cluster.network),
        "this_machine": str(cluster.host_address),
        "api": f"https://{cluster.node_address}:6443",
    }
    running = [(node, pid) for node in cluster.nodes if (pid := node_process.pid_of(node)) is not None]
    document["servers"] = [row for node, pid in running for row in _servers(node, pid)]
    document["memory_mib"] = sum(row["memory_mib"] for row in document["servers"])
    if running and running[0][0].number == 1 and cluster.kubeconfig.exists():
        documents = nodes.read(cluster)
        document["nodes"] = _nodes(cluster, documents, running[0][1])
        document["not_ready"] = _not_ready(cluster, document, answers=bool(documents))
    else:
        document["not_ready"] = [f"its first node is not up: `{state.up_command(name)}`"]
    document["ready"] = not document["not_ready"]
    return document


def _not_ready(cluster: State, document: dict[str, Any], *, answers: bool) -> list[str]:
    """What a cluster lacks to accept pods, a line each.

    Args:
        cluster: the cluster, whose first node runs.
        document: its servers and nodes.
        answers: whether its API server returned the nodes.
    """
    lacking = [f"{row['name']} does not run" for row in document["servers"] if not row["running"]]
    if not answers:
        return [*lacking, "the API server does not answer: see the log of kube-apiserver"]
    real = {node.name for node in cluster.nodes}
    for row in document["nodes"]:
        if row["name"] in real and row["short_of"]:
            lacking.append(f"{row['name']} is short of {', '.join(row['short_of'])}: it accepts no new pods")
        elif row["name"] in real and not row["ready"]:
            lacking.append(f"{row['name']} is not ready ({row['state']})")
    if not any(dns_is_ready(cluster) for _ in range(DNS_QUERIES)):
        lacking.append("the cluster's DNS does not answer: see the log of coredns")
    return lacking


def log_name(node: Node, server: str) -> str:
    """The name of a server in the table and for `logs`."""
    return server if node.number == 1 else f"{node.short}/{server}"


def _servers(node: Node, pid: int) -> list[dict[str, Any]]:
    running: dict[str, dict[str, Any]] = {}
    with contextlib.suppress(OSError, ValueError):
        running = json.loads(node.file("running.json").read_text())
    host_pids = _host_pids(pid)
    init = {"version": "", "running": True, "starts": 1, "memory_mib": memory_mib(pid)}
    rows: list[dict[str, Any]] = [{"name": log_name(node, "init"), **init}]
    for name, process in running.items():
        host_pid = host_pids.get(process["pid"])
        version = VERSIONS[name].version if name in VERSIONS else _debian_version(_DEBIAN.get(name, ""))
        memory = memory_mib(host_pid) if host_pid else 0
        rows.append(
            {
                "name": log_name(node, name),
                "version": version,
                "running": host_pid is not None,
                "starts": process["starts"],
                "memory_mib": memory,
            }
        )
    return rows


def _host_pids(pid: int) -> dict[int, int]:
    """The children of the node's first process: the ID on this machine by the ID in the node."""
    found = {}
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(OSError, StopIteration):
                rows = Path(f"/proc/{child}/status").read_text().splitlines()
                line = next(row for row in rows if row.startswith("NSpid:"))
                found[int(line.split()[-1])] = int(child)
    return found


def memory_mib(pid: int) -> int:
    """A process's proportional set size, in which shared memory is divided among its users."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) // 1024
    return 0


def _debian_version(package: str) -> str:
    if not package:
        return ""
    done = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True, check=False
    )
    return done.stdout if done.returncode == 0 else ""


def _nodes(cluster: State, documents: dict[str, Any], router: int) -> list[dict[str, Any]]:
    """A row per Node object, and one per real node that has none."""
    real = {node.name: node for node in cluster.nodes}
    return [_node_row(name, documents.get(name, {}), real.get(name), router) for name in real | documents]


def _node_row(name: str, document: dict[str, Any], node: Node | None, router: int) -> dict[str, Any]:
    metadata, status = document.get("metadata", {}), document.get("status", {})
    true = {row["type"] for row in status.get("conditions", ()) if row["status"] == "True"}
    allocatable = status.get("allocatable", {})
    return {
        "name": name,
        "state": _state(node, router),
        "ready": nodes.is_ready(node, document) if node else "Ready" in true,
        "simulated": metadata.get("annotations", {}).get("kwok.x-k8s.io/node") == "fake",
        "zone": metadata.get("labels", {}).get("topology.kubernetes.io/zone", ""),
        "short_of": [word for condition, word in PRESSURES.items() if condition in true],
        "gpus": int(status.get("capacity", {}).get("nvidia.com/gpu", 0)),
        "devices": {name: int(allocatable[name]) for name in STAND_INS if name in allocatable},
    }


def _state(node: Node | None, router: int) -> str:
    """What a node does: runs, cut off, stopped, or simulated."""
    if node is None:
        return "simulated"
    if node_process.pid_of(node) is None:
        return "stopped"
    return "cut off" if node.number > 1 and network.is_cut(node, router) else "runs"
