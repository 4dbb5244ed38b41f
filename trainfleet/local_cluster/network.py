"""The node's network: one link to this machine, and an address range that nothing else here uses.

The range contains the link, the services and the pods; this machine has one route to it. The cluster opens no
port of this machine and changes no firewall rule or kernel setting of it: the node has its own.
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
from trainfleet.local_cluster.state import State

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
    """Create or repair the link between this machine and the node.

    Raises:
        InputError: another link has that name.
    """
    if exists(state.link) and not any(resource.kind == "link" for resource in state.resources):
        raise InputError(
            "another network link has the cluster's name",
            [Problem(state.link, "was not created by this cluster", "choose another --name")],
        )
    # The link of a stopped node disappears a moment later, so its existence alone does not count.
    if not _has_peer(pid):
        remove(state.link)
        state.record("link", state.link)
        _run("ip", "link", "add", state.link, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    _run("ip", "addr", "replace", f"{state.host_address}/30", "dev", state.link)
    _run("ip", "link", "set", state.link, "up")
    enter(pid, ["ip", "addr", "replace", f"{state.node_address}/30", "dev", "eth0"])
    enter(pid, ["ip", "link", "set", "eth0", "up"])
    enter(pid, ["ip", "route", "replace", "default", "via", str(state.host_address)])
    _run("ip", "route", "replace", str(state.network), "via", str(state.node_address), "dev", state.link)


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


def _has_peer(pid: int) -> bool:
    return any(
        entry.get("ifname") == "eth0"
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
