"""`trainfleet rehearse`: rehearses a stack of this project, or any folder with a Python Pulumi program.

Parses arguments, shows progress on stderr and writes the result to stdout; the work is in `rehearse.py`.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from trainfleet.rehearsal.cli.options import (
    CleanUp,
    Context,
    Day,
    DryRun,
    Fault,
    From,
    Json,
    Keep,
    Leave,
    Network,
    OnCluster,
    Outputs,
    Overrides,
    PolicyPacks,
    Quotas,
    Resources,
    Seed,
    Stack,
    Subject,
    Until,
    Variables,
    Yes,
    check_cluster_flags,
    check_files,
    check_options,
    quotas,
)

if TYPE_CHECKING:
    from trainfleet.rehearsal.engine.find import Engine
    from trainfleet.rehearsal.engine.sandbox import Project
    from trainfleet.rehearsal.on_cluster.cluster_target import Target
    from trainfleet.rehearsal.report import Report, Step

rehearse = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)

_ON_CLUSTER = "--on-cluster"


class _Command(typer.core.TyperCommand):
    """Accepts `--on-cluster` without a name, which selects the default cluster."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for index, word in enumerate(args):
            if word == _ON_CLUSTER and (index + 1 == len(args) or args[index + 1].startswith("-")):
                args = [*args[: index + 1], "local", *args[index + 1 :]]
                break
        return super().parse_args(ctx, args)


_HELP = (
    """Rehearse a stack on the real Pulumi engine with simulated clouds. No account, key or network needed.

Runs every step from the first preview to the last delete, including an apply that fails partway and is """
    """resumed. Properties are checked against the installed provider SDKs. The exit code is 0 only if """
    """every step ended as expected.

[bold]Examples[/]

  trainfleet rehearse aws-dev

  trainfleet rehearse aws-prod --json --resources planned.jsonl

  trainfleet rehearse aws-prod --until preview

  trainfleet rehearse aws-dev --set network.zones=3 --outputs platform.json

  trainfleet rehearse ../my-program --policy-pack policies --fault every

  trainfleet rehearse aws-prod --fault all

  trainfleet rehearse aws-prod --until preview --date 2027-01-31

  trainfleet rehearse aws-prod --from runner

  trainfleet rehearse local --on-cluster

  trainfleet rehearse local --context kind-kind --yes

  trainfleet rehearse all --on-cluster --dry-run

  trainfleet rehearse local --on-cluster --leave --outputs platform.json
"""
)


@rehearse.command(help=_HELP, cls=_Command)
def main(  # noqa: PLR0917 - one per flag
    target: Subject,
    as_json: Json = False,
    resources: Resources = None,
    outputs: Outputs = None,
    keep: Keep = None,
    overrides: Overrides = None,
    policy_pack: PolicyPacks = None,
    stack: Stack = "",
    fault: Fault = "one",
    quota: Quotas = None,
    place: From = "laptop",
    day: Day = "",
    until: Until = "",
    seed: Seed = 0,
    network: Network = False,
    variable: Variables = None,
    on_cluster: OnCluster = None,
    context: Context = "",
    yes: Yes = False,
    dry_run: DryRun = False,
    leave: Leave = False,
    clean_up: CleanUp = False,
) -> None:
    """See _HELP."""
    from trainfleet.dates import set_today
    from trainfleet.rehearsal.engine.environment import Access
    from trainfleet.rehearsal.rehearse import RehearsalOptions
    from trainfleet.rehearsal.report import Step

    set_today(day)
    cluster = _cluster(on_cluster, context, agreed=yes) if on_cluster is not None or context else None
    only_on_cluster = "--dry-run" * dry_run or "--leave" * leave or "--clean-up" * clean_up
    check_cluster_flags(cluster, only_on_cluster, until, leave=leave)
    if cluster is not None and (clean_up or dry_run):
        _clean_up(cluster) if clean_up else _dry_run(target, cluster, as_json=as_json)
        return
    options = RehearsalOptions(
        fault=fault,
        seed=seed,
        keep=keep.resolve() if keep else None,
        until="no-op" if leave else until,
        cluster=cluster,
        leave=leave,
        applied_from=place,
        access=Access(network, tuple(variable or ())),
    )
    check_options(options, until)
    began = time.monotonic()
    project, settings, packs, subject = _subject(target, stack, overrides or [])
    checked = Step("check", "check", seconds=time.monotonic() - began)
    chosen = [pack.resolve() for pack in policy_pack] if policy_pack else packs
    check_files(chosen, [path for path in (resources, outputs) if path is not None])
    options = replace(
        options, policy_packs=chosen, resources=resources, outputs=outputs, quotas=quotas(quota or [])
    )
    report = _run(project, _engine(), options, (subject, settings, checked))
    _print(report, as_json=as_json)
    if not report.ok:
        raise typer.Exit(1)


def _cluster(name: str | None, context: str, *, agreed: bool) -> Target:
    from trainfleet.errors import InputError, Problem
    from trainfleet.rehearsal.on_cluster import cluster_target as target

    if name is not None and context:
        raise InputError(
            "conflicting options",
            [Problem("--context", "conflicts with --on-cluster", "omit one of them")],
        )
    return target.named(context, agreed=agreed) if context else target.built_in(name or "local")


def _clean_up(cluster: Target) -> None:
    from trainfleet.console import out
    from trainfleet.rehearsal.on_cluster.leftovers import clean

    removed = clean(cluster)
    for each in removed:
        out().print(f"removed {each}", markup=False, soft_wrap=True)
    if not removed:
        out().print(f"nothing to remove on {cluster.context}", markup=False, soft_wrap=True)


def _dry_run(stack: str, cluster: Target, *, as_json: bool) -> None:
    from trainfleet.console import err, out, print_json
    from trainfleet.rehearsal.on_cluster.dry_run import as_json as row
    from trainfleet.rehearsal.on_cluster.dry_run import dry_run, objects_of, table
    from trainfleet.rehearsal.project_lookup import stack_names

    console = err()
    stacks = stack_names() if stack == "all" else [stack]
    with console.status("") as status:

        def objects() -> Any:
            for name in stacks:
                status.update(f"{name}: applying to simulated clouds")
                found = objects_of(name)
                status.update(f"{name}: checking {len(found.documents)} objects")
                yield found

        results = list(dry_run(cluster, objects()))
    if as_json:
        print_json({"cluster": cluster.context, "stacks": [row(each) for each in results]})
    else:
        out().print(table(cluster.context, results))
        for each in results:
            for name, why in each.refused:
                out().print(f"{each.stack}: {name}: {why}", markup=False, soft_wrap=True)
            for name in each.unchecked:
                out().print(
                    f"{each.stack}: {name}: the definition of this kind is not available",
                    markup=False,
                    soft_wrap=True,
                )
    if any(each.refused for each in results):
        raise typer.Exit(1)


def _subject(
    target: str, stack: str, overrides: list[str]
) -> tuple[Project, dict[str, Any] | None, list[Path], str]:
    """Return the project, changed settings (or None), the default policy packs, and the display name."""
    from trainfleet.errors import InputError, Problem
    from trainfleet.rehearsal.engine.sandbox import read_project
    from trainfleet.rehearsal.project_lookup import project_root, stack_settings

    folder = Path(target)
    if (folder / "Pulumi.yaml").is_file() or (folder.is_dir() and "/" in target):
        if overrides:
            raise InputError(
                "--set changes a platform spec",
                [Problem(target, "is not a stack of this project", "omit --set")],
            )
        project = read_project(folder.resolve(), stack)
        packs = _packs(project.checkout) if project.checkout != project.root else []
        return project, None, packs, folder.resolve().name
    root = project_root()
    project = read_project(root, target)
    settings = stack_settings(target, root, overrides)
    return project, settings, _packs(root), target


def _packs(root: Path) -> list[Path]:
    """The policy packs that check a project by default."""
    pack = root / "policies"
    return [pack] if (pack / "PulumiPolicy.yaml").is_file() else []


def _engine() -> Engine:
    from trainfleet.console import err
    from trainfleet.rehearsal.engine.find import find_engine

    console = err()
    with console.status("looking for the Pulumi engine") as status:
        return find_engine(
            lambda line: status.update(line) if console.is_terminal else console.print(line, highlight=False)
        )


def _run(
    project: Project, engine: Engine, options: Any, what: tuple[str, dict[str, Any] | None, Step]
) -> Report:
    from trainfleet.rehearsal.progress import shown
    from trainfleet.rehearsal.rehearse import rehearse as run

    subject, settings, checked = what
    with shown() as show:
        return run(project, engine, options, subject=subject, settings=settings, show=show, checked=checked)


def _print(report: Report, *, as_json: bool) -> None:
    from rich.markup import escape

    from trainfleet.console import err, out, print_json

    if as_json:
        print_json(report.as_json())
    else:
        console = out()
        console.print(report.as_table())
        for note in report.notes():
            console.print(f"  {escape(note)}", soft_wrap=True)
    console = err()
    if report.network.startswith("not blocked"):
        console.print(f"[yellow]the program's network is {escape(report.network)}[/]", soft_wrap=True)
    for warning in report.warnings:
        console.print(f"  [yellow]![/] {escape(warning)}", soft_wrap=True)
    if report.missing_rules:
        console.print(
            f"[yellow]no replacement rules for:[/] {escape(', '.join(report.missing_rules))}", soft_wrap=True
        )
    for problem in report.problems:
        where = f"[bold]{escape(problem.where)}[/]: " if problem.where else ""
        fix = f" [green]-> {escape(problem.fix)}[/]" if problem.fix else ""
        console.print(f"  [red]✗[/] {where}{escape(problem.what)}{fix}", soft_wrap=True)
    if report.kept:
        console.print(f"kept in {escape(report.kept)}", soft_wrap=True)
