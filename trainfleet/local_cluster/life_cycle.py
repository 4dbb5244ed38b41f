"""Stops, starts and disconnects single nodes of a cluster with several, as fault injection."""

from __future__ import annotations

from trainfleet.errors import InputError, Problem
from trainfleet.local_cluster import network, servers
from trainfleet.local_cluster import node as node_process
from trainfleet.local_cluster.start import (
    Progress,
    cluster_lock,
    set_processes,
    specs_of,
    start_node,
    wait_until_ready,
)
from trainfleet.local_cluster.state import Node, State, up_command
from trainfleet.suggestions import did_you_mean


def find(cluster: State, name: str) -> Node:
    """The node of a name, `node2` or `trainfleet-local-node2`.

    Raises:
        InputError: it does not exist, or it is the first, whose end is the end of the whole cluster.
    """
    known = {node.short: node for node in cluster.nodes}
    node = known.get(name.removeprefix(f"{cluster.context}-"))
    if node is None:
        what = f"is not a node of {cluster.name}"
        raise InputError("no such node", [Problem(name, what, did_you_mean(name, known))])
    if node.number == 1:
        what = "runs the control plane and routes the packets of the other nodes"
        others = ", ".join(list(known)[1:]) or up_command(cluster.name, "--nodes", "3")
        raise InputError("this node cannot be stopped alone", [Problem(name, what, others)])
    return node


def stop(node: Node, progress: Progress) -> None:
    """Kill a node with all its processes and pods at once, like a machine that loses its power. It stays down
    until `start` or `up`.
    """
    with cluster_lock(node.cluster.name, progress):
        if (router := node_process.pid_of(node.cluster.control_plane)) is not None:
            # Without power, nothing closes the connections of the processes that end.
            network.disconnect(node, router)
        node_process.stop(node.token)


def start(node: Node, progress: Progress) -> None:
    """Start a stopped node, end a cut of its link, and wait until it accepts pods.

    Raises:
        InputError: the control plane does not run.
        TrainfleetError: the node does not become ready; with the end of its kubelet's log.
    """
    with cluster_lock(node.cluster.name, progress):
        start_node(node, _router(node.cluster))
        set_processes(node, specs_of(servers.of_node(node)))
        wait_until_ready(node.cluster, [node])


def cut(node: Node, seconds: int, progress: Progress) -> None:
    """Drop all packets from and to a node for a number of seconds, as when a cable is pulled. The kernel ends
    this by itself.

    Raises:
        InputError: the node does not run.
    """
    with cluster_lock(node.cluster.name, progress):
        if node_process.pid_of(node) is None:
            fix = f"trainfleet cluster node start {node.short}"
            raise InputError("the node does not run", [Problem(node.short, "is stopped", fix)])
        network.cut(node, _router(node.cluster), seconds)


def _router(cluster: State) -> int:
    """The first process of the first node."""
    if (pid := node_process.pid_of(cluster.control_plane)) is None:
        what = f"{cluster.name} is stopped"
        raise InputError("the cluster does not run", [Problem("--name", what, up_command(cluster.name))])
    return pid
