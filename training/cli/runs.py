"""`trainfleet runs`: list, read, follow and stop the runs in a Kubernetes cluster."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from trainfleet.console import EXIT_CODES
from trainfleet.training.cli.options import AliasedCommand, Context, Json, Namespace, Run, Stack, minutes

HELP = f"""List, read, follow and stop the runs in a Kubernetes cluster.

[bold]Examples[/]

    trainfleet runs list --stack outputs.json

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


@runs.command("list", cls=AliasedCommand, epilog=EXIT_CODES)
def list_command(
    stack: Stack = None, context: Context = None, namespace: Namespace = None, as_json: Json = False
) -> None:
    """List the runs of a namespace: state, age, and where the checkpoints are.

    [bold]Examples[/]

    trainfleet runs list

    trainfleet runs list --stack outputs.json --json
    """
    from trainfleet.console import out, print_json
    from trainfleet.training.cli.connection import connect_to, rejections_explained
    from trainfleet.training.launch.kuberay.runs import list_runs
    from trainfleet.training.runtime.progress import duration

    with rejections_explained(cluster := connect_to(stack, context, namespace)):
        found = list_runs(cluster)
    if as_json:
        documents = [run.document() for run in found]
        print_json({"cluster": cluster.name, "namespace": cluster.namespace, "runs": documents})
        return
    if not found:
        out().print(f"{cluster.name} {cluster.namespace} has no runs", markup=False)
    width = max((len(run.name) for run in found), default=0)
    for run in found:
        failed = run.state in ("failed", "rejected by KubeRay") and run.message
        message = f"  {run.message.splitlines()[-1]}" if failed else ""
        line = f"{run.name:<{width}}  {run.state:<12} {duration(run.age_s()):>7}  {run.storage}{message}"
        out().print(line, markup=False, soft_wrap=True)


@runs.command("logs", cls=AliasedCommand, epilog=EXIT_CODES)
def logs_command(  # noqa: PLR0917 - Typer passes options by name
    run: Run,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the run ends.")] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Everything unchanged: events as JSON lines, and Ray's output.")
    ] = False,
    stack: Stack = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Show the log of a run: the same lines as on this machine, also after its machines are gone.

    [bold]Examples[/]

    trainfleet runs logs night-1

    trainfleet runs logs night-1 --follow --context kind-kind

    trainfleet runs logs night-1 --raw | grep '"kind": "checkpoint"'
    """
    import sys

    from trainfleet.training.cli.connection import connect_to, rejections_explained
    from trainfleet.training.launch.kuberay.runs import find, lines

    with rejections_explained(cluster := connect_to(stack, context, namespace, run)):
        for line in lines(cluster, find(cluster, run), follow=follow):
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

    The name of a launch with --clusters stops its run on every cluster; --stack or --context names one.
    """
    from trainfleet.console import print_json
    from trainfleet.errors import TrainfleetError
    from trainfleet.training.launch.clusters.group import runs_of
    from trainfleet.training.launch.clusters.stop import require_unambiguous, stop_all

    def stop_one(name: str) -> dict[str, Any]:
        return _stop(name, (stack, context, namespace), now=now, within_s=within, as_json=as_json)

    members = runs_of(run) if stack is None and context is None else []
    if not members:
        document = stop_one(run)
        if as_json:
            print_json(document)
        return
    require_unambiguous(run, members)
    documents, problems = stop_all(members, stop_one)
    if as_json:
        print_json({"name": run, "runs": documents})
    if problems:
        raise TrainfleetError("not every run was stopped", problems)


def _stop(
    run: str, where: tuple[str | None, str | None, str | None], *, now: bool, within_s: float, as_json: bool
) -> dict[str, Any]:
    """Stop one run on its cluster; returns what `--json` prints."""
    from trainfleet.console import err, out
    from trainfleet.training.cli.connection import connect_to, rejections_explained
    from trainfleet.training.launch.kuberay.runs import find, stop

    def report(text: str) -> None:
        err().print(f"{run} {text}", markup=False)

    with rejections_explained(cluster := connect_to(*where, run)):
        found = find(cluster, run)
        how = stop(cluster, found, now=now, within_s=within_s, report=report)
    if not as_json:
        out().print(f"{run} {how}; its checkpoints are in {found.storage}", markup=False, soft_wrap=True)
    return {"run": run, "how": how, "storage": found.storage}


@runs.command("attach", cls=AliasedCommand, epilog=EXIT_CODES)
def attach_command(
    run: Run,
    stack: Stack = None,
    context: Context = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Follow a run as if it had been launched here: its lines from the start, its report at the end.

    Ctrl-C and a closed terminal end only this command. `trainfleet runs stop` stops a run.

    [bold]Examples[/]

    trainfleet runs attach night-1

    trainfleet runs attach night-1 --stack outputs.json --json
    """
    import tempfile
    from pathlib import Path

    from trainfleet.training.cli.connection import connect_to, launched_on, rejections_explained
    from trainfleet.training.cli.outcome import start_and_report
    from trainfleet.training.launch.kuberay.options import KubeRayOptions
    from trainfleet.training.launch.kuberay.runs import code_of, find, recipe_of
    from trainfleet.training.launch.request import Request
    from trainfleet.training.runtime import code_archive

    if stack is None and context is None:
        stack, context, launched_in = launched_on(run)
        namespace = namespace or launched_in
    with rejections_explained(cluster := connect_to(stack, context, namespace)):
        found = find(cluster, run)
        text, code = recipe_of(cluster, found), code_of(cluster, found)
    options = KubeRayOptions(
        attach=True,
        launch=found.launch,
        cluster=found.ray_cluster if found.shared else None,
        context=None if stack else cluster.name,
        namespace=cluster.namespace,
        image="as-launched",
    )
    with tempfile.TemporaryDirectory(prefix="trainfleet-") as folder:
        file = Path(folder) / "recipe.yaml"
        file.write_text(text, encoding="utf-8")
        code_archive.use(code, f"{folder}/code")
        request = Request(
            str(file),
            on="kuberay",
            stacks=(stack,) if stack else (),
            storage=_storage(text),
            json=as_json,
            options=options,
            launched_code=code,
        )
        start_and_report(request)


def _storage(recipe: str) -> str | None:
    """Where the run stores its checkpoints, which the stack's storage must not replace."""
    import yaml

    document: Any = yaml.safe_load(recipe)
    return str(document["storage"]) if isinstance(document, dict) and "storage" in document else None
