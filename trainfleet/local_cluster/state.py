"""The state folder of a cluster, and the record of what the cluster created outside of it.

Whatever survives the removal of the folder (a network link, a control group, the node's processes) is
recorded here before it is created, so that `down` finds it even when `up` was killed. What is not recorded
is never removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
from dataclasses import asdict, dataclass, field
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from trainfleet.errors import InputError, Problem
from trainfleet.files import write_whole

DEFAULT_NAME = "local"
MOST_NODES = 8
"""The address range of pods is divided among this many nodes."""
SHADOWED = ("/run", "/var/run", "/var/lib", "/var/log", "/proc", "/sys")
"""Folders that the node mounts over: this machine's contents are not visible in the node."""
_FILE = "state.json"


@dataclass(frozen=True)
class Resource:
    """A resource outside the state folder. `kind` is link, cgroup or node; the name of a node is the token in
    the command line of its processes.
    """

    kind: str
    name: str


@dataclass
class Settings:
    """The labels, taints and stand-in devices of one node, from the options of `up`."""

    labels: dict[str, str] = field(default_factory=dict)
    taints: list[str] = field(default_factory=list)
    """As in kubectl: `KEY[=VALUE]:EFFECT`."""
    devices: dict[str, int] = field(default_factory=dict)
    """The number of devices by resource."""


@dataclass
class State:
    """One cluster: its folder, its network, its nodes, and the resources that it created."""

    name: str
    folder: Path
    network: IPv4Network
    token: str
    resources: list[Resource] = field(default_factory=list)
    settings: list[Settings] = field(default_factory=lambda: [Settings()])
    """One entry per real node."""
    network_policies: bool = True
    """Whether network policies are enforced."""
    queue: bool = False
    """Whether Kueue runs. It stays until the cluster is removed: its definitions contain the queues."""

    def file(self, *parts: str) -> Path:
        return self.folder.joinpath(*parts)

    @property
    def kubeconfig(self) -> Path:
        return self.file("kubeconfig")

    @property
    def context(self) -> str:
        return f"trainfleet-{self.name}"

    @property
    def nodes(self) -> list[Node]:
        """The real nodes; the first runs the control plane."""
        return [Node(self, number) for number in range(1, len(self.settings) + 1)]

    @property
    def control_plane(self) -> Node:
        return Node(self, 1)

    @property
    def link(self) -> str:
        """The machine's end of the link to the cluster."""
        return f"tf-{self.name}"

    @property
    def host_address(self) -> IPv4Address:
        """This machine's address as nodes and pods see it."""
        return self.control_plane.gateway

    @property
    def node_address(self) -> IPv4Address:
        """The address of the first node, at which the API server answers."""
        return self.control_plane.address

    @property
    def registries(self) -> Path:
        """A folder per image registry, HOST:PORT, with its CA certificate in ca.crt (containerd's hosts.md).
        The nodes read it at each pull.
        """
        return self.file("config", "registries")

    @property
    def services(self) -> IPv4Network:
        return list(self.network.subnets(2))[1]

    @property
    def pods(self) -> IPv4Network:
        return list(self.network.subnets(1))[1]

    @property
    def dns(self) -> IPv4Address:
        return self.services[10]

    def record(self, kind: str, name: str) -> None:
        """Record a resource that is about to be created."""
        if (resource := Resource(kind, name)) not in self.resources:
            self.resources.append(resource)
            self.save()

    def save(self) -> None:
        document = {
            "name": self.name,
            "network": str(self.network),
            "token": self.token,
            "made": [{"kind": resource.kind, "name": resource.name} for resource in self.resources],
            "nodes": [asdict(settings) for settings in self.settings],
            "network_policies": self.network_policies,
            "queue": self.queue,
        }
        write_whole(self.file(_FILE), json.dumps(document, indent=1) + "\n", 0o600)

    def remove(self) -> None:
        """Remove the folder, and its state file last: an interrupted `down` can be run again."""
        for entry in list(self.folder.iterdir()) if self.folder.is_dir() else []:
            if entry.name != _FILE:
                _remove_folder(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)
        for parent in (self.folder.parent, self.folder.parent.parent):
            try:
                parent.rmdir()
            except OSError:
                break


@dataclass(frozen=True)
class Node:
    """A real node. The first one runs the control plane and routes the packets of the others, and its folder
    is the cluster's.
    """

    cluster: State
    number: int
    """From 1."""

    @property
    def short(self) -> str:
        """The name without the cluster's: `node`, `node2`, `node3`."""
        return "node" if self.number == 1 else f"node{self.number}"

    @property
    def name(self) -> str:
        return f"{self.cluster.context}-{self.short}"

    @property
    def folder(self) -> Path:
        return self.cluster.folder if self.number == 1 else self.cluster.file("nodes", self.short)

    def file(self, *parts: str) -> Path:
        return self.folder.joinpath(*parts)

    @property
    def token(self) -> str:
        """The argument by which the node's processes are found."""
        return self.cluster.token if self.number == 1 else f"{self.cluster.token}-{self.number}"

    @property
    def cgroup(self) -> str:
        name = f"trainfleet-{self.cluster.name}"
        return name if self.number == 1 else f"{name}-{self.number}"

    @property
    def gateway(self) -> IPv4Address:
        """The other end of the node's link: this machine for the first node, the first node for others."""
        return self.cluster.network[4 * self.number - 3]

    @property
    def address(self) -> IPv4Address:
        return self.cluster.network[4 * self.number - 2]

    @property
    def pods(self) -> IPv4Network:
        """The addresses of the node's pods."""
        return list(self.cluster.pods.subnets(MOST_NODES.bit_length() - 1))[self.number - 1]

    @property
    def settings(self) -> Settings:
        return self.cluster.settings[self.number - 1]


def folder_of(name: str) -> Path:
    """The state folder of a cluster, whether it exists or not.

    Raises:
        InputError: the name is not valid, or the node could not see the folder.
    """
    from platformdirs import user_state_path

    if not re.fullmatch(r"[a-z][a-z0-9]{0,11}", name):
        raise InputError(
            "not a valid name for a cluster",
            [Problem("--name", f"{name!r} is not 1 to 12 lowercase letters and digits", DEFAULT_NAME)],
        )
    folder = user_state_path("trainfleet") / "clusters" / name
    if mount := shadowed_by(folder):
        raise InputError(
            "the cluster's state cannot be kept in this folder",
            [Problem(str(folder), f"the node has its own {mount}", "set XDG_STATE_HOME to another folder")],
        )
    return folder


def up_command(name: str, *options: str) -> str:
    """Return the command that starts a cluster, for the hint of a message."""
    named = ("--name", name) if name != DEFAULT_NAME else ()
    return " ".join(("trainfleet cluster up", *options, *named))


def shadowed_by(path: Path) -> str | None:
    """The folder over `path` that the node mounts over, which hides `path` from the node; None if visible."""
    return next((folder for folder in SHADOWED if Path(folder) in path.resolve().parents), None)


def names() -> list[str]:
    """The clusters whose state exists on this machine."""
    folder = folder_of(DEFAULT_NAME).parent
    return sorted(path.parent.name for path in folder.glob(f"*/{_FILE}")) if folder.is_dir() else []


def load(name: str) -> State | None:
    """The state of a cluster, or None when it does not exist.

    Raises:
        InputError: the file is not a valid state file.
    """
    folder = folder_of(name)
    try:
        document = json.loads((folder / _FILE).read_text())
        resources = [Resource(entry["kind"], entry["name"]) for entry in document["made"]]
        network, token = IPv4Network(document["network"]), document["token"]
        settings = [Settings(**entry) for entry in document.get("nodes", [{}])]
        enforced = bool(document.get("network_policies", True))
        queue = bool(document.get("queue", False))
        return State(name, folder, network, token, resources, settings, enforced, queue)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            "the cluster's state cannot be read",
            [Problem(str(folder / _FILE), str(error), f"inspect {folder}, then remove it")],
        ) from error


def create(name: str, network: IPv4Network) -> State:
    """Create the folder of a new cluster. Only its owner can read it, because it holds keys."""
    state = State(name, folder_of(name), network, secrets.token_hex(8))
    state.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.chmod(state.folder, 0o700)
    state.save()
    return state


def _remove_folder(folder: Path) -> None:
    """Remove a folder from which something else may still remove files, such as a container's last ones."""
    while folder.is_dir():
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)
