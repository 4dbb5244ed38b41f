"""The options, checks and messages that the `cluster` commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from trainfleet.local_cluster.state import Node, State

Name = Annotated[
    str, typer.Option("--name", help="The name of the cluster; its context is `trainfleet-NAME`.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


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


def show_progress(text: str) -> None:
    from trainfleet.console import err

    err().print(text, markup=False, soft_wrap=True)
