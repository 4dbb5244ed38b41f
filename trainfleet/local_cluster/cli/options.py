"""The options, checks and messages that the `cluster` commands share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from trainfleet.local_cluster.state import Node, State

Name = Annotated[
    str, typer.Option("--name", help="The name of the cluster; its context is `trainfleet-NAME`.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]

SYSTEM_FOLDERS = ("/usr/sbin", "/sbin")


def add_system_folders() -> None:
    """Add the folders of nft, iptables and debootstrap to PATH. Debian's `su` without `-` leaves them out."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    absent = [folder for folder in SYSTEM_FOLDERS if folder not in folders]
    os.environ["PATH"] = os.pathsep.join([*folders, *absent])


def load_state(name: str) -> State:
    from trainfleet.errors import InputError, Problem
    from trainfleet.local_cluster import state

    found = state.load(name)
    if found is None:
        problem = Problem("--name", f"there is no cluster {name}", state.up_command(name))
        raise InputError("no such cluster", [problem])
    return found


def running_nodes(state: State) -> list[tuple[Node, int]]:
    """The nodes that run, each with its first process; the first node is one of them."""
    from trainfleet.errors import InputError, Problem
    from trainfleet.local_cluster import node
    from trainfleet.local_cluster.state import up_command

    found = [(each, pid) for each in state.nodes if (pid := node.pid_of(each)) is not None]
    if not found or found[0][0].number != 1:
        raise InputError(
            "the cluster does not run",
            [Problem("--name", f"{state.name} is stopped", up_command(state.name))],
        )
    return found


@contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """Show the progress of a block: on a terminal as one line that is updated, else a line per message.

    Messages `NAME: ...` of parallel builds share the line. A message without a name replaces all of them.
    """
    from rich.text import Text

    from trainfleet.console import err

    console = err()
    if not console.is_terminal:
        yield lambda text: console.print(text, markup=False, soft_wrap=True)
        return
    latest: dict[str, str] = {}

    def update(text: str) -> None:
        name, named, _ = text.partition(": ")
        if not named:
            latest.clear()
        latest[name if named else ""] = text
        line = Text("; ".join(latest.values()))
        line.truncate(console.width - 3, overflow="ellipsis")  # a longer one would wrap
        status.update(line)

    with console.status("") as status:
        yield update
