"""The status of a cluster: its servers with their memory, its nodes, and whether it accepts pods."""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path
from typing import Any

from trainfleet.local_cluster import node, pins, state
from trainfleet.local_cluster.kubectl import kubectl
from trainfleet.local_cluster.start import dns_is_ready, node_is_ready
from trainfleet.local_cluster.state import State

VERSIONS = {
    **dict.fromkeys(
        ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"), pins.KUBE
    ),
    "coredns": pins.COREDNS,
    "ray-operator": pins.RAY_OPERATOR,
    "kwok": pins.KWOK,
}
PRESSURES = {"DiskPressure": "disk", "MemoryPressure": "memory", "PIDPressure": "process numbers"}
"""The pressure conditions of a node: under pressure cluster accepts no new pods, and evicts some."""
_DEBIAN = {"containerd": "containerd", "etcd": "etcd-server"}


def cluster_status(name: str) -> dict[str, Any]:
    """The document that `trainfleet cluster status --json` prints."""
    cluster = state.load(name)
    document: dict[str, Any] = {
        "name": name,
        "exists": cluster is not None,
        "ready": False,
        "context": f"trainfleet-{name}",
        "servers": [],
        "nodes": [],
    }
    document["memory_mib"] = 0
    if cluster is None:
        return document
    document |= {
        "kubeconfig": str(cluster.kubeconfig),
        "network": str(cluster.network),
        "this_machine": str(cluster.host_address),
        "api": f"https://{cluster.node_address}:6443",
    }
    pid = node.pid_of(cluster)
    document["servers"] = _servers(cluster, pid) if pid else []
    document["memory_mib"] = sum(row["memory_mib"] for row in document["servers"])
    if pid and cluster.kubeconfig.exists():
        document["nodes"] = _nodes(cluster)
        running = bool(document["servers"]) and all(row["running"] for row in document["servers"])
        healthy = running and not any(row["short_of"] for row in document["nodes"])
        document["ready"] = healthy and node_is_ready(cluster) and dns_is_ready(cluster)
    return document


def _servers(cluster: State, pid: int) -> list[dict[str, Any]]:
    running: dict[str, dict[str, Any]] = {}
    with contextlib.suppress(OSError, ValueError):
        running = json.loads(cluster.file("running.json").read_text())
    host_pids = _host_pids(pid)
    rows = [{"name": "init", "version": "", "running": True, "starts": 1, "memory_mib": memory_mib(pid)}]
    for name, process in running.items():
        host_pid = host_pids.get(process["pid"])
        version = VERSIONS[name].version if name in VERSIONS else _debian_version(_DEBIAN.get(name, ""))
        memory = memory_mib(host_pid) if host_pid else 0
        rows.append(
            {
                "name": name,
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


def _nodes(cluster: State) -> list[dict[str, Any]]:
    done = kubectl(cluster, "get", "nodes", "-o", "json", check=False, timeout=20)
    if done.returncode:
        return []
    return [
        {
            "name": item["metadata"]["name"],
            "ready": any(
                row["type"] == "Ready" and row["status"] == "True"
                for row in item["status"].get("conditions", ())
            ),
            "simulated": item["metadata"].get("annotations", {}).get("kwok.x-k8s.io/node") == "fake",
            "short_of": [
                PRESSURES[row["type"]]
                for row in item["status"].get("conditions", ())
                if row["type"] in PRESSURES and row["status"] == "True"
            ],
            "gpus": int(item["status"].get("capacity", {}).get("nvidia.com/gpu", 0)),
        }
        for item in json.loads(done.stdout)["items"]
    ]
