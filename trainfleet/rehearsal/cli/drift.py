"""`trainfleet drift`: what differs between a stack's state and its cloud.

Exit code 3 means drift, so a missing Pulumi exits with 1 here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

if TYPE_CHECKING:
    from trainfleet.rehearsal.drift.model import DriftReport, DriftReports
    from trainfleet.rehearsal.drift.refresh import Progress

EXIT_CODES = (
    "Exit codes: 0 no drift; 1 unknown: Pulumi is missing or failed, or the recording is"
    " incomplete; 2 wrong input; 3 drift; 130 interrupted."
)
_HELP = (
    f"""Show what differs between the state of a stack and its cloud, and what the next `pulumi up` does.

Your own Pulumi refreshes the stack with your login and credentials, and previews the program on what it """
    """\
found. Nothing is changed or saved. With --events, a recording is read instead, and no Pulumi is needed.

[bold]Examples[/]

  trainfleet drift aws-prod

  trainfleet drift --all --markdown drift.md

  trainfleet drift aws-prod --refresh-only --json

  trainfleet drift ../other-project --stack prod

  pulumi refresh --preview-only --event-log refresh.jsonl; trainfleet drift --events refresh.jsonl

"""
    f"{EXIT_CODES}\n"
)

drift = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


class _Request(NamedTuple):
    target: str
    stack: str
    every: bool
    events: Path | None
    refresh_only: bool

    @property
    def folder(self) -> Path | None:
        """The folder of a Pulumi project, if the target is one."""
        path = Path(self.target)
        return path.resolve() if self.target and (path / "Pulumi.yaml").is_file() else None


@drift.command(help=_HELP)
def main(  # noqa: PLR0917 - one per flag
    target: Annotated[
        str,
        typer.Argument(
            metavar="STACK|DIR",
            help="A stack of this project, or the folder of any Pulumi project.",
            show_default=False,
        ),
    ] = "",
    of: Annotated[
        str, typer.Option("--stack", metavar="NAME", help="The stack of DIR.", show_default=False)
    ] = "",
    every: Annotated[
        bool, typer.Option("--all", help="Every stack of the project that is deployed.")
    ] = False,
    events: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Read a recording: the file of `pulumi refresh --preview-only --event-log`, or of"
            " `pulumi preview --refresh --event-log`.",
        ),
    ] = None,
    refresh_only: Annotated[
        bool,
        typer.Option(
            "--refresh-only",
            help="Do not run the program: what the next up does then follows from the rules of the types.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    markdown: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the body of an issue, without drift too."),
    ] = None,
) -> None:
    """See _HELP."""
    from trainfleet.console import run

    found: list[DriftReport | DriftReports] = []
    request = _Request(target, of, every, events, refresh_only)
    code = run(lambda: found.append(_drift(request, as_json=as_json, markdown=markdown)))
    if code == 0 and found:
        code = found[0].exit_code
    elif code not in (0, 2, 130):
        code = 1
    raise typer.Exit(code)


def _drift(request: _Request, *, as_json: bool, markdown: Path | None) -> DriftReport | DriftReports:
    from trainfleet.console import err, out, print_json
    from trainfleet.errors import InputError, Problem
    from trainfleet.files import write_whole
    from trainfleet.rehearsal import last_results
    from trainfleet.rehearsal.drift.model import DriftReport
    from trainfleet.rehearsal.drift.render import as_markdown, as_table

    if markdown is not None and not markdown.resolve().parent.is_dir():
        fix = f"mkdir -p {markdown.parent}"
        raise InputError("cannot write there", [Problem(str(markdown), "its folder does not exist", fix)])
    if request.events is not None:
        found: DriftReport | DriftReports = _recorded(request, request.events)
    elif request.every:
        found = _every(request)
    else:
        found = _one(request)
    reports = [found] if isinstance(found, DriftReport) else found.reports
    last_results.keep("drift", (each.as_json() for each in reports), request.folder)
    if markdown is not None:
        write_whole(markdown, as_markdown(found))
    if as_json:
        print_json(found.as_json())
        return found
    for each in [found] if isinstance(found, DriftReport) else found.reports:
        as_table(each, out())
    if not isinstance(found, DriftReport):
        for what, rows in (("failed", found.failed), ("skipped", found.skipped)):
            for row in rows:
                err().print(f"{what} {row.stack}: {row.why}", markup=False, soft_wrap=True)
    return found


def _refuse(given: Iterable[tuple[str, object]], why: str) -> None:
    from trainfleet.errors import InputError, Problem

    if problems := [Problem(name, f"has no meaning {why}", "omit it") for name, value in given if value]:
        raise InputError("conflicting options", problems)


def _recorded(request: _Request, events: Path) -> DriftReport:
    from trainfleet.errors import InputError, Problem
    from trainfleet.rehearsal import accepted
    from trainfleet.rehearsal.diff import event_log
    from trainfleet.rehearsal.drift.assess import assess

    given = [("--all", request.every), ("--refresh-only", request.refresh_only)]
    _refuse(given, "with --events: the recording is already made")
    if request.folder is None:
        _refuse([("--stack", request.stack)], "without DIR: the stack is the argument")
    log = event_log.read(events)
    requested = request.stack if request.folder else request.target
    if requested and log.stack and requested.rsplit("/", 1)[-1] != log.stack:
        what = f"is of the stack `{log.stack}`, not `{requested}`"
        raise InputError("the recording is of another stack", [Problem(str(events), what)])
    root = request.folder or Path.cwd()
    return assess(log, f"recorded in {events.name}", accepted=accepted.read(root).drift)


def _one(request: _Request) -> DriftReport:
    from trainfleet.rehearsal.diff.all_stacks import chosen_stack
    from trainfleet.rehearsal.drift.all_stacks import drift_of_stack
    from trainfleet.rehearsal.drift.refresh import users_engine
    from trainfleet.rehearsal.project_lookup import any_project_root

    if request.folder is None:
        _refuse([("--stack", request.stack)], "without DIR: the stack is the argument")
    root = request.folder or any_project_root()
    stack = chosen_stack(root, request.stack if request.folder else request.target)
    with _progress(stack) as progress:
        return drift_of_stack(
            root, stack, users_engine(), program=not request.refresh_only, progress=progress
        )


def _every(request: _Request) -> DriftReports:
    from trainfleet.rehearsal.drift.all_stacks import drift_of_all
    from trainfleet.rehearsal.drift.refresh import users_engine
    from trainfleet.rehearsal.project_lookup import any_project_root

    wrong = [("--stack", request.stack), ("STACK", request.target if request.folder is None else "")]
    _refuse(wrong, "with --all: every stack is checked")
    root = request.folder or any_project_root()
    with _progress("") as progress:
        return drift_of_all(root, users_engine(), program=not request.refresh_only, progress=progress)


@contextlib.contextmanager
def _progress(stack: str) -> Iterator[Progress]:
    """Show one progress line on a terminal; print nothing to a log."""
    from rich.progress import Progress as Bars
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    from trainfleet.console import err

    console = err()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(f"refreshing {stack}", total=None)
        count = 0

        def show(urn: str) -> None:
            nonlocal count
            count += 1
            parts = urn.split("::")
            stack_of = parts[0].rsplit(":", 1)[-1]
            bars.update(task, description=f"{stack_of}: {count} resources, {parts[-1]}")

        yield show
