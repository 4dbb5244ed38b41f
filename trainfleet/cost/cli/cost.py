"""`trainfleet cost`: what a stack costs by its spec, by its plan, and on the bill."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from trainfleet.console import EXIT_CODES

if TYPE_CHECKING:
    from trainfleet.cost.report import BillReport, CostReport
    from trainfleet.infra.catalog.cost import Bill
    from trainfleet.infra.spec.schema import PlatformSpec

_HELP = (
    f"""Show what a stack costs: the spec's estimate, the plan's, and the bill as a FOCUS export.

The bill is added up by service, item, pool, owner and run, by the tags of the platform, and compared """
    """\
with the estimate. With the records of runs, idle GPU hours and the cost of each run are shown.

[bold]Examples[/]

  trainfleet cost aws-prod

  trainfleet cost aws-prod --plan --usage usage.toml

  trainfleet cost aws-prod --bill focus-2026-11.csv.gz --storage s3://my-bucket/runs

  trainfleet cost aws-prod --bill part-1.parquet --bill part-2.parquet --month 2026-10 --markdown cost.md

"""
    f"{EXIT_CODES}\n"
)

cost = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


class _Request(NamedTuple):
    stack: str
    usage: Path | None
    plan: bool
    state: Path | None
    events: Path | None
    bills: list[Path]
    storage: list[str]
    month: str
    basis: str


@cost.command(help=_HELP)
def main(  # noqa: PLR0917 - one per flag
    stack: Annotated[str, typer.Argument(metavar="STACK", help="A stack by name, or a stack file.")],
    usage: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Price traffic, logs and stored data of the plan as this TOML file assumes."
        ),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Preview the stack on a simulated cloud, and price its resources.")
    ] = False,
    state: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Price what is deployed: the file of `pulumi stack export`."),
    ] = None,
    events: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Price a real preview: the file of `pulumi preview --event-log`."),
    ] = None,
    bill: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A FOCUS 1.x export: CSV, gzip or Parquet. May be repeated."),
    ] = None,
    storage: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIR|URL", help="With --bill: the runs below this folder or URL. May be repeated."
        ),
    ] = None,
    month: Annotated[
        str,
        typer.Option(
            metavar="YYYY-MM",
            help="The month of the bill (UTC); the last one by default.",
            show_default=False,
        ),
    ] = "",
    basis: Annotated[
        str, typer.Option("--cost", metavar="effective|billed", help="Amortized, or as invoiced.")
    ] = "effective",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the costs as Markdown.")
    ] = None,
) -> None:
    """See _HELP."""
    from trainfleet.console import out, print_json
    from trainfleet.cost.render import as_markdown, as_table
    from trainfleet.files import write_whole

    request = _Request(stack, usage, plan, state, events, bill or [], storage or [], month, basis)
    _check(request, markdown)
    report = _report(request)
    if markdown is not None:
        write_whole(markdown, as_markdown(report))
    if as_json:
        print_json(report.as_json())
    else:
        as_table(report, out())


def _check(request: _Request, markdown: Path | None) -> None:
    from trainfleet.errors import InputError, Problem
    from trainfleet.suggestions import did_you_mean

    bases = ("effective", "billed")
    if request.basis not in bases:
        fix = did_you_mean(request.basis, bases)
        raise InputError("unknown cost", [Problem("--cost", f"`{request.basis}` is not known", fix)])
    if request.month and not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", request.month):
        raise InputError("not a month", [Problem("--month", f"`{request.month}`", "such as 2026-11")])
    if markdown is not None and not markdown.resolve().parent.is_dir():
        fix = f"mkdir -p {markdown.parent}"
        raise InputError("cannot write there", [Problem(str(markdown), "its folder does not exist", fix)])
    plans = [
        name
        for name, given in (
            ("--plan", request.plan),
            ("--state", request.state),
            ("--events", request.events),
        )
        if given
    ]
    problems = [
        Problem(name, f"has no meaning with {plans[0]}: one plan is priced", "omit it") for name in plans[1:]
    ]
    alone = (
        ("--storage", request.storage),
        ("--month", request.month),
        ("--cost", request.basis != "effective"),
    )
    if not request.bills:
        problems += [
            Problem(name, "has no meaning without --bill", "omit it") for name, given in alone if given
        ]
    if request.usage and not plans:
        problems.append(
            Problem("--usage", "prices what a plan is billed by", "add --plan, --state or --events")
        )
    if problems:
        raise InputError("conflicting options", problems)


def _report(request: _Request) -> CostReport:
    from trainfleet.cost.report import CostReport
    from trainfleet.infra.catalog.cost import bill
    from trainfleet.infra.spec.load import load_stack

    spec = load_stack(request.stack)
    name = Path(request.stack).name.removeprefix("Pulumi.").removesuffix(".yaml")
    estimate = bill(spec)
    plan, plan_from = _plan(request, name)
    notes = [] if plan is None else _disagreements(plan, estimate)
    found = _bill(request, spec, name, plan or estimate) if request.bills else None
    return CostReport(name, spec.name, estimate, plan, plan_from, found, tuple(notes))


def _plan(request: _Request, name: str) -> tuple[Bill | None, str]:
    from trainfleet.cost import plan
    from trainfleet.infra.catalog.planned import bill_of_plan
    from trainfleet.infra.catalog.usage import read_usage

    usage = read_usage(request.usage) if request.usage else None
    if request.state is not None:
        return bill_of_plan(plan.of_export(request.state, name), usage), f"deployed, {request.state.name}"
    if request.events is not None:
        return bill_of_plan(plan.of_recording(request.events, name), usage), f"preview, {request.events.name}"
    if request.plan:
        from trainfleet.infra.spec.stack_file import project_root

        return bill_of_plan(plan.rehearsed(project_root(), name), usage), "rehearsed preview"
    return None, ""


def _disagreements(plan: Bill, estimate: Bill) -> list[str]:
    from trainfleet.rehearsal.diff.planned_cost import disagreements

    return disagreements(plan, estimate) if estimate.parts else []


def _bill(request: _Request, spec: PlatformSpec, name: str, estimate: Bill) -> BillReport:
    from trainfleet.cost.bill import Owners, add_up
    from trainfleet.cost.focus import charges
    from trainfleet.cost.report import bill_report
    from trainfleet.cost.run_hours import hours_of
    from trainfleet.errors import InputError, Problem

    owners = Owners(spec, name)
    totals = add_up(charges(request.bills), owners, request.basis)
    month = request.month or max(totals.months)
    if month not in totals.months:
        known = ", ".join(sorted(totals.months))
        raise InputError(
            "not on the bill", [Problem("--month", f"{month} has no charges", f"one of: {known}")]
        )
    runs = None
    if request.storage:
        from trainfleet.training.cli.run_places import list_urls

        runs = hours_of(list_urls(request.storage), spec.name, month)
    return bill_report(totals, month, owners, estimate, runs)
