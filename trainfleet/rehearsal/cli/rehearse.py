"""`trainfleet rehearse`: rehearses a stack of this project, or any folder with a Python Pulumi program.

Parses arguments, shows progress on stderr and writes the result to stdout; the work is in `rehearse.py`.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
    """Try a stack on the real Pulumi engine over simulated clouds: no account, no key, no network.

Every step from the first preview to the last delete, with an apply that is broken in the middle """
    """and resumed. Properties are checked
against the installed provider SDKs. Exit code 0 only if each step was as expected.

[bold]Examples[/]

  trainfleet rehearse aws-dev

  trainfleet rehearse aws-prod --json --resources planned.jsonl

  trainfleet rehearse aws-prod --until preview

  trainfleet rehearse aws-dev --set network.zones=3 --outputs platform.json

  trainfleet rehearse ../my-program --policy-pack policies --fault every

  trainfleet rehearse aws-prod --fault all

  trainfleet rehearse local --on-cluster

  trainfleet rehearse local --context kind-kind --yes

  trainfleet rehearse all --on-cluster --dry-run

  trainfleet rehearse local --on-cluster --leave --outputs platform.json
"""
)


@rehearse.command(help=_HELP, cls=_Command)
def main(  # noqa: PLR0917 - one per flag
    target: Annotated[
        str,
        typer.Argument(metavar="STACK|DIR", help="A stack of this project, or a folder with a Pulumi.yaml."),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document on stdout instead of the table.")
    ] = False,
    resources: Annotated[
        Path | None,
        typer.Option(
            help="Write every planned resource as a line of JSON (type, name, urn, inputs; secrets masked)."
        ),
    ] = None,
    outputs: Annotated[
        Path | None,
        typer.Option(help="Write the stack's outputs (the platform document, where there is one) as JSON."),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Leave the engine's state and logs in a folder below DIR."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Change the platform spec for this rehearsal."),
    ] = None,
    policy_pack: Annotated[
        list[Path] | None, typer.Option(help="A policy pack to apply (default for stacks: policies).")
    ] = None,
    stack: Annotated[str, typer.Option(help="For a DIR: which stack's settings to use.")] = "",
    fault: Annotated[
        str,
        typer.Option(
            help=(
                "What goes wrong: `one` create fails, or `every` resource's first; the engine dies in a"
                " `crash`; the cloud `throttle`s, is seen with a "
                "`lag`, lets things `hang`; or `all` of it, and every update and delete fails once too."
            )
        ),
    ] = "one",
    quota: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TYPE=N",
            help="How many of a type the cloud grants, e.g. aws:ec2/eip:Eip=2 (default: a new account's).",
        ),
    ] = None,
    until: Annotated[
        str,
        typer.Option(
            metavar="STEP",
            help=(
                "The last step to take, for a quick look: preview, policies, apply, no-op, ... (default:"
                " all)."
            ),
        ),
    ] = "",
    seed: Annotated[int, typer.Option(help="Chooses what fails, changes and is replaced.")] = 0,
    on_cluster: Annotated[
        str | None,
        typer.Option(
            metavar="[NAME]",
            help=(
                "Make Kubernetes' objects for real on the cluster of `trainfleet cluster up --name NAME`"
                " (`local` without a name). At the end it is "
                "as before."
            ),
        ),
    ] = None,
    context: Annotated[
        str, typer.Option(help="The same on the cluster of this context of your own kubeconfig.")
    ] = "",
    yes: Annotated[
        bool, typer.Option("--yes", help="You agree that objects are made and removed in that context.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help=(
                "On a cluster: only ask its API server what it would say of each object. STACK may be `all`."
            ),
        ),
    ] = False,
    leave: Annotated[
        bool,
        typer.Option(
            "--leave",
            help=(
                "On a cluster: stop after the second preview, and leave the stack there to be used (see"
                " --clean-up)."
            ),
        ),
    ] = False,
    clean_up: Annotated[
        bool,
        typer.Option(
            "--clean-up",
            help="On a cluster: only remove what --leave, or a rehearsal that was killed, left there.",
        ),
    ] = False,
) -> None:
    """See _HELP."""
    from trainfleet.errors import InputError, Problem
    from trainfleet.rehearsal.rehearse import RehearsalOptions, steps_of
    from trainfleet.rehearsal.report import Step
    from trainfleet.rehearsal.steps.fault_scenarios import FAULTS
    from trainfleet.suggestions import did_you_mean

    cluster = _cluster(on_cluster, context, agreed=yes) if on_cluster is not None or context else None
    if cluster is None and (flag := "--dry-run" * dry_run or "--leave" * leave or "--clean-up" * clean_up):
        raise InputError("no cluster is named", [Problem(flag, "is for a cluster", "--on-cluster NAME")])
    if leave and until:
        raise InputError(
            "two ends are named", [Problem("--leave", "stops after the second preview", "leave --until out")]
        )
    if cluster is not None and clean_up:
        _clean_up(cluster)
        return
    if cluster is not None and dry_run:
        _dry_run(target, cluster, as_json=as_json)
        return
    if cluster is not None and fault == "all":
        raise InputError(
            "not on a cluster",
            [
                Problem(
                    "--fault",
                    "`all` rehearses two stacks side by side",
                    "every, crash, throttle, lag or hang",
                )
            ],
        )
    if fault not in FAULTS:
        raise InputError("unknown fault", [Problem("--fault", f"{fault!r} is not known", ", ".join(FAULTS))])
    options = RehearsalOptions(
        fault=fault,
        seed=seed,
        keep=keep.resolve() if keep else None,
        until="no-op" if leave else until,
        cluster=cluster,
        leave=leave,
    )
    if until and until not in (names := [name for name, _, _ in steps_of(options)]):
        raise InputError(
            "unknown step",
            [Problem("--until", f"{until!r} is not a step", did_you_mean(until, names) or ", ".join(names))],
        )
    began = time.monotonic()
    project, settings, packs, subject = _subject(target, stack, overrides or [])
    checked = Step("check", "check", seconds=time.monotonic() - began)
    chosen = [pack.resolve() for pack in policy_pack] if policy_pack else packs
    for pack in chosen:
        if not (pack / "PulumiPolicy.yaml").is_file():
            raise InputError("not a policy pack", [Problem(str(pack), "has no PulumiPolicy.yaml")])
    for path in (resources, outputs):
        if path is not None and not path.resolve().parent.is_dir():
            raise InputError(
                "cannot write there",
                [Problem(str(path), "its folder does not exist", f"mkdir -p {path.parent}")],
            )
    options = replace(
        options, policy_packs=chosen, resources=resources, outputs=outputs, quotas=_quotas(quota or [])
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
            "two clusters are named",
            [Problem("--context", "is another cluster than --on-cluster", "leave one of them out")],
        )
    return target.named(context, agreed=agreed) if context else target.built_in(name or "local")


def _clean_up(cluster: Target) -> None:
    from trainfleet.console import out
    from trainfleet.rehearsal.on_cluster.leftovers import clean

    removed = clean(cluster)
    for each in removed:
        out().print(f"removed {each}", markup=False, soft_wrap=True)
    if not removed:
        out().print(f"nothing was left on {cluster.context}", markup=False, soft_wrap=True)


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
                status.update(f"{name}: applied to simulated clouds")
                found = objects_of(name)
                status.update(f"{name}: {len(found.documents)} objects asked about")
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
                    f"{each.stack}: {name}: no definition of this kind can be had here",
                    markup=False,
                    soft_wrap=True,
                )
    if any(each.refused for each in results):
        raise typer.Exit(1)


def _quotas(given: list[str]) -> dict[str, int]:
    from trainfleet.errors import InputError, Problem

    wrong = [text for text in given if not re.fullmatch(r"[\w-]+:[\w/.]+:\w+=\d+", text)]
    if wrong:
        raise InputError(
            "not a quota",
            [Problem("--quota", f"{text!r} is not TYPE=N", "aws:ec2/eip:Eip=2") for text in wrong],
        )
    return {token: int(most) for token, _, most in (text.partition("=") for text in given)}


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
                [Problem(target, "is a program of its own", "leave --set out")],
            )
        return read_project(folder.resolve(), stack), None, [], folder.resolve().name
    root = project_root()
    project = read_project(root, target)
    settings = stack_settings(target, root, overrides)
    pack = root / "policies"
    return project, settings, [pack] if (pack / "PulumiPolicy.yaml").is_file() else [], target


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
