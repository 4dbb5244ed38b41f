"""`trainfleet preflight`: what must be true of the account and the network before the first `pulumi up`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from trainfleet.infra.preflight import PreflightCheck

preflight = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
WIDTH = 100
"""Width of the table where stdout is not a terminal."""
COLOURS = {"ok": "green", "warning": "yellow", "problem": "red", "open": "dim"}

_HELP = """List what must be true of the account, the network and the caller before the first `pulumi up`.

The checks are computed from the spec. What the spec decides has a result: from where the API server can be
reached, and whether the Kubernetes version is supported. Any other check is open, and names the read-only
request of the cloud that answers it. The command makes no request. The exit code is 1 if a result is a
problem.

[bold]Examples[/]

  trainfleet preflight aws-prod --offline

  trainfleet preflight gcp-prod --offline --from ci --json
"""


@preflight.command("preflight", help=_HELP)
def main(
    stack: Annotated[str, typer.Argument(metavar="STACK", help="A stack of this project.")],
    offline: Annotated[
        bool, typer.Option("--offline", help="List the checks without a request; required today.")
    ] = False,
    place: Annotated[
        str, typer.Option("--from", metavar="PLACE", help="Where you apply from: laptop, ci or runner.")
    ] = "laptop",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout instead of the table.")
    ] = False,
) -> None:
    """See _HELP."""
    from trainfleet.console import print_json
    from trainfleet.errors import InputError, Problem
    from trainfleet.infra.preflight import PLACES, decided_problems, preflight_checks
    from trainfleet.infra.spec.load import load_stack

    if place not in PLACES:
        raise InputError("unknown place", [Problem("--from", f"{place!r} is not known", ", ".join(PLACES))])
    if not offline:
        problem = Problem("--offline", "is missing", f"trainfleet preflight {stack} --offline")
        raise InputError("requests with your credentials are not part of this version", [problem])
    checks = preflight_checks(load_stack(stack))
    problems = decided_problems(checks, place)
    if as_json:
        print_json({"stack": stack, "from": place, "checks": [_as_row(each) for each in checks]})
    else:
        _print(stack, checks)
    if problems:
        raise typer.Exit(1)


def _as_row(check: PreflightCheck) -> dict[str, Any]:
    return {
        "topic": check.topic,
        "needs": check.needs,
        "status": check.status,
        "request": check.request or None,
    }


def _print(stack: str, checks: tuple[PreflightCheck, ...]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from trainfleet.console import out

    console = out()
    if not console.is_terminal:
        console.width = WIDTH
    if not checks:
        console.print(f"{stack} uses an existing cluster: nothing is created in an account")
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("Result", "Topic"):
        table.add_column(title, no_wrap=True)
    table.add_column("Needs")
    table.add_column("Answered by")
    for each in checks:
        colour = COLOURS[each.status]
        table.add_row(f"[{colour}]{each.status}[/]", each.topic, each.needs, each.request or "the spec")
    console.print(table)
    still = sum(each.status == "open" for each in checks)
    console.print(f"{len(checks)} checks of {stack}, {still} open: they need requests to the cloud")
