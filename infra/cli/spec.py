"""`trainfleet spec check|schema` and `trainfleet machines`: what a spec says and costs, and what can be
bought.

Answers in half a second: nothing of Pulumi is imported here, and the rest only in the command that needs it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainfleet.console import EXIT_CODES

if TYPE_CHECKING:
    from trainfleet.errors import Problem
    from trainfleet.infra.catalog.machines import Machine
    from trainfleet.infra.spec.schema import PlatformSpec

_SPEC_HELP = f"""Check platform specs: every mistake at once, with its line and what would be right, then machines and cost.

[bold]Examples[/]

  trainfleet spec check aws-prod

  trainfleet spec check --all --json

  trainfleet spec schema -o stacks/platform.schema.json

{EXIT_CODES}
"""

spec = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help=_SPEC_HELP,
)
machines = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)

WIDTH = 100
"""What the table of machines is made to fit in, and gets where there is no terminal."""


@spec.command("check")
def check(
    stacks: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="STACK", help="Stacks by name (aws-prod), or stack files.", show_default=False
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every stack in stacks/.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Change a value before the check; may be repeated."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document on stdout; mistakes are in it.")
    ] = False,
) -> None:
    """Check stacks, and say what they would build and cost. All mistakes are told at once.

    [bold]Examples[/]

    trainfleet spec check aws-prod

    trainfleet spec check --all --json

    trainfleet spec check aws-dev --set "gpu_pools\\[0].max_nodes=4" --set kubernetes.version=1.35
    """
    from trainfleet.console import print_json
    from trainfleet.errors import InputError, Problem
    from trainfleet.infra.spec.load import load_stack
    from trainfleet.infra.spec.stack_file import project_root, stack_names

    names = stack_names(project_root()) if every else stacks or []
    if not names:
        there = ", ".join(stack_names(project_root())) or "none yet"
        raise InputError(
            "no stack to check",
            [Problem("", "name one or more stacks, or give --all", f"there are: {there}")],
        )
    checked: list[tuple[str, PlatformSpec]] = []
    problems: dict[str, tuple[Problem, ...]] = {}
    summaries = []
    for name in names:
        try:
            checked.append((name, load_stack(name, overrides=settings or ())))
        except InputError as error:
            problems[name] = error.problems
            summaries.append(error.summary)
    if as_json:
        print_json(
            {
                "stacks": [_as_document(name, platform) for name, platform in checked]
                + [_as_mistakes(*each) for each in problems.items()]
            }
        )
        if problems:
            raise typer.Exit(InputError.exit_code)
        return
    for name, platform in checked:
        _print_platform(name, platform)
    if problems:
        raise InputError(
            "; ".join(dict.fromkeys(summaries)), (problem for each in problems.values() for problem in each)
        )


@spec.command("schema")
def schema(
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write it here instead of to stdout."),
    ] = None,
) -> None:
    """Write the JSON Schema of a stack file, for editors that complete and check YAML.

    [bold]Examples[/]

    trainfleet spec schema --output stacks/platform.schema.json

    A stack file names it in its first line:  # yaml-language-server: $schema=./platform.schema.json
    """
    from trainfleet.files import write_whole
    from trainfleet.infra.spec.json_schema import schema_text

    if output is None:
        typer.echo(schema_text(), nl=False)
    else:
        write_whole(output, schema_text())


@machines.command("machines")
def browse(
    cloud: Annotated[
        str | None, typer.Option("--cloud", help="aws, gcp or azure.", show_default=False)
    ] = None,
    accelerator: Annotated[
        str | None, typer.Option("--accelerator", help="For example H100 or A100-80GB.", show_default=False)
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", min=1, help="Accelerators per machine.", show_default=False)
    ] = None,
    rdma: Annotated[
        bool, typer.Option("--rdma", help="Only machines with a fabric for multi-node training.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document on stdout, with every column and source.")
    ] = False,
) -> None:
    """Browse the catalogue of machines that pools are made of, with dated list prices.

    [bold]Examples[/]

    trainfleet machines --cloud aws --accelerator H100

    trainfleet machines --rdma --count 8

    trainfleet machines --json
    """
    from trainfleet.console import out, print_json

    found = select(cloud, accelerator, count, rdma)
    if as_json:
        print_json({"machines": [_as_row(machine) for machine in found]})
    else:
        _print_machines(out(), found)


def select(cloud: str | None, accelerator: str | None, count: int | None, rdma: bool) -> list[Machine]:
    """The machines of the catalogue that match every filter given, cheapest accelerators last in the file's
    order.

    Raises:
        InputError: an unknown cloud or accelerator (the nearest name is offered), or nothing matches.
    """
    from trainfleet.errors import InputError, Problem
    from trainfleet.infra.catalog.machines import catalogue
    from trainfleet.suggestions import did_you_mean

    rows = list(catalogue())
    clouds = sorted({machine.cloud.value for machine in rows})
    if cloud is not None:
        if cloud.lower() not in clouds:
            raise InputError(
                "no such cloud in the catalogue",
                [Problem("--cloud", f"`{cloud}` is not known", did_you_mean(cloud, clouds))],
            )
        rows = [machine for machine in rows if machine.cloud == cloud.lower()]
    if accelerator is not None:
        sold = {machine.accelerator.lower(): machine.accelerator for machine in rows if machine.accelerator}
        if accelerator.lower() not in sold:
            where = f"{cloud} sells no" if cloud else "the catalogue has no"
            raise InputError(
                "no such accelerator",
                [
                    Problem(
                        "--accelerator", f"{where} `{accelerator}`", did_you_mean(accelerator, sold.values())
                    )
                ],
            )
        rows = [machine for machine in rows if machine.accelerator == sold[accelerator.lower()]]
    found = [
        machine
        for machine in rows
        if (count is None or machine.accelerators_per_node == count) and (not rdma or machine.rdma != "none")
    ]
    if not found:
        counts = sorted(
            {
                machine.accelerators_per_node
                for machine in rows
                if machine.accelerator and (not rdma or machine.rdma != "none")
            }
        )
        fix = f"counts: {', '.join(map(str, counts))}" if counts else "leave out --rdma"
        raise InputError("no machine matches", [Problem("", "the filters leave nothing over", fix)])
    return found


def _as_document(stack: str, platform: PlatformSpec) -> dict[str, Any]:
    from trainfleet.infra.catalog.cost import HOURS_PER_MONTH, cost

    costs = cost(platform)
    low, high = costs.min_usd_per_hour, costs.max_usd_per_hour
    return {
        "stack": stack,
        "ok": True,
        "problems": [],
        "name": platform.name,
        "cloud": platform.cloud,
        "region": platform.region,
        "environment": platform.environment,
        "pools": [
            {
                "name": pool.name,
                "instance_type": pool.machine.instance_type,
                "accelerator": pool.machine.accelerator,
                "per_node": pool.machine.accelerators_per_node,
                "capacity": pool.capacity,
                "min_nodes": pool.min_nodes,
                "max_nodes": pool.max_nodes,
                "usd_per_hour": pool.usd_per_hour,
            }
            for pool in costs.pools
        ],
        "usd_per_hour": {"min": round(low, 4), "max": round(high, 4)},
        "usd_per_month": {"min": round(low * HOURS_PER_MONTH, 2), "max": round(high * HOURS_PER_MONTH, 2)},
        "unpriced_pools": list(costs.unknown),
    }


def _as_mistakes(stack: str, problems: tuple[Problem, ...]) -> dict[str, Any]:
    return {
        "stack": stack,
        "ok": False,
        "problems": [
            {"where": problem.where, "what": problem.what, "fix": problem.fix} for problem in problems
        ],
    }


def _as_row(machine: Machine) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(machine), "skypilot_label": machine.skypilot_label}


def _print_platform(stack: str, platform: PlatformSpec) -> None:
    """Written without Rich, whose import alone takes a quarter of the half second that a check may take."""
    from trainfleet.infra.catalog.cost import HOURS_PER_MONTH, cost

    costs = cost(platform)
    place = f"{platform.cloud} {platform.region}".strip()
    typer.echo(
        f"{typer.style('ok', fg='green')} {typer.style(stack, bold=True)}: platform {platform.name} on {place}, {platform.environment}"
    )
    if not costs.pools:
        typer.echo(f"  {len(platform.gpu_pools)} GPU pools on a cluster that is already there")
        return
    rows = [("pool", "nodes", "machine", "GPUs", "capacity", "$/h each", "$/h at most")]
    for pool in costs.pools:
        gpus = (
            f"{pool.machine.accelerators_per_node} x {pool.machine.accelerator}"
            if pool.machine.accelerator
            else ""
        )
        most = None if pool.usd_per_hour is None else pool.usd_per_hour * pool.max_nodes
        rows.append(
            (
                pool.name,
                f"{pool.min_nodes}-{pool.max_nodes}",
                pool.machine.instance_type,
                gpus,
                pool.capacity,
                _usd(pool.usd_per_hour),
                _usd(most),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.rjust(width) if index in {1, 5, 6} else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        typer.secho(f"  {'  '.join(cells)}".rstrip(), dim=row is rows[0])
    low, high = costs.min_usd_per_hour, costs.max_usd_per_hour
    typer.echo(
        f"  nodes: {low:,.2f} to {high:,.2f} USD an hour, {low * HOURS_PER_MONTH:,.0f} to {high * HOURS_PER_MONTH:,.0f} USD a month"
    )
    typer.secho(
        "  list prices (trainfleet machines), reserved capacity as on demand; without storage, traffic, control plane",
        dim=True,
    )
    if costs.unknown:
        typer.secho(f"  no price is known for {', '.join(costs.unknown)}: not in these sums", fg="yellow")


def _print_machines(console: Any, found: list[Machine]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    for head in ("cloud", "machine", "GPUs", ">GiB", ">vCPU", ">RAM", "fabric", ">$/h", ">spot", "price of"):
        table.add_column(
            head.removeprefix(">"), justify="right" if head.startswith(">") else "left", no_wrap=True
        )
    for machine in found:
        gpus = f"{machine.accelerators_per_node} x {machine.accelerator}" if machine.accelerator else ""
        fabric = (
            f"{machine.rdma_nics} {machine.rdma.removeprefix('gpudirect-')}" if machine.rdma != "none" else ""
        )
        memory = f"{machine.gpu_memory_gib:.4g}" if machine.accelerator else ""
        known = (machine.usd_per_hour_on_demand, machine.usd_per_hour_spot) != (None, None)
        dated = str(machine.price_date or "undated") if known else "-"
        prices = (_usd(machine.usd_per_hour_on_demand), _usd(machine.usd_per_hour_spot), dated)
        table.add_row(
            machine.cloud,
            machine.instance_type,
            gpus,
            memory,
            str(machine.vcpu),
            f"{machine.memory_gib:g}",
            fabric,
            *prices,
        )
    if not console.is_terminal:
        console.width = WIDTH
    console.print(table)
    notes = [
        "GiB: memory of one GPU. $/h: list price of the machine in USD; spot is undated; - is not listed.",
        "Prices from:",
    ]
    regions: dict[str, dict[str, None]] = {}
    for machine in found:
        if machine.usd_per_hour_on_demand is None and machine.usd_per_hour_spot is None:
            continue
        regions.setdefault(f"{machine.cloud}: {price_source(machine)}", {})[machine.price_region] = None
    for note in [*notes, *(f"  {source} ({', '.join(names)})" for source, names in regions.items())]:
        console.print(f"[dim]{note}[/]", soft_wrap=True)


def price_source(machine: Machine) -> str:
    """Where a machine's price comes from, in short: file, commit and date; `--json` has the whole of it."""
    parts = [part.strip() for part in machine.source.split(";")]
    for mark in ("on-demand: ", "price: ", "price incl. local SSD: ", "spot: "):
        for part in parts:
            if part.startswith(mark) and "none published" not in part:
                return re.split(r", | \((?!undated)| plus | median ", part.removeprefix(mark))[0]
    return machine.source


def _usd(price: float | None) -> str:
    return "-" if price is None else f"{price:,.2f}"
