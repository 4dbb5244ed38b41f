"""`trainfleet cluster node`: fault injection on the nodes of a cluster with several."""

from __future__ import annotations

from typing import Annotated

import typer

from trainfleet.console import EXIT_CODES
from trainfleet.local_cluster.cli.options import Name, load_state, progress_line

node = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help=f"""Stop, start or disconnect one node of a cluster with several.

The first node runs the control plane and routes for the others, so it is refused.

[bold]Examples[/]

    trainfleet cluster up --nodes 3

    trainfleet cluster node stop node2

    trainfleet cluster node start node2

    trainfleet cluster node cut node3 --seconds 60

{EXIT_CODES}""",
)

Which = Annotated[str, typer.Argument(metavar="NODE", help="`node2`, or its name in Kubernetes.")]


@node.command()
def stop(which: Which, name: Name = "local") -> None:
    """Kill the node with its pods at once, like a machine that loses its power. It stays down.

    The control plane notices after 50 seconds and removes its pods 15 seconds later.

    [bold]Examples[/]

      trainfleet cluster node stop node2
    """
    from trainfleet.local_cluster import life_cycle

    found = life_cycle.find(load_state(name), which)
    with progress_line() as progress:
        life_cycle.stop(found, progress)
    typer.echo(f"{found.name} is stopped")


@node.command()
def start(which: Which, name: Name = "local") -> None:
    """Start a stopped node, or connect one that is cut off, and wait until it accepts pods.

    [bold]Examples[/]

      trainfleet cluster node start node2
    """
    from trainfleet.local_cluster import life_cycle

    found = life_cycle.find(load_state(name), which)
    with progress_line() as progress:
        life_cycle.start(found, progress)
    typer.echo(f"{found.name} is ready")


@node.command()
def cut(
    which: Which,
    seconds: Annotated[
        int, typer.Option("--seconds", min=1, max=3600, help="The kernel connects the node again after this.")
    ] = 60,
    name: Name = "local",
) -> None:
    """Drop all packets from and to the node for some seconds; returns at once.

    The node and its pods keep running.

    [bold]Examples[/]

      trainfleet cluster node cut node3 --seconds 60
    """
    from trainfleet.local_cluster import life_cycle

    found = life_cycle.find(load_state(name), which)
    with progress_line() as progress:
        life_cycle.cut(found, seconds, progress)
    typer.echo(f"{found.name} is cut off for {seconds} s")
