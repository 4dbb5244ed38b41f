"""The state folder of a cluster, and the list of what was made outside of it.

Everything that the machine would still have after the folder is gone (a link, a control group, the node's
processes) is
written down here before it is made, so that `down` finds it also when `up` was killed in between. Easy to get
wrong: what
is not in the list was not made by us, and is left alone.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from trainfleet.errors import InputError, Problem
from trainfleet.files import write_whole

DEFAULT_NAME = "local"
HIDDEN = ("/run", "/var/run", "/var/lib", "/var/log", "/proc", "/sys")
_FILE = "state.json"


@dataclass(frozen=True)
class Made:
    """A thing outside the state folder: `kind` is link, cgroup or node (processes whose command line holds
    the token).
    """

    kind: str
    name: str


@dataclass
class State:
    """One cluster: where it lies, its network, and what it made."""

    name: str
    folder: Path
    network: IPv4Network
    token: str
    made: list[Made] = field(default_factory=list)

    def file(self, *parts: str) -> Path:
        return self.folder.joinpath(*parts)

    @property
    def kubeconfig(self) -> Path:
        return self.file("kubeconfig")

    @property
    def context(self) -> str:
        return f"trainfleet-{self.name}"

    @property
    def node(self) -> str:
        """The name of the one real node."""
        return f"{self.context}-node"

    @property
    def link(self) -> str:
        """The link to the node, on this side."""
        return f"tf-{self.name}"

    @property
    def cgroup(self) -> str:
        return f"trainfleet-{self.name}"

    @property
    def outside(self) -> IPv4Address:
        """This machine's address as the node and its pods see it."""
        return self.network[1]

    @property
    def inside(self) -> IPv4Address:
        """The node's address, at which the API server answers."""
        return self.network[2]

    @property
    def services(self) -> IPv4Network:
        return list(self.network.subnets(2))[1]

    @property
    def pods(self) -> IPv4Network:
        return list(self.network.subnets(1))[1]

    @property
    def dns(self) -> IPv4Address:
        return self.services[10]

    def note(self, kind: str, name: str) -> None:
        """Write down what is about to be made."""
        if (made := Made(kind, name)) not in self.made:
            self.made.append(made)
            self.save()

    def save(self) -> None:
        document = {
            "name": self.name,
            "network": str(self.network),
            "token": self.token,
            "made": [{"kind": made.kind, "name": made.name} for made in self.made],
        }
        write_whole(self.file(_FILE), json.dumps(document, indent=1) + "\n", 0o600)

    def remove(self) -> None:
        """Remove the folder, the list of what was made last: an interrupted `down` can be taken up again."""
        for entry in list(self.folder.iterdir()) if self.folder.is_dir() else []:
            if entry.name != _FILE:
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)
        for parent in (self.folder.parent, self.folder.parent.parent):
            try:
                parent.rmdir()
            except OSError:
                break


def folder_of(name: str) -> Path:
    """Where a cluster's state lies.

    Raises:
        InputError: the name cannot be one.
    """
    from platformdirs import user_state_path

    if not re.fullmatch(r"[a-z][a-z0-9]{0,11}", name):
        raise InputError(
            "not a name for a cluster",
            [Problem("--name", f"{name!r} is not up to 12 small letters and digits", DEFAULT_NAME)],
        )
    folder = user_state_path("trainfleet") / "clusters" / name
    if place := hidden_by(folder):
        raise InputError(
            "the cluster's state cannot lie there",
            [
                Problem(
                    str(folder), f"the node has a {place} of its own", "set XDG_STATE_HOME to another folder"
                )
            ],
        )
    return folder


def hidden_by(path: Path) -> str | None:
    """The folder that the node has of its own, where a path lies in one: it is not there for what runs in the
    node.
    """
    return next((place for place in HIDDEN if Path(place) in path.resolve().parents), None)


def names() -> list[str]:
    """The clusters that have a state here."""
    folder = folder_of(DEFAULT_NAME).parent
    return sorted(path.parent.name for path in folder.glob(f"*/{_FILE}")) if folder.is_dir() else []


def load(name: str) -> State | None:
    """The state of a cluster, or None when there is none.

    Raises:
        InputError: the file is not one of ours.
    """
    folder = folder_of(name)
    try:
        document = json.loads((folder / _FILE).read_text())
        made = [Made(entry["kind"], entry["name"]) for entry in document["made"]]
        return State(name, folder, IPv4Network(document["network"]), document["token"], made)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            "the cluster's state cannot be read",
            [Problem(str(folder / _FILE), str(error), f"look at {folder}, then remove it")],
        ) from error


def create(name: str, network: IPv4Network) -> State:
    """Make the folder of a new cluster, for its owner's eyes only: it holds keys."""
    state = State(name, folder_of(name), network, secrets.token_hex(8))
    state.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.chmod(state.folder, 0o700)
    state.save()
    return state
