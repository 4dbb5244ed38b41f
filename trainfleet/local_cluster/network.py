"""The cluster's network: one link to this machine, and an address range that nothing else here uses.

The range contains the links, the services and the pods; this machine has one route to it. The first node
routes to the others, which are linked to it. The cluster opens no port of this machine and changes no
firewall rule or kernel setting of it: each node has its own.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable
from ipaddress import IPv4Network
from typing import Any

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.local_cluster.node import enter
from trainfleet.local_cluster.state import Node, State

CANDIDATES = tuple(IPv4Network(f"10.{second}.0.0/16") for second in (213, 217, 221, 229, 233))
LIMIT_S = 10.0


def choose(taken: Iterable[IPv4Network] = ()) -> IPv4Network:
    """A range that overlaps no route or address of this machine, and none of `taken`.

    Raises:
        InputError: all candidates are in use.
    """
    used = [*_used_ranges(), *taken]
    for candidate in CANDIDATES:
        if not any(candidate.overlaps(network) for network in used):
            return candidate
    raise InputError(
        "no address range is free for the cluster",
        [Problem("ip route", f"uses {', '.join(map(str, CANDIDATES))}", "free one of them")],
    )


def exists(link: str) -> bool:
    return any(entry.get("ifname") == link for entry in _ip("link", "show"))


def connect(state: State, pid: int) -> None:
    """Create or repair the link between this machine and the first node.

    Raises:
        InputError: another link has that name.
    """
    if exists(state.link) and not any(resource.kind == "link" for resource in state.resources):
        raise InputError(
            "another network link has the cluster's name",
            [Problem(state.link, "was not created by this cluster", "choose another --name")],
        )
    # The link of a stopped node disappears a moment later, so its existence alone does not count.
    if not _has_link(pid, "eth0"):
        remove(state.link)
        state.record("link", state.link)
        _run("ip", "link", "add", state.link, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    _run("ip", "addr", "replace", f"{state.host_address}/30", "dev", state.link)
    _run("ip", "link", "set", state.link, "up")
    _configure(state.control_plane, pid)
    _run("ip", "route", "replace", str(state.network), "via", str(state.node_address), "dev", state.link)


def join(node: Node, pid: int, router: int) -> None:
    """Create or repair the link between the first node, whose process is `router`, and another. The kernel
    removes it with either of them.
    """

    def route(*arguments: str) -> None:
        enter(router, ["ip", *arguments])

    if not (_has_link(pid, "eth0") and _has_link(router, node.short)):
        for end, link in ((pid, "eth0"), (router, node.short)):
            # Fails if it does not exist, as usual: one end exists for a moment after the other's node ended.
            subprocess.run(
                ["nsenter", "-t", str(end), "-n", "ip", "link", "delete", link],
                capture_output=True,
                check=False,
            )
        # The peer is named by a process ID of this machine, so only the network is entered.
        peer = ("type", "veth", "peer", "name", "eth0", "netns", str(pid))
        _run("nsenter", "-t", str(router), "-n", "ip", "link", "add", node.short, *peer)
    route("addr", "replace", f"{node.gateway}/30", "dev", node.short)
    route("link", "set", node.short, "up")
    _configure(node, pid)
    route("route", "replace", str(node.pods), "via", str(node.address), "dev", node.short)


def _configure(node: Node, pid: int) -> None:
    """Set up the node's own end of its link."""
    enter(pid, ["ip", "addr", "replace", f"{node.address}/30", "dev", "eth0"])
    enter(pid, ["ip", "link", "set", "eth0", "up"])
    enter(pid, ["ip", "route", "replace", "default", "via", str(node.gateway)])


def disconnect(node: Node, router: int) -> None:
    """Take down a node's link until `join`, if it has one."""
    if _has_link(router, node.short):
        enter(router, ["ip", "link", "set", node.short, "down"])


def cut(node: Node, router: int, seconds: int) -> None:
    """Drop all packets from and to a node's link. The kernel ends this after `seconds` by itself."""
    table = _table(node)
    drop = f"""
table inet {table} {{
  set links {{ type ifname; flags timeout; elements = {{ "{node.short}" timeout {seconds}s }} }}
  chain received {{ type filter hook prerouting priority -400; iifname @links drop; }}
  chain sent {{ type filter hook postrouting priority 400; oifname @links drop; }}
}}"""
    enter(router, ["nft", f"table inet {table} {{}}\ndelete table inet {table}\n{drop}"])


def restore(node: Node, router: int) -> None:
    """End a cut of a node's link at once."""
    enter(router, ["nft", f"table inet {_table(node)} {{}}\ndelete table inet {_table(node)}"])


def is_cut(node: Node, router: int) -> bool:
    """Whether the packets of a node's link are dropped."""
    tables = enter(router, ["nft", "list", "tables"]).stdout.split()
    return (
        _table(node) in tables
        and "expires" in enter(router, ["nft", "list", "set", "inet", _table(node), "links"]).stdout
    )


def _table(node: Node) -> str:
    return f"cut-{node.short}"


def remove(link: str) -> None:
    """Remove a link with its address and its route; returns once it is gone."""
    deadline = time.monotonic() + LIMIT_S
    while exists(link):
        # Fails if the link just disappeared with its node.
        subprocess.run(["ip", "link", "delete", link], capture_output=True, check=False)
        if time.monotonic() > deadline:
            raise TrainfleetError(
                "a link cannot be removed", [Problem(link, "still exists", f"ip link delete {link}")]
            )
        time.sleep(0.05)


def _has_link(pid: int, link: str) -> bool:
    return any(
        entry.get("ifname") == link
        for entry in json.loads(enter(pid, ["ip", "-json", "link", "show"]).stdout)
    )


def _used_ranges() -> list[IPv4Network]:
    found = [str(entry.get("dst", "")) for entry in _ip("-4", "route", "show", "table", "all")]
    found += [
        f"{address['local']}/{address['prefixlen']}"
        for entry in _ip("-4", "addr", "show")
        for address in entry.get("addr_info", ())
    ]
    networks = []
    for text in found:
        try:
            networks.append(IPv4Network(text, strict=False))
        except ValueError:  # `default`, or a name
            continue
    return networks


def _ip(*arguments: str) -> list[dict[str, Any]]:
    done = _run("ip", "-json", *arguments)
    return [entry for entry in json.loads(done or "[]") if entry]


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TrainfleetError(
            "the node's network cannot be created",
            [Problem(" ".join(command), done.stderr.strip() or f"exit code {done.returncode}")],
        )
    return done.stdout
