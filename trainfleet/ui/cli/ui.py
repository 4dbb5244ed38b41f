"""`trainfleet ui`: a local, read-only web page of stacks, clusters and runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainfleet import completion
from trainfleet.console import EXIT_CODES
from trainfleet.training.cli.options import AliasedCommand, Json

ui = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@ui.command(cls=AliasedCommand, epilog=EXIT_CODES)
def ui_command(  # noqa: PLR0917 - Typer passes options by name
    runs: Annotated[
        list[str] | None,
        typer.Option(metavar="DIR|URL", help="The runs below this place; repeatable. By default runs/."),
    ] = None,
    stack: Annotated[
        list[str] | None,
        typer.Option(
            "--stack",
            metavar="OUTPUTS.json|STACK",
            help="Show the cluster of this platform: pools, queues and runs. May be repeated.",
            autocompletion=completion.stacks,
        ),
    ] = None,
    diffs: Annotated[
        Path | None,
        typer.Option(
            "--diffs",
            metavar="DIR",
            help="Show the newest diff and drift of each stack, from the files that `trainfleet diff --json` "
            "and `trainfleet drift --json` wrote there. By default the last of this project on this machine.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="PORT",
            min=0,
            max=65535,
            help="The local port; 0 picks a free one. By default 8970, or the next that is free.",
            show_default=False,
        ),
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser, on a terminal.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Show stacks, clusters and runs on a local web page, until Ctrl-C. It changes nothing.

    Only programs of this machine reach the page, with the token in the printed address.

    [bold]Examples[/]

    trainfleet ui

    trainfleet ui --runs runs --runs s3://my-bucket/runs

    trainfleet ui --stack outputs.json --diffs reviews

    trainfleet ui --port 9000 --no-browser --json
    """
    # First: jinja2, which the page needs too, is part of other extras, and would be named by those.
    import starlette  # noqa: F401

    from trainfleet.ui.start import Shown, start

    start(Shown(runs or [], stack or [], diffs), port, browser=browser, as_json=as_json)
