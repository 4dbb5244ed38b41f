"""Drop the traffic between two pods, or between a pod and this machine, while a block runs.

Packets are dropped and not rejected, also those of open connections, as when a cable is pulled.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

from tests.cluster.conftest import Cluster
from trainfleet.local_cluster import node

_NUMBERS = itertools.count()


def address(cluster: Cluster, namespace: str, pod: str) -> str:
    """A pod's address. Pods reach this machine at `cluster.state.host_address`."""
    return cluster.kubectl("-n", namespace, "get", "pod", pod, "-o", "jsonpath={.status.podIP}")


@contextlib.contextmanager
def cut(cluster: Cluster, one: str, other: str) -> Iterator[None]:
    """Drop all packets between two addresses or ranges (`10.213.128.0/17` covers all pods)."""
    pid = node.pid_of(cluster.state.control_plane)
    assert pid is not None
    table = f"cut{next(_NUMBERS)}"
    drops = "\n".join(
        f"ip saddr {source} ip daddr {target} drop" for source, target in ((one, other), (other, one))
    )
    node.enter(
        pid,
        [
            "nft",
            f"table inet {table} {{\nchain cuts {{\ntype filter hook forward priority -300;\n{drops}\n}}\n}}",
        ],
    )
    try:
        yield
    finally:
        node.enter(pid, ["nft", "delete", "table", "inet", table])
