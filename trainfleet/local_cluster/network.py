"""The node's network: one link to this machine, and a range of addresses that nothing here uses.

The range holds the link, the services and the pods; one route on this machine leads there. Nothing listens on
a port of this
machine, no firewall rule is made and no kernel setting changed: both are the node's own. Easy to get wrong: a
link goes away by
itself a moment after the node has ended, so one that is on its way out must not be taken for ours.
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
    """A range that no route and no address of this machine touches, and none that is taken.

    Raises:
        InputError: each candidate is in use.
    """
    used = [*_used(), *taken]
    for candidate in CANDIDATES:
        if not any(candidate.overlaps(network) for network in used):
            return candidate
    raise InputError(
        "no addresses are free for the cluster",
        [Problem("ip route", f"uses {', '.join(map(str, CANDIDATES))}", "free one of them")],
    )


def exists(link: str) -> bool:
    return any(entry.get("ifname") == link for entry in _ip("link", "show"))


def connect(state: State, pid: int) -> None:
    """Make the link between this machine and the node, or mend it.

    Raises:
        InputError: a link of that name is here and is not ours.
    """
    if exists(state.link) and not any(made.kind == "link" for made in state.made):
        raise InputError(
            "a link has the cluster's name",
            [Problem(state.link, "was not made by this cluster", "choose another --name")],
        )
    if not _has_peer(pid):
        remove(state.link)
        state.note("link", state.link)
        _run("ip", "link", "add", state.link, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    _run("ip", "addr", "replace", f"{state.outside}/30", "dev", state.link)
    _run("ip", "link", "set", state.link, "up")
    enter(pid, ["ip", "addr", "replace", f"{state.inside}/30", "dev", "eth0"])
    enter(pid, ["ip", "link", "set", "eth0", "up"])
    enter(pid, ["ip", "route", "replace", "default", "via", str(state.outside)])
    _run("ip", "route", "replace", str(state.network), "via", str(state.inside), "dev", state.link)


def remove(link: str) -> None:
    """Remove a link, which takes its address and its route along; waits until it is gone."""
    deadline = time.monotonic() + LIMIT_S
    while exists(link):
        subprocess.run(
            ["ip", "link", "delete", link], capture_output=True, check=False
        )  # may go by itself just now
        if time.monotonic() > deadline:
            raise TrainfleetError(
                "a link cannot be removed", [Problem(link, "is still there", f"ip link delete {link}")]
            )
        time.sleep(0.05)


def _has_peer(pid: int) -> bool:
    return any(
        entry.get("ifname") == "eth0"
        for entry in json.loads(enter(pid, ["ip", "-json", "link", "show"]).stdout)
    )


def _used() -> list[IPv4Network]:
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
            "the node's network cannot be made",
            [Problem(" ".join(command), done.stderr.strip() or f"exit code {done.returncode}")],
        )
    return done.stdout
