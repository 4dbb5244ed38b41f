"""`trainfleet runs`: list, read, follow and stop the runs of every launcher."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainfleet.console import EXIT_CODES
from trainfleet.training.cli.dashboard import dashboard_command
from trainfleet.training.cli.options import AliasedCommand, Context, Json, Namespace, Run, Stack, minutes
from trainfleet.training.cli.run_places import StorageUrls, list_urls, reading
from trainfleet.training.cli.runs_cost import cost_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainfleet.training.launch.control import RunControl
    from trainfleet.training.launch.remote.where import Where
    from trainfleet.training.runs.listing import RunInfo

HELP = f"""List, read, follow and stop the runs of every launcher, from any machine.

[bold]Examples[/]

    trainfleet runs list

    trainfleet runs list --storage s3://my-bucket/runs

    trainfleet runs logs night-1 --context kind-kind --follow

    trainfleet runs stop night-1

{EXIT_CODES}"""

runs = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help=HELP,
)

StorageUrl = Annotated[
    str | None,
    typer.Option("--storage", metavar="DIR|URL", help="The run below this folder or URL, or the run's own."),
]


@runs.command("list", cls=AliasedCommand, epilog=EXIT_CODES)
def list_command(
    storage: StorageUrls = None,
    stack: Stack = None,
    context: Context = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """List runs: state, step, age, launcher, owner and cost so far.

    Without options these are the runs that were launched from this folder, on any launcher.

    [bold]Examples[/]

    trainfleet runs list

    trainfleet runs list --storage s3://my-bucket/runs

    trainfleet runs list --stack outputs.json --json
    """
    from trainfleet.console import out, print_json
    from trainfleet.training.launch.find_run import RUNS, list_cluster
    from trainfleet.training.launch.remote.where import Where
    from trainfleet.training.runs.listing import list_folder

    where, place = Where(stack, context, namespace), {}
    _require_one_place(where, storage)
    if storage:
        found, empty = list_urls(storage), f"{', '.join(storage)} has no runs"
    elif where.named or namespace is not None:
        cluster = where.connect()
        place = {"cluster": cluster.name, "namespace": cluster.namespace}
        found, empty = list_cluster(cluster), f"{cluster.name} {cluster.namespace} has no runs"
    else:
        found = list_folder(RUNS, reading())
        empty = f"{RUNS}/ has no runs; --stack, --context or --storage lists those of a cluster or store"
    if as_json:
        print_json({**place, "runs": [run.document() for run in found]})
        return
    if not found:
        out().print(empty, markup=False)
        return
    for line in table(found):
        out().print(line, markup=False, soft_wrap=True)


def table(found: Sequence[RunInfo]) -> list[str]:
    """The runs as lines, with a head."""
    from trainfleet.training.runtime.progress import duration

    rows = [("RUN", "STATE", "STEP", "AGE", "ON", "OWNER", "USD", "STORAGE")]
    for run in found:
        steps = f"/{run.steps}" if run.steps else ""
        step, age = "-" if run.step is None else f"{run.step}{steps}", run.age_s()
        message = f"  {run.message.splitlines()[-1]}" if run.message else ""
        rows.append(
            (
                run.name,
                run.state,
                step,
                "-" if age is None else duration(age),
                run.launcher or "-",
                run.owner or "-",
                "-" if run.usd is None else f"{run.usd:,.2f}",
                f"{run.home}{message}",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    ]


@runs.command("logs", cls=AliasedCommand, epilog=EXIT_CODES)
def logs_command(  # noqa: PLR0917 - Typer passes options by name
    run: Run,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the run ends.")] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Everything unchanged: events as JSON lines, and Ray's output.")
    ] = False,
    storage: StorageUrl = None,
    stack: Stack = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Show the log of a run: the same lines as on this machine, also after its machines are gone.

    [bold]Examples[/]

    trainfleet runs logs night-1

    trainfleet runs logs night-1 --follow --context kind-kind

    trainfleet runs logs night-1 --storage s3://my-bucket/runs

    trainfleet runs logs night-1 --raw | grep '"kind": "checkpoint"'
    """
    import sys

    for line in control_named(run, storage, stack, context, namespace).lines(follow=follow):
        if text := _shown(line, raw=raw):
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()


def _shown(line: dict[str, Any] | str, *, raw: bool) -> str:
    """A line of the log as it is printed; empty if it is not."""
    import json

    from trainfleet.training.runtime.progress import describe

    if raw:
        return json.dumps(line) if isinstance(line, dict) else line
    if isinstance(line, str):
        return ""
    if line["kind"] in ("error", "crash"):
        return f"{line['kind']}: {line.get('summary') or line.get('error')}"
    return describe(line)


@runs.command("stop", cls=AliasedCommand, epilog=EXIT_CODES)
def stop_command(  # noqa: PLR0917 - Typer passes options by name
    run: Run,
    now: Annotated[bool, typer.Option("--now", help="Do not wait for a last checkpoint.")] = False,
    within: Annotated[
        float,
        typer.Option(
            "--within",
            metavar="MINUTES",
            parser=minutes,
            help="How long saving may take: minutes, or a unit as in 90s, 5m. (Before 0.2: seconds.)",
        ),
    ] = 10.0,
    storage: StorageUrl = None,
    stack: Stack = None,
    context: Context = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Stop a run: it saves a checkpoint, then its machines are released. Launch it again to resume.

    [bold]Examples[/]

    trainfleet runs stop night-1

    trainfleet runs stop night-1 --within 90s

    trainfleet runs stop night-1 --now --stack outputs.json

    trainfleet runs stop night-1 --storage s3://my-bucket/runs

    The name of a launch with --clusters stops its run on every cluster; --stack, --context or --storage names
    one run.
    """
    from trainfleet.console import print_json
    from trainfleet.errors import TrainfleetError
    from trainfleet.training.launch.clusters.state import runs_of
    from trainfleet.training.launch.clusters.stop import require_unambiguous, stop_all
    from trainfleet.training.launch.find_run import find_run, in_folder
    from trainfleet.training.launch.remote.where import Where

    def stop_member(run_dir: Path) -> dict[str, Any]:
        control = in_folder(run_dir) or find_run(run_dir.name, Where())
        return _stop(control, now=now, within_s=within, as_json=as_json)

    members = runs_of(run) if stack is None and context is None and storage is None else []
    if not members:
        control = control_named(run, storage, stack, context, namespace)
        document = _stop(control, now=now, within_s=within, as_json=as_json)
        if as_json:
            print_json(document)
        return
    require_unambiguous(run, [each.name for each in members])
    documents, problems = stop_all(members, stop_member)
    if as_json:
        print_json({"name": run, "runs": documents})
    if problems:
        raise TrainfleetError("not every run was stopped", problems)


def _stop(control: RunControl, *, now: bool, within_s: float, as_json: bool) -> dict[str, Any]:
    """Stop one run; returns what `--json` prints."""
    from trainfleet.console import err, out

    name, home = control.ref.name, control.ref.home

    def report(text: str) -> None:
        err().print(f"{name} {text}", markup=False)

    how = control.stop(now=now, within_s=within_s, report=report)
    if not as_json:
        out().print(f"{name} {how}; its checkpoints are in {home}", markup=False, soft_wrap=True)
    return {"run": name, "how": how, "storage": home}


@runs.command("attach", cls=AliasedCommand, epilog=EXIT_CODES)
def attach_command(  # noqa: PLR0917 - Typer passes options by name
    run: Run,
    storage: StorageUrl = None,
    stack: Stack = None,
    context: Context = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Follow a run as if it had been launched here: its lines from the start, its report at the end.

    Ctrl-C and a closed terminal end only this command. `trainfleet runs stop` stops a run.

    [bold]Examples[/]

    trainfleet runs attach night-1

    trainfleet runs attach night-1 --storage s3://my-bucket/runs

    trainfleet runs attach night-1 --stack outputs.json --json
    """
    import tempfile

    from trainfleet.training.cli.outcome import report_end, start_and_report
    from trainfleet.training.launch.attach import attach

    control = control_named(run, storage, stack, context, namespace)
    with tempfile.TemporaryDirectory(prefix="trainfleet-") as folder:
        request = control.attach_request(Path(folder), as_json)
        if request is not None:
            start_and_report(request)
        else:
            report_end(attach(control, as_json=as_json), as_json=as_json)


def control_named(
    run: str, storage: str | None, stack: str | None, context: str | None, namespace: str | None
) -> RunControl:
    """The control of the run that a command names.

    Raises:
        InputError: there is no such run, or the options exclude each other.
    """
    from trainfleet.errors import InputError, Problem
    from trainfleet.training.launch.clusters.state import recorded
    from trainfleet.training.launch.find_run import RUNS, find_run, in_folder
    from trainfleet.training.launch.remote.where import Where

    where = Where(stack, context, namespace)
    here = storage is None and not where.named
    if here and in_folder(RUNS / run) is None and (members := recorded(run)):
        fix = f"name one of its runs: {', '.join(Path(each['run']).name for each in members)}"
        raise InputError("which run?", [Problem(run, "is a launch on several clusters", fix)])
    return find_run(run, where, storage)


def _require_one_place(where: Where, storage: Sequence[str] | None) -> None:
    from trainfleet.errors import InputError, Problem

    if storage and (where.named or where.namespace is not None):
        what = "lists a store, and --stack, --context and --namespace a cluster"
        raise InputError(
            "options that do not go together", [Problem("--storage", what, "leave out one of them")]
        )


runs.command("cost", cls=AliasedCommand, epilog=EXIT_CODES)(cost_command)
runs.command("dashboard", cls=AliasedCommand, epilog=EXIT_CODES)(dashboard_command)
