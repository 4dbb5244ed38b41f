"""`trainfleet runs dashboard`: Ray's dashboard of a run, on a port of this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from trainfleet import completion
from trainfleet.console import EXIT_CODES
from trainfleet.training.cli.options import AliasedCommand, Context, Json, Namespace, Stack

dashboard = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@dashboard.command(cls=AliasedCommand, epilog=EXIT_CODES)
def dashboard_command(  # noqa: PLR0917 - Typer passes options by name
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="A run, or a long-lived Ray cluster.",
            show_default=False,
            autocompletion=completion.run_names,
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option("--port", metavar="PORT", min=0, max=65535, help="The local port; 0 picks a free one."),
    ] = 8265,
    token: Annotated[
        bool, typer.Option("--token", help="Print the token that the dashboard asks for.")
    ] = False,
    stack: Stack = None,
    context: Context = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Forward Ray's dashboard of a run to a port of this machine, until Ctrl-C. Only 127.0.0.1 is opened.

    `trainfleet dashboard` is the same command.

    [bold]Examples[/]

    trainfleet runs dashboard night-1

    trainfleet runs dashboard shared-ray --port 0 --token --stack outputs.json
    """
    import signal
    import time

    from trainfleet.console import err, out, print_json
    from trainfleet.training.launch.find_run import dashboard_of, required_token
    from trainfleet.training.launch.remote.where import Where

    def report(text: str) -> None:
        err().print(text, markup=False)

    # SIGTERM ends it as Ctrl-C does. Without that, the client's certificate and key stay in the temporary
    # folder, where the Kubernetes client writes them and removes them at a normal exit only.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with dashboard_of(run, Where(stack, context, namespace), port, report) as found:
        secret = {"token": required_token(found)} if token else {}
        if as_json:
            print_json({"address": found.address, "ray_cluster": found.ray_cluster, **secret})
        else:
            name = found.ray_cluster
            out().print(f"{name}: {found.address} (Ctrl-C ends it)", markup=False, soft_wrap=True)
            if token:
                out().print(f"token: {secret['token']}", markup=False, soft_wrap=True)
        while True:  # one wait without an end would miss a signal that arrives just before it
            time.sleep(1)
