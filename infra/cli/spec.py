"""`trainfleet spec check|identities|schema`: validate specs, and print what they build, cost and need.

Nothing of Pulumi is imported here, so that a check takes half a second.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainfleet.console import EXIT_CODES

if TYPE_CHECKING:
    from trainfleet.errors import Problem
    from trainfleet.infra.spec.schema import PlatformSpec

_SPEC_HELP = f"""Check platform specs: report every mistake with its line and a fix, then machines and cost.

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
        typer.Option("--set", metavar="PATH=VALUE", help="Change a value before the check; repeatable."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document, mistakes included.")
    ] = False,
    day: Annotated[
        str,
        typer.Option("--date", metavar="DAY", help="Check support calendars and exceptions as of this day."),
    ] = "",
) -> None:
    """Check stacks, and print what they build and cost. All mistakes are reported at once.

    [bold]Examples[/]

    trainfleet spec check aws-prod

    trainfleet spec check --all --json

    trainfleet spec check aws-dev --set "gpu_pools\\[0].max_nodes=4" --set kubernetes.version=1.36

    trainfleet spec check --all --date 2027-01-31
    """
    from trainfleet.console import print_json
    from trainfleet.dates import set_today
    from trainfleet.errors import InputError, Problem
    from trainfleet.infra.spec.stack_file import project_root, stack_names

    set_today(day)
    names = stack_names(project_root()) if every else stacks or []
    if not names:
        existing = ", ".join(stack_names(project_root())) or "none yet"
        raise InputError(
            "no stack to check",
            [Problem("", "name one or more stacks, or pass --all", f"available: {existing}")],
        )
    checked, problems, summaries = _loaded(names, settings or [])
    if as_json:
        print_json(_report(checked, problems))
        if problems:
            raise typer.Exit(InputError.exit_code)
        return
    for name, platform in checked:
        _print_platform(name, platform)
    if problems:
        raise InputError(
            "; ".join(dict.fromkeys(summaries)), (problem for each in problems.values() for problem in each)
        )


def _loaded(
    names: list[str], settings: list[str]
) -> tuple[list[tuple[str, PlatformSpec]], dict[str, tuple[Problem, ...]], list[str]]:
    """The specs that are right, the problems of the others by name, and their summaries."""
    from trainfleet.errors import InputError
    from trainfleet.infra.spec.load import load_stack

    checked, problems, summaries = [], {}, []
    for name in names:
        try:
            checked.append((name, load_stack(name, overrides=settings)))
        except InputError as error:
            problems[name] = error.problems
            summaries.append(error.summary)
    return checked, problems, summaries


@spec.command("identities")
def identities(
    stack: Annotated[str, typer.Argument(metavar="STACK", help="A stack by name, or a stack file.")],
) -> None:
    """Print the identities that a platform needs, and what each must be allowed to do, as JSON.

    For the owner of the identities in [bold]identities.existing[/]. On AWS: the trust policy, AWS's own
    policies and the policy of each role. Resources have the names that the platform will choose.

    [bold]Examples[/]

    trainfleet spec identities aws-prod
    """
    from trainfleet.console import print_json
    from trainfleet.errors import InputError, Problem
    from trainfleet.infra.cloud_support import support
    from trainfleet.infra.spec.load import load_stack

    platform = load_stack(stack)
    ids = support(platform.cloud).identities
    if ids is None:
        what = f"{platform.cloud} has no identities"
        raise InputError("nothing to print", [Problem("cloud", what, "a stack on aws, gcp or azure")])
    print_json({purpose: dict(rights) for purpose, rights in ids.rights(platform).items()})


@spec.command("schema")
def schema(
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to this file instead of stdout."),
    ] = None,
) -> None:
    """Write the JSON Schema of a stack file, for editors that complete and validate YAML.

    [bold]Examples[/]

    trainfleet spec schema --output stacks/platform.schema.json

    The first line of a stack file refers to it: # yaml-language-server: $schema=./platform.schema.json
    """
    from trainfleet.files import write_whole
    from trainfleet.infra.spec.json_schema import schema_text

    if output is None:
        typer.echo(schema_text(), nl=False)
    else:
        write_whole(output, schema_text())


def _report(
    checked: list[tuple[str, PlatformSpec]], problems: dict[str, tuple[Problem, ...]]
) -> dict[str, Any]:
    return {
        "stacks": [_as_document(name, platform) for name, platform in checked]
        + [_as_mistakes(*each) for each in problems.items()]
    }


def _as_document(stack: str, platform: PlatformSpec) -> dict[str, Any]:
    from trainfleet.infra.catalog.cost import HOURS_PER_MONTH, node_costs

    costs = node_costs(platform)
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


def _print_platform(stack: str, platform: PlatformSpec) -> None:
    """Print without Rich, whose import takes a quarter of a second."""
    from trainfleet.infra.catalog.cost import HOURS_PER_MONTH, node_costs

    costs = node_costs(platform)
    place = f"{platform.cloud} {platform.region}".strip()
    typer.echo(
        f"{typer.style('ok', fg='green')} {typer.style(stack, bold=True)}: "
        f"platform {platform.name} on {place}, {platform.environment}"
    )
    if not costs.pools:
        typer.echo(f"  {len(platform.gpu_pools)} GPU pools on an existing cluster")
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
        f"  nodes: {low:,.2f} to {high:,.2f} USD an hour, "
        f"{low * HOURS_PER_MONTH:,.0f} to {high * HOURS_PER_MONTH:,.0f} USD a month"
    )
    typer.secho(
        "  list prices (trainfleet machines); reserved capacity as on-demand; "
        "without storage, traffic, control plane",
        dim=True,
    )
    if costs.unknown:
        typer.secho(
            f"  not in these sums, because the price is unknown: {', '.join(costs.unknown)}", fg="yellow"
        )


def _usd(price: float | None) -> str:
    return "-" if price is None else f"{price:,.2f}"
