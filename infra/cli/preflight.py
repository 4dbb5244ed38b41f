"""`trainfleet preflight`: what must be true of the account and the network before the first `pulumi up`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from trainfleet.infra.preflight_requests import Answered

preflight = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
WIDTH = 100
"""Width of the table where stdout is not a terminal."""
COLOURS = {"ok": "green", "warning": "yellow", "problem": "red", "open": "dim", "not checked": "dim"}

_HELP = """Check what must be true of the account, the network and the caller before the first `pulumi up`.

The checks are computed from the spec, and answered by read-only requests with your credentials: those of the
AWS CLI, Google's application default credentials, or those of the Azure CLI. Nothing is written. A check
whose request has no answer, for example without the permission, is `not checked`, with the reason. This
machine is taken as the place of --from.

With --offline no request is made: each open check names the request that answers it.

The exit code is 1 if a result is a problem, and 3 without credentials.

[bold]Examples[/]

  trainfleet preflight aws-prod

  trainfleet preflight gcp-prod --offline --from ci --json

  trainfleet preflight aws-prod --skip names
"""


@preflight.command("preflight", help=_HELP)
def main(
    stack: Annotated[str, typer.Argument(metavar="STACK", help="A stack of this project.")],
    offline: Annotated[bool, typer.Option("--offline", help="List the checks without a request.")] = False,
    place: Annotated[
        str, typer.Option("--from", metavar="PLACE", help="Where you apply from: laptop, ci or runner.")
    ] = "laptop",
    skip: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC",
            help="Leave out this topic; repeatable: `names` for a platform that exists, `caller` with an"
            " identity that does not apply.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout instead of the table.")
    ] = False,
) -> None:
    """See _HELP."""
    from trainfleet.console import print_json
    from trainfleet.errors import InputError, Problem
    from trainfleet.infra.preflight import PLACES, TOPICS, decided_problems, preflight_checks
    from trainfleet.infra.preflight_requests import Answered, answer_checks, connect
    from trainfleet.infra.spec.load import load_stack
    from trainfleet.infra.spec.stack_file import project_root, read_stack

    if place not in PLACES:
        raise InputError("unknown place", [Problem("--from", f"{place!r} is not known", ", ".join(PLACES))])
    if unknown := [each for each in skip or () if each not in TOPICS]:
        problems = [Problem("--skip", f"{each!r} is not known", ", ".join(TOPICS)) for each in unknown]
        raise InputError("unknown topic", problems)
    spec = load_stack(stack)
    checks = tuple(each for each in preflight_checks(spec) if each.topic not in (skip or ()))
    rows = [Answered(each) for each in checks]
    asked = ""
    if checks and not offline:
        account = connect(spec, read_stack(stack, project_root()).document.get("config") or {})
        rows = answer_checks(spec, checks, place, account)
        asked = str(spec.account or spec.cloud)
    if as_json:
        print_json({"stack": stack, "from": place, "checks": [_as_row(each) for each in rows]})
    else:
        _print(stack, rows, asked)
    if decided_problems(tuple(each.check for each in rows), place):
        raise typer.Exit(1)


def _as_row(row: Answered) -> dict[str, Any]:
    check = row.check
    return {
        "topic": check.topic,
        "needs": check.needs,
        "status": check.status,
        "request": check.request or None,
        "found": row.found or None,
    }


def _print(stack: str, rows: list[Answered], account: str) -> None:
    """Print the table; `account` is empty if no request was made."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from trainfleet.console import out

    console = out()
    if not console.is_terminal:
        console.width = WIDTH
    if not rows:
        console.print(f"{stack} uses an existing cluster: nothing is created in an account")
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("Result", "Topic"):
        table.add_column(title, no_wrap=True)
    table.add_column("Needs")
    table.add_column("Found" if account else "Answered by")
    for row in rows:
        check, colour = row.check, COLOURS[row.check.status]
        last = row.found if account and row.found else check.request or "the spec"
        table.add_row(f"[{colour}]{check.status}[/]", check.topic, escape(check.needs), escape(last))
    console.print(table)
    counted = Counter(str(each.check.status) for each in rows)
    if account:
        console.print(
            f"{stack}: " + ", ".join(f"{counted[each]} {each}" for each in COLOURS if counted[each])
        )
    else:
        console.print(
            f"{len(rows)} checks of {stack}, {counted['open']} open: they need requests to the cloud"
        )
