"""`trainfleet diff`: parses arguments, shows progress on stderr, and writes the diff to stdout or a file.

Exit codes 2 and 3 describe the change, so all errors, including invalid input, exit with 1.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from typer.core import TyperCommand

from trainfleet.rehearsal.cli import diff_options as flags
from trainfleet.rehearsal.cli.diff_options import FORMATS

if TYPE_CHECKING:
    from trainfleet.rehearsal.diff.all_stacks import Report
    from trainfleet.rehearsal.diff.diff import DiffOptions, Show
    from trainfleet.rehearsal.diff.model import Diff
    from trainfleet.rehearsal.engine.find import Engine

EXIT_CODES = (
    "Exit codes: 0 no change; 1 error, including invalid input; 2 change; 3 destructive change (something is"
    " lost), an update that may replace and lose something, or a bootstrap that gives more access; 4 the head"
    " costs more than --fail-above or --fail-above-max, whatever else changes; 130 interrupted."
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
  pulumi stack export --stack aws-prod --file prod.json && trainfleet diff aws-prod --state prod.json

  pulumi preview --event-log preview.jsonl; trainfleet diff --events preview.jsonl

  trainfleet diff aws-prod --charts

  trainfleet diff --all --base origin/main --format markdown

  trainfleet diff ../other-project --stack prod

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
    stack: flags.Target = "",
    base: flags.Base = "",
    head: flags.Head = "",
    worktree: flags.Worktree = False,
    form: flags.Format = "table",
    as_json: flags.Json = False,
    output: flags.Output = None,
    cached: flags.Cached = True,
    state: flags.State = None,
    every: flags.Every = False,
    of: flags.StackOfFolder = "",
    jobs: flags.Jobs = 0,
    events: flags.Events = None,
    plan: flags.PlanFile = None,
    accept_other_stack: flags.AcceptOtherStack = False,
    accept_unknown: flags.AcceptUnknown = False,
    usage: flags.UsageFile = None,
    fail_above: flags.FailAbove = None,
    fail_above_max: flags.FailAboveMax = None,
    environments: flags.Environments = "",
    charts: flags.Charts = False,
) -> None:
    """See _HELP."""
    from trainfleet.console import run
    from trainfleet.infra.catalog.cost import CostLimits
    from trainfleet.rehearsal.diff.diff import DiffOptions

    found: list[Diff | Report] = []
    options = DiffOptions(
        base,
        head,
        worktree,
        cached,
        accept_unknown,
        limits=CostLimits(fail_above, fail_above_max),
        environments=environments,
        state=state,
        accept_other_stack=accept_other_stack,
        charts=charts,
    )
    form = "json" if as_json else form
    request = _Request(stack, of, options, events, every, jobs, form, output, usage, plan)
    code = run(lambda: found.append(_diff(request)))
    if code == 0 and found:
        code = found[0].exit_code
    elif code not in (0, 130):
        code = 1
    raise typer.Exit(code)


class _Request(NamedTuple):
    target: str
    stack: str
    options: DiffOptions
    events: Path | None
    every: bool
    jobs: int
    form: str
    output: Path | None
    usage: Path | None
    plan: Path | None = None

    @property
    def folder(self) -> Path | None:
        """The folder of a Pulumi project, if the target is one."""
        path = Path(self.target)
        return path.resolve() if self.target and (path / "Pulumi.yaml").is_file() else None


def _diff(request: _Request) -> Diff | Report:
    from trainfleet.errors import InputError, Problem
    from trainfleet.infra.catalog.usage import read_usage
    from trainfleet.rehearsal import last_results
    from trainfleet.rehearsal.diff.environments import MODES
    from trainfleet.rehearsal.diff.model import Diff
    from trainfleet.rehearsal.diff.output import write
    from trainfleet.suggestions import did_you_mean

    form, output = request.form, request.output
    if form not in FORMATS:
        raise InputError(
            "unknown format", [Problem("--format", f"`{form}` is not known", did_you_mean(form, FORMATS))]
        )
    if output is not None and not output.resolve().parent.is_dir():
        raise InputError(
            "cannot write there",
            [Problem(str(output), "its folder does not exist", f"mkdir -p {output.parent}")],
        )
    if request.options.environments not in ("", *MODES):
        mode = request.options.environments
        problem = Problem("--environments", f"`{mode}` is not known", did_you_mean(mode, MODES))
        raise InputError("unknown environments", [problem])
    if request.options.charts and shutil.which("helm") is None:
        problem = Problem("--charts", "needs helm, which is not on PATH", "install helm 3 or newer")
        raise InputError("cannot download charts", [problem])
    if request.usage:
        usage = read_usage(request.usage)
        request = request._replace(options=replace(request.options, usage=usage))
    given = [("--all", request.every), ("--stack", request.stack), ("--jobs", request.jobs)]
    if request.events is not None:
        _refuse_given(given, "with --events: a recording is of one stack")
        found: Diff | Report = _recorded(request)
    elif request.plan is not None:
        raise InputError(
            "conflicting options", [Problem("--plan", "belongs to a recording", "add --events FILE")]
        )
    elif request.every:
        found = _every(request)
    else:
        _refuse_given(given[2:], "without --all")
        found = _computed(request)
    write(found, form, output)
    diffs = [found] if isinstance(found, Diff) else found.diffs
    last_results.keep("diff", (each.as_json() for each in diffs), request.folder)
    if output is not None:
        typer.echo(_one_line(found), err=True)
    return found


def _one_line(found: Diff | Report) -> str:
    from trainfleet.rehearsal.diff.model import Diff

    if isinstance(found, Diff):
        return f"{found.verdict}; {found.stack}: {found.blast_radius}"
    return str(found.verdict)


def _every(request: _Request) -> Report:
    from trainfleet.console import err
    from trainfleet.rehearsal.diff.all_stacks import compute_all
    from trainfleet.rehearsal.project_lookup import any_project_root

    options = request.options
    wrong = [("--stack", request.stack), ("STACK", request.target if request.folder is None else "")]
    _refuse_given(wrong, "with --all: every affected stack is compared")
    _refuse("with --all", options, ("state", "accept_other_stack"), "an export is of one stack")
    root = request.folder or any_project_root()

    def done(stack: str) -> None:
        err().print(f"{stack} done", highlight=False)

    return compute_all(root, _engine, options, done, request.jobs)


def _recorded(request: _Request) -> Diff:
    from trainfleet.rehearsal.diff.real_preview import diff_of

    options, events = request.options, request.events
    assert events is not None
    sides = ("base", "head", "worktree", "state", "accept_other_stack", "environments", "charts")
    _refuse("with --events", options, sides, _RECORDED)
    return diff_of(
        events,
        request.target,
        accept_unknown=options.accept_unknown,
        plan=request.plan,
        usage=options.usage,
        limits=options.limits,
    )


_RECORDED = "both sides are in the recording"
_DEPLOYED = "the base is what is deployed"


def _computed(request: _Request) -> Diff:
    from trainfleet.rehearsal.diff.all_stacks import chosen_stack
    from trainfleet.rehearsal.diff.diff import compute
    from trainfleet.rehearsal.diff.on_state import compute_on_state
    from trainfleet.rehearsal.project_lookup import any_project_root

    options, folder = request.options, request.folder
    if options.state is None:
        _refuse("without --state", options, ("accept_other_stack",), "no state is read")
    else:
        _refuse("with --state", options, ("base", "environments"), _DEPLOYED)
    if folder is None:
        _refuse_given([("--stack", request.stack)], "without DIR: the stack is the argument")
    root = folder or any_project_root()
    stack = chosen_stack(root, request.stack if folder else request.target)
    run = compute if options.state is None else compute_on_state
    with _progress() as show:
        return run(stack, root, _engine, options, show)


def _refuse_given(given: Iterable[tuple[str, object]], why: str) -> None:
    from trainfleet.errors import InputError, Problem

    if problems := [Problem(name, f"has no meaning {why}", "omit it") for name, value in given if value]:
        raise InputError("conflicting options", problems)


def _refuse(when: str, options: DiffOptions, names: tuple[str, ...], why: str) -> None:
    """Reject options that have no meaning here."""
    from trainfleet.errors import InputError, Problem

    given = [f"--{name.replace('_', '-')}" for name in names if getattr(options, name)]
    if given:
        problems = [Problem(each, f"has no meaning {when}: {why}", "omit it") for each in given]
        raise InputError("conflicting options", problems)


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
