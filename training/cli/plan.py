"""`trainfleet plan`: where a recipe could run, and what it would cost there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainfleet import completion
from trainfleet.console import EXIT_CODES
from trainfleet.errors import InputError, Problem
from trainfleet.training.cli.options import (
    AliasedCommand,
    Json,
    Overrides,
    Prices,
    RecipeName,
    Set,
    Stacks,
    prices_of,
)

if TYPE_CHECKING:
    from trainfleet.training.launch.sky.plan import Candidate, Plan, Throughput

Like = Annotated[
    str | None,
    typer.Option(
        "--like",
        metavar="RUN",
        help="Take the throughput from this run instead of assuming one.",
        autocompletion=completion.run_folders,
    ),
]
Mfu = Annotated[
    float | None,
    typer.Option(
        "--mfu",
        metavar="SHARE",
        min=0.001,
        max=1,
        help="Assumed share of the GPUs' peak.",
        show_default=False,
    ),
]
Parameters = Annotated[
    float | None,
    typer.Option(
        "--parameters",
        metavar="N",
        min=1,
        help="The model's size, where the recipe does not define it: 7e9.",
    ),
]
Gpu = Annotated[list[str] | None, typer.Option("--gpu", metavar="NAME", help="Only pools with this GPU.")]
Nodes = Annotated[int, typer.Option("--nodes", min=1, help="Pods of a recipe without GPUs.")]
Spot = Annotated[bool, typer.Option("--spot/--no-spot", help="Use spot pools too.")]

plan = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@plan.command(cls=AliasedCommand, epilog=EXIT_CODES)
def plan_command(  # noqa: PLR0917 - Typer passes options by name
    recipe: RecipeName,
    overrides: Overrides = None,
    stack: Stacks = None,
    like: Like = None,
    mfu: Mfu = None,
    parameters: Parameters = None,
    gpu: Gpu = None,
    nodes: Nodes = 1,
    spot: Spot = True,
    price: Prices = None,
    settings: Set = None,
    as_json: Json = False,
) -> None:
    """Show where a recipe could run, how long it would take, what it would cost, and why not elsewhere.

    Contacts no cluster and starts nothing.

    [bold]Examples[/]

    trainfleet plan lm-1b --stack aws-prod.json --stack gcp-prod.json --stack azure-prod.json

    trainfleet plan lm-1b scaling.workers=16 --stack aws-prod.json --like runs/lm-1b

    trainfleet plan lm-1b --stack azure-prod.json --price azure-prod/a100-spot=0.9 --json
    """
    from trainfleet.console import print_json
    from trainfleet.training.launch.platform_outputs import load_platforms
    from trainfleet.training.launch.sky.plan import PlanOptions, make_plan
    from trainfleet.training.launch.sky.run_spec import by_name
    from trainfleet.training.recipe.load import load_recipe

    options = PlanOptions(nodes, spot, prices_of(price), parameters, tuple(gpu or ()))
    throughput = _throughput(like, mfu)
    loaded = load_recipe(recipe, (*(overrides or ()), *(settings or ())), os.environ)
    found = make_plan(loaded, by_name(load_platforms(stack or ())), options, throughput)
    if as_json:
        print_json(found.as_json())
    else:
        _show(found)
    if not found.possible:
        raise typer.Exit(1)


def _throughput(like: str | None, mfu: float | None) -> Throughput:
    """What `--like` or `--mfu` sets, else the default assumption.

    Raises:
        InputError: both are given, or the run was not measured.
    """
    from trainfleet.training.launch.sky.plan import Throughput

    if like is not None and mfu is not None:
        problem = Problem("--mfu", "cannot be combined with --like", "leave out one of them")
        raise InputError("the throughput is given twice", [problem])
    if like is not None:
        return _like(like)
    return (
        Throughput() if mfu is None else Throughput(mfu, mfu, None, f"as given: {mfu:.1%} of the GPUs' peak")
    )


def _like(run: str) -> Throughput:
    """The measured throughput of a run.

    Raises:
        InputError: it was not measured.
    """
    from trainfleet.training.launch.sky.plan import measured
    from trainfleet.training.runs.reader import read_rows, read_run

    folder = Path(run.removeprefix("file://"))
    rows = [row for row in read_rows(folder).of("train") if row.get("samples_per_second")]
    if not rows:
        fix = "the folder of a run, such as runs/lm-small"
        problem = Problem(f"--like {run}", "has no measured training steps", fix)
        raise InputError("the run was not measured", [problem])
    launches = read_run(folder).get("launches") or [{}]
    return measured(rows, int(launches[-1].get("workers", 1)), run)


def _show(found: Plan) -> None:
    from rich import box
    from rich.table import Table

    from trainfleet.console import out

    console = out()
    if found.possible:
        table = Table(
            box=box.SIMPLE_HEAD,
            title=f"{found.recipe}: in the order in which they are tried",
            title_justify="left",
            pad_edge=False,
        )
        for head in ("#", "pool", "nodes", "GPUs each", "", "USD/h", "hours", "USD", "USD per 1M"):
            table.add_column(
                head, justify="left" if head in ("pool", "GPUs each", "") else "right", no_wrap=True
            )
        for number, each in enumerate(found.possible, 1):
            table.add_row(str(number), *_row(each))
        wide = console.measure(table, options=console.options.update(max_width=1000)).maximum
        console.width = max(wide, console.width)  # better a wrapped line than a truncated figure
        console.print(table)
    source = f"throughput {found.throughput.source}"
    if not any(each.hours is not None for each in found.possible):
        source = "the time is not known: --like RUN takes the throughput from an earlier run"
    console.print(
        f"{source}; prices are list prices of whole nodes; 1M: a million samples", style="dim", soft_wrap=True
    )
    if found.refused:
        console.print("rejected")
        for each in found.refused:
            place = f"{each.platform}/{each.pool}".rstrip("/")
            console.print(f"  {place}: {'; '.join(each.refusals)}", soft_wrap=True, markup=False)


def _row(each: Candidate) -> list[str]:
    def money(value: float | None) -> str:
        return "?" if value is None else f"{value:,.2f}"

    gpus = f"{each.gpus_per_node} x {each.accelerator}" if each.accelerator else "none"
    hours = "?" if each.hours is None else f"{each.hours:,.1f}"
    kind = "spot" if each.spot else ""
    return [
        f"{each.platform}/{each.pool or 'any'}",
        str(each.nodes),
        gpus,
        kind,
        money(each.usd_per_hour),
        hours,
        money(each.usd),
        money(each.usd_per_million),
    ]
