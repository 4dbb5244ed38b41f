"""`trainfleet rehearse`: a stack of this project, or any folder with a Python Pulumi program.

Reads arguments, shows progress on stderr and the result on stdout; the work is in `rehearse.py`.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rehearsal.engine import Engine
    from rehearsal.report import Report, Step
    from rehearsal.sandbox import Project

rehearse = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)

_HELP = """Try a stack on the real Pulumi engine over simulated clouds: no account, no key, no network.

Every step from the first preview to the last delete, with an apply that is broken in the middle and resumed. Properties are checked
against the installed provider SDKs. Exit code 0 only if each step was as expected.

[bold]Examples[/]

  trainfleet rehearse aws-dev

  trainfleet rehearse aws-prod --json --resources planned.jsonl

  trainfleet rehearse aws-prod --until preview

  trainfleet rehearse aws-dev --set network.zones=3 --outputs platform.json

  trainfleet rehearse ../my-program --policy-pack policies --fault every

  trainfleet rehearse aws-prod --fault all
"""


@rehearse.command(help=_HELP)
def main(  # noqa: PLR0917 - one per flag
    target: Annotated[str, typer.Argument(metavar="STACK|DIR", help="A stack of this project, or a folder with a Pulumi.yaml.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout instead of the table.")] = False,
    resources: Annotated[
        Path | None, typer.Option(help="Write every planned resource as a line of JSON (type, name, urn, inputs; secrets masked).")
    ] = None,
    outputs: Annotated[Path | None, typer.Option(help="Write the stack's outputs (the platform document, where there is one) as JSON.")] = None,
    keep: Annotated[Path | None, typer.Option(metavar="DIR", help="Leave the engine's state and logs in a folder below DIR.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Change the platform spec for this rehearsal.")] = None,
    policy_pack: Annotated[list[Path] | None, typer.Option(help="A policy pack to apply (default for stacks: policies).")] = None,
    stack: Annotated[str, typer.Option(help="For a DIR: which stack's settings to use.")] = "",
    fault: Annotated[
        str,
        typer.Option(
            help="What goes wrong: `one` create fails, or `every` resource's first; the engine dies in a `crash`; the cloud `throttle`s, is seen with a "
            "`lag`, lets things `hang`; or `all` of it, and every update and delete fails once too."
        ),
    ] = "one",
    quota: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE=N", help="How many of a type the cloud grants, e.g. aws:ec2/eip:Eip=2 (default: a new account's)."),
    ] = None,
    until: Annotated[
        str, typer.Option(metavar="STEP", help="The last step to take, for a quick look: preview, policies, apply, no-op, ... (default: all).")
    ] = "",
    seed: Annotated[int, typer.Option(help="Chooses what fails, changes and is replaced.")] = 0,
) -> None:
    """See _HELP."""
    from rehearsal.breakage import FAULTS
    from rehearsal.rehearse import Wishes
    from rehearsal.report import Step
    from rehearsal.steps import STEPS
    from trainfleet.errors import InputError, Problem
    from trainfleet.nearest import did_you_mean

    if fault not in FAULTS:
        raise InputError("unknown fault", [Problem("--fault", f"{fault!r} is not known", ", ".join(FAULTS))])
    if until and until not in (names := [name for name, _, _ in STEPS]):
        raise InputError("unknown step", [Problem("--until", f"{until!r} is not a step", did_you_mean(until, names) or ", ".join(names))])
    began = time.monotonic()
    project, settings, packs, subject = _subject(target, stack, overrides or [])
    checked = Step("check", "check", seconds=time.monotonic() - began)
    chosen = [pack.resolve() for pack in policy_pack] if policy_pack else packs
    for pack in chosen:
        if not (pack / "PulumiPolicy.yaml").is_file():
            raise InputError("not a policy pack", [Problem(str(pack), "has no PulumiPolicy.yaml")])
    for path in (resources, outputs):
        if path is not None and not path.resolve().parent.is_dir():
            raise InputError("cannot write there", [Problem(str(path), "its folder does not exist", f"mkdir -p {path.parent}")])
    wishes = Wishes(chosen, fault, seed, keep.resolve() if keep else None, resources, outputs, until, _quotas(quota or []))
    report = _run(project, _engine(), wishes, (subject, settings, checked))
    _print(report, as_json=as_json)
    if not report.ok:
        raise typer.Exit(1)


def _quotas(given: list[str]) -> dict[str, int]:
    from trainfleet.errors import InputError, Problem

    wrong = [text for text in given if not re.fullmatch(r"[\w-]+:[\w/.]+:\w+=\d+", text)]
    if wrong:
        raise InputError("not a quota", [Problem("--quota", f"{text!r} is not TYPE=N", "aws:ec2/eip:Eip=2") for text in wrong])
    return {token: int(most) for token, _, most in (text.partition("=") for text in given)}


def _subject(target: str, stack: str, overrides: list[str]) -> tuple[Project, dict[str, Any] | None, list[Path], str]:
    """Return the project, changed settings (or None), its default policy packs, and what to call it."""
    from rehearsal.sandbox import read_project
    from rehearsal.subject import project_root, stack_settings
    from trainfleet.errors import InputError, Problem

    folder = Path(target)
    if (folder / "Pulumi.yaml").is_file() or (folder.is_dir() and "/" in target):
        if overrides:
            raise InputError("--set changes a platform spec", [Problem(target, "is a program of its own", "leave --set out")])
        return read_project(folder.resolve(), stack), None, [], folder.resolve().name
    root = project_root()
    project = read_project(root, target)
    settings = stack_settings(target, root, overrides)
    pack = root / "policies"
    return project, settings, [pack] if (pack / "PulumiPolicy.yaml").is_file() else [], target


def _engine() -> Engine:
    from rehearsal.engine import find_engine
    from trainfleet.console import err

    console = err()
    with console.status("looking for the Pulumi engine") as status:
        return find_engine(lambda line: status.update(line) if console.is_terminal else console.print(line, highlight=False))


def _run(project: Project, engine: Engine, wishes: Any, what: tuple[str, dict[str, Any] | None, Step]) -> Report:
    from rehearsal.progress import shown
    from rehearsal.rehearse import rehearse as run

    subject, settings, checked = what
    with shown() as show:
        return run(project, engine, wishes, subject=subject, settings=settings, show=show, checked=checked)


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
        console.print(f"[yellow]no replacement rules for:[/] {escape(', '.join(report.missing_rules))}", soft_wrap=True)
    for problem in report.problems:
        where = f"[bold]{escape(problem.where)}[/]: " if problem.where else ""
        fix = f" [green]-> {escape(problem.fix)}[/]" if problem.fix else ""
        console.print(f"  [red]✗[/] {where}{escape(problem.what)}{fix}", soft_wrap=True)
    if report.kept:
        console.print(f"kept in {escape(report.kept)}", soft_wrap=True)
