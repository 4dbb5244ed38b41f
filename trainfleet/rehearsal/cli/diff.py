"""`trainfleet diff`: parses arguments, shows progress on stderr, and writes the diff to stdout or a file.

Exit codes 2 and 3 describe the change, so all errors, including invalid input, exit with 1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
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
    " lost), or an update that may replace and lose something; 4 the head costs more than --fail-above or"
    " --fail-above-max, whatever else changes; 130 interrupted."
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

  trainfleet diff aws-prod --usage usage.toml --fail-above 3000

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
        str, typer.Argument(metavar="STACK", help="A stack of this project, in the base or in the head.")
    ],
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
    accept_unknown: Annotated[
        bool,
        typer.Option(
            "--accept-unknown",
            help="Count an update as an update if no rule tells whether the provider replaces the resource"
            " instead; without it, such an update exits with 3.",
        ),
    ] = False,
    usage: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Price traffic, logs and stored data as this TOML file assumes (docs/diff.md).",
        ),
    ] = None,
    fail_above: Annotated[
        float | None,
        typer.Option(
            metavar="USD", min=0, help="Exit with 4 if what always runs costs more than this a month."
        ),
    ] = None,
    fail_above_max: Annotated[
        float | None,
        typer.Option(
            metavar="USD",
            min=0,
            help="Exit with 4 if all pools at their largest cost more than this a month.",
        ),
    ] = None,
    environments: Annotated[
        str,
        typer.Option(
            metavar="own|same",
            help="Run each side with the provider SDKs that it locks, or both with the installed ones."
            " Default: own if they differ and can be installed.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """See _HELP."""
    from trainfleet.console import run
    from trainfleet.infra.catalog.cost import CostLimits
    from trainfleet.rehearsal.diff.diff import DiffOptions

    found: list[Diff] = []
    limits = CostLimits(fail_above, fail_above_max)
    options = DiffOptions(
        base, head, worktree, cached, accept_unknown, limits=limits, environments=environments
    )
    form = "json" if as_json else form
    code = run(lambda: found.append(_diff(stack, options, usage, form, output)))
    if code == 0 and found:
        code = found[0].exit_code
    elif code not in (0, 130):
        code = 1
    raise typer.Exit(code)


def _diff(stack: str, options: DiffOptions, usage: Path | None, form: str, output: Path | None) -> Diff:
    from trainfleet.errors import InputError, Problem
    from trainfleet.infra.catalog.usage import read_usage
    from trainfleet.rehearsal.diff.diff import compute
    from trainfleet.rehearsal.diff.environments import MODES
    from trainfleet.rehearsal.project_lookup import project_root
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
    if options.environments not in ("", *MODES):
        what = f"`{options.environments}` is not known"
        problem = Problem("--environments", what, did_you_mean(options.environments, MODES))
        raise InputError("unknown environments", [problem])
    if usage:
        options = replace(options, usage=read_usage(usage))
    with _progress() as show:
        found = compute(stack, project_root(), _engine, options, show)
    _write(found, form, output)
    return found


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
