"""The options of `cluster up` for its nodes: their number, and the labels, taints and devices of each.

A text applies to all nodes, or to the one that it begins with: `node2:KEY=VALUE`. The settings are kept in
the cluster's state, so an interrupted or repeated `up` does not need the options again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainfleet.errors import InputError, Problem
from trainfleet.local_cluster.state import MOST_NODES, Settings

NODE = r"(?:(?P<node>node[0-9]*):)?"
KEY = r"(?P<key>(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?)"
VALUE = r"(?P<value>(?:[A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?)?)"
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
STAND_INS = ("nvidia.com/gpu", "vpc.amazonaws.com/efa", "rdma/ib")
"""The resources that the device plugin offers stand-ins for."""
MOST_DEVICES = 64
_LABEL = re.compile(rf"{NODE}{KEY}={VALUE}")
_TAINT = re.compile(rf"{NODE}{KEY}(?:={VALUE})?:(?P<effect>{'|'.join(EFFECTS)})")
_DEVICES = re.compile(rf"{NODE}(?P<rows>[^:]+)")
EXAMPLES = {
    "--node-label": "node2:disk=fast",
    "--node-taint": "node2:nvidia.com/gpu=present:NoSchedule",
    "--devices": "node2:nvidia.com/gpu=8,vpc.amazonaws.com/efa=4",
}


@dataclass(frozen=True)
class NodeOptions:
    """The options of one `up`: `number` is None where the option was not given."""

    number: int | None = None
    labels: Sequence[str] = field(default=())
    taints: Sequence[str] = field(default=())
    devices: Sequence[str] = field(default=())

    def merged(self, existing: Sequence[Settings]) -> list[Settings]:
        """The settings of each node, with those of earlier calls.

        Raises:
            InputError: with every mistake: the number is out of range or smaller than before, a text has not
                the form of its option, or names a node that does not exist.
        """
        problems = list(self._number_problems(len(existing)))
        count = min(max(self.number or 0, len(existing)), MOST_NODES)
        settings = [
            Settings(dict(each.labels), list(each.taints), dict(each.devices))
            for each in (existing[n] if n < len(existing) else Settings() for n in range(count))
        ]
        for option, texts in (
            ("--node-label", self.labels),
            ("--node-taint", self.taints),
            ("--devices", self.devices),
        ):
            for text in texts:
                problems += _apply(option, text, settings)
        if problems:
            raise InputError("not valid options for the nodes", problems)
        return settings

    def _number_problems(self, existing: int) -> list[Problem]:
        if self.number is None or existing <= self.number <= MOST_NODES:
            return []
        if self.number > MOST_NODES:
            return [Problem("--nodes", f"{self.number} are more than {MOST_NODES}", f"at most {MOST_NODES}")]
        what = f"the cluster has {existing} nodes, and nodes are not removed one by one"
        return [Problem("--nodes", what, f"{existing} or more, or `trainfleet cluster down` first")]


def _apply(option: str, text: str, settings: Sequence[Settings]) -> list[Problem]:
    """Add a text to the settings; returns what is wrong with it."""
    found = {"--node-label": _LABEL, "--node-taint": _TAINT, "--devices": _DEVICES}[option].fullmatch(text)
    if found is None:
        return [Problem(option, f"{text!r} does not have the form of the example", EXAMPLES[option])]
    names = ["node", *(f"node{number}" for number in range(2, len(settings) + 1))]
    if found["node"] and found["node"] not in names:
        what = f"{text!r} names {found['node']}, which the cluster does not have"
        return [Problem(option, what, f"one of {', '.join(names)}, or a larger --nodes")]
    chosen = [each for name, each in zip(names, settings, strict=True) if found["node"] in (None, name)]
    if option == "--devices":
        devices, problems = _devices(found["rows"])
        for each in chosen:
            each.devices |= devices
        return problems
    for each in chosen:
        if option == "--node-label":
            each.labels[found["key"]] = found["value"]
        else:
            taint = text.removeprefix(f"{found['node']}:")
            each.taints = [old for old in each.taints if _identity(old) != _identity(taint)] + [taint]
    return []


def _identity(taint: str) -> tuple[str, str]:
    """A node has one taint per key and effect."""
    pair, _, effect = taint.rpartition(":")
    return pair.partition("=")[0], effect


def _devices(text: str) -> tuple[dict[str, int], list[Problem]]:
    """The number of devices by resource in `RESOURCE=NUMBER[,...]`, and what is wrong with it."""
    devices: dict[str, int] = {}
    problems = []
    for row in text.split(","):
        resource, _, number = row.partition("=")
        if resource not in STAND_INS:
            what = f"there is no stand-in for {resource!r}"
            problems.append(Problem("--devices", what, f"one of {', '.join(STAND_INS)}"))
        elif not re.fullmatch(r"\d{1,3}", number) or int(number) > MOST_DEVICES:
            what = f"{row!r} has no number from 0 to {MOST_DEVICES}"
            problems.append(Problem("--devices", what, EXAMPLES["--devices"]))
        else:
            devices[resource] = int(number)
    return devices, problems
