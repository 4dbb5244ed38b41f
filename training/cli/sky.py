"""`trainfleet sky setup`, `trainfleet sky check` and `trainfleet plan`: SkyPilot over the platforms'
clusters.

Answers `--help` at once: SkyPilot takes seconds to import and is imported by `sky check` alone.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainfleet.console import EXIT_CODES
from trainfleet.errors import InputError, Problem

if TYPE_CHECKING:
    from trainfleet.training.launch.platform_outputs import Place, PlatformOutputs
    from trainfleet.training.launch.sky.plan import Candidate, Plan, Speed

_SKY_HELP = f"""Let SkyPilot use the platforms' clusters.

[bold]Examples[/]

    trainfleet sky setup --stack aws-prod.json --stack gcp-prod.json

    trainfleet sky check --stack aws-prod.json --quick

    trainfleet sky setup --undo

{EXIT_CODES}"""

sky = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help=_SKY_HELP,
)
plan = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)

Stacks = Annotated[
    list[str] | None,
    typer.Option(
        "--stack",
        metavar="OUTPUTS.json|STACK",
        help="A platform's outputs, or the name of its Pulumi stack; several, if you like.",
    ),
]
Prices = Annotated[
    list[str] | None,
    typer.Option("--price", metavar="STACK/POOL=USD", help="What a node of that pool costs by the hour."),
]


@sky.command(epilog=EXIT_CODES)
def setup(  # noqa: PLR0917 - Typer passes options by name
    stack: Stacks = None,
    token_file: Annotated[
        list[str] | None,
        typer.Option(
            "--token-file",
            metavar="STACK=FILE",
            help="The launcher's token of that stack, instead of fetching it.",
        ),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            "--kubeconfig", metavar="FILE", help="Where the contexts go; by default where SkyPilot looks."
        ),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Write over a context of the same name that logs in another way."),
    ] = False,
    managed: Annotated[
        bool,
        typer.Option(
            "--managed",
            help="For managed jobs: their controllers become processes of SkyPilot's server here, a dozen of them.",
        ),
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Put both files back as they were before the first setup.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Say what was written as one JSON document on stdout; needs --yes.")
    ] = False,
) -> None:
    """Write the platforms' contexts into the kubeconfig, and what SkyPilot must know of them into its
    configuration.

    A context logs in with the token of the platform's restricted launcher account, which is fetched with your
    own login to the
    cloud. The difference is shown first; your own settings and comments stay; both files are written whole or
    not at all.

    [bold]Examples[/]

    trainfleet sky setup --stack aws-prod.json --stack gcp-prod.json

    trainfleet sky setup --stack aws-prod.json --token-file aws-prod=token --yes

    trainfleet sky setup --undo
    """
    from trainfleet.training.launch.sky import configure as work

    if undo:
        changes = work.undo(os.environ)
        _agree([change.difference() for change in changes if not change.empty], yes, as_json)
        work.apply_undo(changes, os.environ)
        _say(
            {"undone": [str(change.file) for change in changes]},
            as_json,
            [f"as before: {change.file}" for change in changes],
        )
        return
    from trainfleet.training.launch.sky.server import answers
    from trainfleet.training.launch.stack_outputs import load_stacks

    places = load_stacks(stack or ())
    found = work.prepare(
        _with_tokens(places, token_file or []),
        os.environ,
        kubeconfig=kubeconfig,
        replace=replace,
        managed=managed,
    )
    files = [str(change.file) for change in found.changes]
    if found.empty:
        _say(
            {"written": [], "contexts": list(found.contexts)},
            as_json,
            [f"{' and '.join(files)} say all this already"],
        )
        return
    differences = [change.difference() for change in found.changes if not change.empty]
    if found.comments_lost:
        differences.append(
            f"{files[1]} has a form that is not changed in place: comments are lost, as the difference shows\n"
        )
    _agree(differences, yes, as_json)
    work.apply(found)
    lines = [
        *(f"written: {file}" for file in files),
        f"contexts: {', '.join(found.contexts)}",
        "next: trainfleet sky check",
    ]
    if managed and answers(os.environ):
        lines.append("SkyPilot's server, which is running, reads this when it starts: sky api stop")
    if kubeconfig is not None:
        lines.append(f"SkyPilot reads it with: export KUBECONFIG={kubeconfig}")
    _say({"written": files, "contexts": list(found.contexts)}, as_json, lines)


@sky.command(epilog=EXIT_CODES)
def check(
    stack: Stacks = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only ask each cluster; start no task.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Prove each platform's context with a small task of SkyPilot's, and say what is missing.

    Without --quick a pod of one processor runs `python -c "import training"` in the platform's image and is
    taken down again.

    [bold]Examples[/]

    trainfleet sky check --stack aws-prod.json --stack gcp-prod.json

    trainfleet sky check --stack aws-prod.json --quick --json
    """
    from trainfleet.console import out, print_json
    from trainfleet.errors import TrainfleetError
    from trainfleet.training.launch.sky import named
    from trainfleet.training.launch.sky.check import examine
    from trainfleet.training.launch.stack_outputs import load_stacks

    say = (lambda _: None) if as_json else _progress
    with contextlib.redirect_stdout(sys.stderr):  # SkyPilot's own lines are not the answer
        reports = [
            examine(name, outputs, os.environ, quick=quick, say=say)
            for name, outputs in named(load_stacks(stack or ()))
        ]
    if as_json:
        print_json([report.as_json() for report in reports])
    else:
        for report in reports:
            out().print(report.line(), soft_wrap=True, markup=False)
    if problems := [
        Problem(report.context, each.what, each.fix) for report in reports for each in report.problems
    ]:
        raise TrainfleetError("not every context can be used", problems)


@plan.command(epilog=EXIT_CODES)
def plan_command(  # noqa: PLR0917 - Typer passes options by name
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", help="A YAML file, or the name of a recipe that comes with Trainfleet."
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Change the recipe.", show_default=False),
    ] = None,
    stack: Stacks = None,
    like: Annotated[
        str | None,
        typer.Option(
            "--like", metavar="RUN", help="Take the throughput from this run instead of assuming one."
        ),
    ] = None,
    mfu: Annotated[
        float | None,
        typer.Option(
            "--mfu",
            metavar="SHARE",
            min=0.001,
            max=1,
            help="Share of the GPUs' peak to assume.",
            show_default=False,
        ),
    ] = None,
    parameters: Annotated[
        float | None,
        typer.Option(
            "--parameters",
            metavar="N",
            min=1,
            help="The model's size, where the recipe does not say it: 7e9.",
        ),
    ] = None,
    gpu: Annotated[
        list[str] | None, typer.Option("--gpu", metavar="NAME", help="Only pools with this GPU.")
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Pods of a recipe without GPUs.")] = 1,
    spot: Annotated[bool, typer.Option("--spot/--no-spot", help="Spot pools too.")] = True,
    price: Prices = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Say where a recipe could run, what it would take and cost there, and why not elsewhere. Asks nobody and
    starts nothing.

    [bold]Examples[/]

    trainfleet plan lm-1b --stack aws-prod.json --stack gcp-prod.json --stack azure-prod.json

    trainfleet plan lm-1b scaling.workers=16 --stack aws-prod.json --like runs/lm-1b

    trainfleet plan lm-1b --stack azure-prod.json --price azure-prod/a100-spot=0.9 --json
    """
    from trainfleet.console import print_json
    from trainfleet.training.launch.sky import named
    from trainfleet.training.launch.sky.plan import Speed, Wishes, make_plan
    from trainfleet.training.launch.stack_outputs import load_stacks
    from trainfleet.training.recipe.load import load_recipe

    wishes = Wishes(nodes, spot, prices_of(price), parameters, tuple(gpu or ()))
    if like is not None and mfu is not None:
        raise InputError(
            "two throughputs are given", [Problem("--mfu", "goes with no --like", "leave out one of them")]
        )
    speed = (
        _like(like)
        if like is not None
        else Speed()
        if mfu is None
        else Speed(mfu, mfu, None, f"as given: {mfu:.1%} of the GPUs' peak")
    )
    found = make_plan(
        load_recipe(recipe, overrides or (), os.environ), named(load_stacks(stack or ())), wishes, speed
    )
    if as_json:
        print_json(found.as_json())
    else:
        _show(found)
    if not found.possible:
        raise typer.Exit(1)


def prices_of(texts: list[str] | None) -> dict[str, float]:
    """`STACK/POOL=USD` as a table.

    Raises:
        InputError: one that is no price.
    """
    found, problems = {}, []
    for text in texts or []:
        name, _, value = text.rpartition("=")
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = -1.0
        if not name or not 0 <= found[name] < float("inf"):
            problems.append(
                Problem(f"--price {text}", "is no price", "such as --price azure-prod/a100-spot=0.92")
            )
    if problems:
        raise InputError("a price cannot be read", problems)
    return found


def _with_tokens(places: list[Place], texts: list[str]) -> list[tuple[PlatformOutputs, str | None]]:
    """Each platform with its token: from the file that was named, or from its cluster; None where it has no
    launcher account.
    """
    from trainfleet.training.launch.sky import named
    from trainfleet.training.launch.sky.kubeconfig import fetch_token, read_token

    platforms = named(places)
    files = {}
    for text in texts:
        name, equals, file = text.partition("=")
        if not equals or name not in dict(platforms):
            what = "names no platform of a --stack"
            raise InputError(
                "a token is for nobody",
                [
                    Problem(
                        f"--token-file {text}", what, f"STACK=FILE with STACK: {', '.join(dict(platforms))}"
                    )
                ],
            )
        files[name] = Path(file)
    if unnamed := [name for name, outputs in platforms if not outputs.kube_context]:
        problems = [
            Problem(
                name,
                "its outputs name no context of a cluster",
                "say kubernetes.context in its spec, and apply it",
            )
            for name in unnamed
        ]
        raise InputError("there is no cluster to reach", problems)
    return [
        (
            outputs,
            None
            if not outputs.launcher_account
            else read_token(files[name])
            if name in files
            else fetch_token(outputs),
        )
        for name, outputs in platforms
    ]


def _agree(differences: list[str], yes: bool, as_json: bool) -> None:
    """Show what would change, and ask.

    Raises:
        InputError: nobody can be asked.
    """
    if not as_json:
        for difference in differences:
            sys.stdout.write(difference)
    if yes:
        return
    if as_json or not sys.stdin.isatty():
        raise InputError(
            "nothing was written",
            [Problem("", "nobody can be asked here", "--yes, once the difference is as it should be")],
        )
    if not typer.confirm("Write this?"):
        raise typer.Exit(1)


def _say(document: dict[str, Any], as_json: bool, lines: list[str]) -> None:
    from trainfleet.console import out, print_json

    if as_json:
        print_json(document)
        return
    for line in lines:
        out().print(line, soft_wrap=True, markup=False)


def _progress(text: str) -> None:
    from trainfleet.console import err

    err().print(text, soft_wrap=True, markup=False, style="dim")


def _like(run: str) -> Speed:
    """The throughput of a run's folder.

    Raises:
        InputError: nothing was measured there.
    """
    from trainfleet.training.launch.sky.plan import measured
    from trainfleet.training.runs.reader import read_rows, read_run

    folder = Path(run.removeprefix("file://"))
    rows = [row for row in read_rows(folder).of("train") if row.get("samples_per_second")]
    if not rows:
        raise InputError(
            "nothing was measured there",
            [
                Problem(
                    f"--like {run}", "has no rows of training", "the folder of a run, such as runs/lm-small"
                )
            ],
        )
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
        console.width = max(
            wide, console.width
        )  # a figure that is cut off is worse than a line that is folded
        console.print(table)
    source = f"throughput {found.speed.source}"
    if not any(each.hours is not None for each in found.possible):
        source = "the time is not known: --like RUN takes the throughput from a run of yours"
    console.print(
        f"{source}; prices are list prices of whole nodes; 1M: a million samples", style="dim", soft_wrap=True
    )
    if found.refused:
        console.print("refused")
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
