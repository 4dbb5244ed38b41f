"""The firewall rules of a node that queue the connections of pods to its agent for network policies.

The rules exist before the node's first pod and do not depend on the agent: without it, the kernel drops the
packets of new connections, which TCP sends again. Established connections pass unchecked.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from trainfleet.local_cluster.node import enter
from trainfleet.local_cluster.state import Node

HOLD_QUEUE, POLICY_QUEUE, CHECKED = 101, 100, 1 << 20
"""The queues of the agent, and its mark (trainfleet/pins/kubernetes/network-policies/main.go)."""
KERNEL_QUEUES = Path("/proc/net/netfilter/nfnetlink_queue")


def write_rules(node: Node, pid: int) -> None:
    """Replace the rules of a running node, whose first process is `pid`. None remain if the cluster does not
    enforce policies.
    """
    text = rules(str(node.cluster.pods), trusted(node)) if node.cluster.network_policies else rules("", ())
    with tempfile.TemporaryFile() as file:
        file.write(text.encode())
        file.seek(0)
        enter(pid, ["iptables-restore", "--noflush"], file)


def trusted(node: Node) -> list[str]:
    """The addresses of the other nodes: their servers reach every pod, like those of the pod's own node."""
    others = [other for other in node.cluster.nodes if other.number != node.number]
    # The first node has an address on the link of each other node too.
    links = [other.gateway for other in node.cluster.nodes if other.number > 1]
    return [str(address) for address in (*(other.address for other in others), *links)]


def rules(pods: str, trusted: Iterable[str]) -> str:
    """The rules for pods of an address range, as iptables-restore reads them. Addresses are those after a
    service's address was replaced by its endpoint. Without a range, the rules let everything pass.
    """
    lines = ["*mangle", ":POLICIES - [0:0]", "-F INPUT", "-F POSTROUTING"]
    if pods:
        lines += [
            f"-A INPUT -s {pods} -j POLICIES",
            f"-A POSTROUTING -s {pods} -j POLICIES",
            f"-A POSTROUTING -d {pods} -j POLICIES",
            "-A POLICIES -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN",
            "-A POLICIES -m addrtype --src-type LOCAL -j RETURN",
            *(f"-A POLICIES -s {address} -j RETURN" for address in trusted),
            f"-A POLICIES -m mark --mark {CHECKED}/{CHECKED} -j NFQUEUE --queue-num {POLICY_QUEUE}",
            f"-A POLICIES -j NFQUEUE --queue-num {HOLD_QUEUE}",
        ]
    return "\n".join([*lines, "COMMIT", ""])


def missing_in_kernel() -> str:
    """What the kernel lacks for the rules and the agent; empty if nothing. Tried in a network namespace that
    ends with the attempt.
    """
    command = ["unshare", "--net", "iptables-restore", "--noflush"]
    text = rules("10.0.0.0/8", ["10.0.0.1"])
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        error = " / ".join(done.stderr.strip().splitlines()[-2:])
        return f"xt_NFQUEUE, xt_conntrack, xt_addrtype or xt_mark (iptables-restore: {error})"
    if not KERNEL_QUEUES.exists():
        with contextlib.suppress(FileNotFoundError):  # no modprobe
            subprocess.run(["modprobe", "nfnetlink_queue"], capture_output=True, check=False)
    return "" if KERNEL_QUEUES.exists() else "nfnetlink_queue"
