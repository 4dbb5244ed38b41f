"""What a cluster could leave behind on this machine, to compare before and after."""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path
from typing import Any

from trainfleet.local_cluster import cgroups
from trainfleet.local_cluster.node_init import TUNABLES

FOLDERS: tuple[str, ...] = (
    "/var/lib/kubelet",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/etcd",
    "/var/log/pods",
    "/var/log/containers",
    "/run/containerd",
)
FOLDERS += ("/run/netns", "/etc/cni", "/opt/cni", "/run/flannel", "/run/lock", "/tmp/hostpath_pv")


def seen(name: str) -> dict[str, Any]:
    """Network links, routes, mounts, firewall rules, kernel settings, control groups, folders, /etc/hosts."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return {
        "links": sorted(row["ifname"] for row in _ip("link")),
        "routes": sorted(json.dumps(row, sort_keys=True) for row in _ip("route", "show", "table", "all")),
        "mounts": sorted(row.split()[4] for row in mounts),
        "firewall": subprocess.run(
            ["nft", "list", "ruleset"], capture_output=True, text=True, check=True
        ).stdout,
        "forwarding": Path("/proc/sys/net/ipv4/ip_forward").read_text(),
        "tunables": {name: Path("/proc/sys", name).read_text() for name in TUNABLES},
        "cgroups": [
            str(path) for root in cgroups.hierarchies() for path in sorted(root.glob(f"trainfleet-{name}*"))
        ],
        "hosts": Path("/etc/hosts").read_text(),
        "resolver": Path("/etc/resolv.conf").read_text(),
        "folders": {
            folder: sorted(path.name for path in Path(folder).glob("*"))
            for folder in FOLDERS
            if Path(folder).exists()
        },
    }


def namespaces(pid: int) -> set[str]:
    """The namespaces of a node's first process. Every process in one of them belongs to the node."""
    return {str(Path(f"/proc/{pid}/ns/{kind}").readlink()) for kind in ("pid", "mnt", "net")}


def processes_in(found: set[str]) -> list[str]:
    """The command lines of the processes in any of these namespaces."""
    here = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if {str((entry / "ns" / kind).readlink()) for kind in ("pid", "mnt", "net")} & found:
                    here.append((entry / "cmdline").read_text().replace("\0", " "))
    return here


def _ip(*arguments: str) -> list[dict[str, Any]]:
    done = subprocess.run(["ip", "-json", *arguments], capture_output=True, text=True, check=True)
    return [row for row in json.loads(done.stdout or "[]") if row]
