"""What a cluster is doing: its servers with their memory, its nodes, whether pods may come. Looks, and
changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path
from typing import Any

from trainfleet.local_cluster import node, pins, state
from trainfleet.local_cluster.kubectl import kubectl
from trainfleet.local_cluster.start import dns_answers, node_ready
from trainfleet.local_cluster.state import State

VERSIONS = {
    **dict.fromkeys(
        ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"), pins.KUBE
    ),
    "coredns": pins.COREDNS,
    "ray-operator": pins.RAY_OPERATOR,
    "kwok": pins.KWOK,
}
SHORT = {"DiskPressure": "disk", "MemoryPressure": "memory", "PIDPressure": "process numbers"}
"""What a node may run short of: then it takes no new pods, and evicts some."""
_DEBIAN = {"containerd": "containerd", "etcd": "etcd-server"}


def look(name: str) -> dict[str, Any]:
    """Everything that `status` shows; memory is the servers' proportional share, so shared code is counted
    once.
    """
    it = state.load(name)
    seen: dict[str, Any] = {
        "name": name,
        "exists": it is not None,
        "ready": False,
        "context": f"trainfleet-{name}",
        "servers": [],
        "nodes": [],
    }
    seen["memory_mib"] = 0
    if it is None:
        return seen
    seen |= {
        "kubeconfig": str(it.kubeconfig),
        "network": str(it.network),
        "this_machine": str(it.outside),
        "api": f"https://{it.inside}:6443",
    }
    pid = node.pid_of(it)
    seen["servers"] = _servers(it, pid) if pid else []
    seen["memory_mib"] = sum(row["memory_mib"] for row in seen["servers"])
    if pid and it.kubeconfig.exists():
        seen["nodes"] = _nodes(it)
        well = (
            bool(seen["servers"])
            and all(row["running"] for row in seen["servers"])
            and not any(row["short_of"] for row in seen["nodes"])
        )
        seen["ready"] = well and node_ready(it) and dns_answers(it)
    return seen


def _servers(it: State, pid: int) -> list[dict[str, Any]]:
    running: dict[str, dict[str, Any]] = {}
    with contextlib.suppress(OSError, ValueError):
        running = json.loads(it.file("running.json").read_text())
    here = _pids_here(pid)
    rows = [{"name": "init", "version": "", "running": True, "starts": 1, "memory_mib": memory_mib(pid)}]
    for name, about in running.items():
        outside = here.get(about["pid"])
        version = VERSIONS[name].version if name in VERSIONS else _debian_version(_DEBIAN.get(name, ""))
        memory = memory_mib(outside) if outside else 0
        rows.append(
            {
                "name": name,
                "version": version,
                "running": outside is not None,
                "starts": about["starts"],
                "memory_mib": memory,
            }
        )
    return rows


def _pids_here(pid: int) -> dict[int, int]:
    """What this machine calls the children of the node's first process, by what the node calls them."""
    found = {}
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(OSError, StopIteration):
                line = next(
                    row
                    for row in Path(f"/proc/{child}/status").read_text().splitlines()
                    if row.startswith("NSpid:")
                )
                found[int(line.split()[-1])] = int(child)
    return found


def memory_mib(pid: int) -> int:
    """A process's proportional share of memory."""
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


def _nodes(it: State) -> list[dict[str, Any]]:
    done = kubectl(it, "get", "nodes", "-o", "json", check=False, timeout=20)
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
                SHORT[row["type"]]
                for row in item["status"].get("conditions", ())
                if row["type"] in SHORT and row["status"] == "True"
            ],
            "gpus": int(item["status"].get("capacity", {}).get("nvidia.com/gpu", 0)),
        }
        for item in json.loads(done.stdout)["items"]
    ]
