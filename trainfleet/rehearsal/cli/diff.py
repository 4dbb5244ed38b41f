"""`trainfleet diff`: parses arguments, shows progress on stderr, and writes the diff to stdout or a file.

Exit codes 2 and 3 describe the change, so all errors, including invalid input, exit with 1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from trainfleet.rehearsal.diff.diff import DiffOptions, Show
    from trainfleet.rehearsal.diff.model import Diff
    from trainfleet.rehearsal.engine.find import Engine

FORMATS = ("table", "markdown", "html", "json")
EXIT_CODES = (
    "Exit codes: 0 no change; 1 error, including invalid input; 2 change; 3 destructive change (something is"
    " lost), or an update that may replace and lose something; 130 interrupted."
)

_HELP = (
    """Show what a change would do to a stack: what it creates, updates, [bold]replaces[/] and loses, what """
    """it costs, and which policies it violates.

Base and head are built from git in clean folders. The real engine applies the base to a simulated cloud """
    """and previews the head on it. No account, key or network needed.

The default for BASE is the commit where the head branched off main (on main: the previous commit), and """
    """for HEAD the checked-out commit. The working tree must be clean, unless --worktree is given.

[bold]Examples[/]

  trainfleet diff aws-prod

  trainfleet diff aws-prod --base v1.4 --format markdown

  trainfleet diff aws-prod --worktree

  trainfleet diff gcp-prod --base origin/main --format html --output diff.html

  pulumi stack export --stack aws-prod --file prod.json && trainfleet diff aws-prod --state prod.json

  pulumi preview --event-log preview.jsonl; trainfleet diff --events preview.jsonl

"""
    f"{EXIT_CODES}\n"
)


class DiffCommand(TyperCommand):
    """Exits with 1 on a usage error; Click's default of 2 means here that something changes."""

    def make_context(self, *arguments: Any, **settings: Any) -> Any:
        try:
            return super().make_context(*arguments, **settings)
        except Exception as error:
            if getattr(error, "exit_code", None) == 2:
                error.exit_code = 1  # type: ignore[attr-defined] # a usage error of Click, which Typer hides
            raise


diff = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@diff.command(cls=DiffCommand, help=_HELP)
def main(  # noqa: PLR0917 - one per flag
    stack: Annotated[
        str,
        typer.Argument(
            metavar="[STACK]", help="A stack of this project, in the base or in the head.", show_default=False
        ),
    ] = "",
    base: Annotated[
        str, typer.Option(metavar="REF", help="Compare with this commit, branch or tag.", show_default=False)
    ] = "",
    head: Annotated[
        str,
        typer.Option(
            metavar="REF", help="Compare this instead of HEAD; `.` is the working tree.", show_default=False
        ),
    ] = "",
    worktree: Annotated[
        bool, typer.Option("--worktree", help="Compare the files as they are, including uncommitted changes.")
    ] = False,
    form: Annotated[
        str, typer.Option("--format", metavar="|".join(FORMATS), help="The output format.")
    ] = "table",
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the diff to this file, atomically."),
    ] = None,
    cached: Annotated[
        bool,
        typer.Option("--cache/--no-cache", help="Cache the applied base, and use a cached one."),
    ] = True,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Compare with what is deployed instead of with a commit: the file of `pulumi stack export`.",
        ),
    ] = None,
    events: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Show a real preview, from the file of `pulumi preview --event-log` or `--json`; needs no"
            " project.",
        ),
    ] = None,
    accept_other_stack: Annotated[
        bool,
        typer.Option(
            "--accept-other-stack",
            help="Accept a --state of another stack or project, as if it were of this one.",
        ),
    ] = False,
    accept_unknown: Annotated[
        bool,
        typer.Option(
            "--accept-unknown",
            help="Count an update as an update if no rule tells whether the provider replaces the resource"
            " instead; without it, such an update exits with 3.",
        ),
    ] = False,
) -> None:
    """See _HELP."""
    from trainfleet.console import run
    from trainfleet.rehearsal.diff.diff import DiffOptions

    options = DiffOptions(base, head, worktree, cached, accept_unknown, state, accept_other_stack)
    found: list[Diff] = []
    code = run(lambda: found.append(_diff(stack, options, events, "json" if as_json else form, output)))
    if code == 0 and found:
        code = found[0].exit_code
    elif code not in (0, 130):
        code = 1
    raise typer.Exit(code)


def _diff(stack: str, options: DiffOptions, events: Path | None, form: str, output: Path | None) -> Diff:
    from trainfleet.errors import InputError, Problem
    from trainfleet.suggestions import did_you_mean

    if form not in FORMATS:
        raise InputError(
            "unknown format", [Problem("--format", f"`{form}` is not known", did_you_mean(form, FORMATS))]
        )
    if output is not None and not output.resolve().parent.is_dir():
        raise InputError(
            "cannot write there",
            [Problem(str(output), "its folder does not exist", f"mkdir -p {output.parent}")],
        )
    found = _recorded(stack, options, events) if events else _computed(stack, options)
    _write(found, form, output)
    return found


def _recorded(stack: str, options: DiffOptions, events: Path) -> Diff:
    from trainfleet.rehearsal.diff.real_preview import diff_of

    _refuse("with --events", options, ("base", "head", "worktree", "state", "accept_other_stack"), _RECORDED)
    return diff_of(events, stack, accept_unknown=options.accept_unknown)


_RECORDED = "both sides are in the recording"
_DEPLOYED = "the base is what is deployed"


def _computed(stack: str, options: DiffOptions) -> Diff:
    from trainfleet.errors import InputError, Problem
    from trainfleet.rehearsal.diff.diff import compute
    from trainfleet.rehearsal.diff.on_state import compute_on_state
    from trainfleet.rehearsal.project_lookup import project_root, stack_names

    if not stack:
        fix = f"one of: {', '.join(stack_names(project_root()))}"
        raise InputError("which stack?", [Problem("STACK", "is missing", fix)])
    if options.state is None:
        _refuse("without --state", options, ("accept_other_stack",), "no state is read")
    else:
        _refuse("with --state", options, ("base",), _DEPLOYED)
    run = compute if options.state is None else compute_on_state
    with _progress() as show:
        return run(stack, project_root(), _engine, options, show)


def _refuse(when: str, options: DiffOptions, names: tuple[str, ...], why: str) -> None:
    """Reject options that have no meaning here."""
    from trainfleet.errors import InputError, Problem

    given = [f"--{name.replace('_', '-')}" for name in names if getattr(options, name)]
    if given:
        problems = [Problem(each, f"has no meaning {when}: {why}", "omit it") for each in given]
        raise InputError("conflicting options", problems)


def _write(found: Diff, form: str, output: Path | None) -> None:
    from trainfleet.console import out, print_json
    from trainfleet.files import write_whole
    from trainfleet.rehearsal.diff.render import as_html, as_markdown, as_table, as_text

    if form == "table" and output is None:
        as_table(found, out())
        return
    if form == "json" and output is None:
        print_json(found.as_json())
        return
    text = {"table": as_text, "markdown": as_markdown, "html": as_html, "json": _json}[form](found)
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_whole(output, text)
        typer.echo(f"{found.stack}: {found.verdict}; {found.blast_radius}", err=True)


def _json(found: Diff) -> str:
    import json

    return json.dumps(found.as_json(), indent=2, default=str) + "\n"


def _engine() -> Engine:
    from trainfleet.console import err
    from trainfleet.rehearsal.engine.find import find_engine

    return find_engine(lambda line: err().print(line, highlight=False))


@contextlib.contextmanager
def _progress() -> Iterator[Show]:
    """Show one progress line on a terminal; print nothing to a log."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from trainfleet.console import err
    from trainfleet.rehearsal.diff.diff import Show

    console = err()
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.completed:.0f} resources"),
        TimeElapsedColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal, redirect_stdout=False
    ) as bars:
        task = bars.add_task("starting", total=None)
        yield Show(
            begin=lambda what: bars.reset(task, description=what, total=None),
            resource=lambda _, count: bars.advance(task, count),
        )
