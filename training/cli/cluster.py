"""`trainfleet runs` and `trainfleet dashboard`: the runs that a Kubernetes cluster holds, from any machine
that may look at it.

Answers `--help` without importing the Kubernetes client. Easy to get wrong: which cluster is meant is said in
the same way as for
`trainfleet launch --on kuberay`, or it is the one that the kubeconfig has in use.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainfleet.console import EXIT_CODES

if TYPE_CHECKING:
    from trainfleet.training.launch.kuberay.client import Cluster

_RUNS_HELP = f"""The runs that a Kubernetes cluster holds.

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
    help=_RUNS_HELP,
)
dashboard = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)

Stack = Annotated[
    str | None,
    typer.Option("--stack", metavar="OUTPUTS.json|STACK", help="The platform whose cluster is meant."),
]
Context = Annotated[
    str | None,
    typer.Option(
        "--context", metavar="NAME", help="A context of your kubeconfig; by default the one in use."
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace", metavar="NS", help="By default the stack's, else the context's, else `training`."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Name = Annotated[str, typer.Argument(metavar="RUN", help="The run's name.", show_default=False)]


@runs.command("list", epilog=EXIT_CODES)
def list_command(
    stack: Stack = None, context: Context = None, namespace: Namespace = None, as_json: Json = False
) -> None:
    """List the runs of a namespace: what each is doing, since when, and where its checkpoints are.

    [bold]Examples[/]

    trainfleet runs list

    trainfleet runs list --stack outputs.json --json
    """
    from trainfleet.console import out, print_json
    from trainfleet.training.launch.kuberay.runs import held
    from trainfleet.training.runtime.progress import duration

    with _refusals(cluster := _cluster(stack, context, namespace)):
        found = held(cluster)
    if as_json:
        print_json(
            {
                "cluster": cluster.name,
                "namespace": cluster.namespace,
                "runs": [run.document() for run in found],
            }
        )
        return
    if not found:
        out().print(f"{cluster.name} {cluster.namespace} holds no runs", markup=False)
    width = max((len(run.name) for run in found), default=0)
    for run in found:
        message = (
            f"  {run.message.splitlines()[-1]}"
            if run.message and run.state in ("failed", "refused by KubeRay")
            else ""
        )
        out().print(
            f"{run.name:<{width}}  {run.state:<12} {duration(run.age_s()):>7}  {run.storage}{message}",
            markup=False,
            soft_wrap=True,
        )


@runs.command("logs", epilog=EXIT_CODES)
def logs_command(  # noqa: PLR0917 - Typer passes options by name
    run: Name,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Everything as it was said: events as JSON lines, and Ray's own words."),
    ] = False,
    stack: Stack = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Show what a run has said: the same lines as on this machine, also when its machines are gone.

    [bold]Examples[/]

    trainfleet runs logs night-1

    trainfleet runs logs night-1 --follow --context kind-kind

    trainfleet runs logs night-1 --raw | grep '"kind": "checkpoint"'
    """
    import json
    import sys

    from trainfleet.training.launch.kuberay.runs import find, lines
    from trainfleet.training.runtime.progress import describe

    with _refusals(cluster := _cluster(stack, context, namespace, run)):
        for line in lines(cluster, find(cluster, run), follow=follow):
            text = (
                (json.dumps(line) if isinstance(line, dict) else line)
                if raw
                else describe(line)
                if isinstance(line, dict)
                else ""
            )
            if isinstance(line, dict) and line["kind"] in ("error", "crash") and not raw:
                text = f"{line['kind']}: {line.get('summary') or line.get('error')}"
            if text:
                sys.stdout.write(f"{text}\n")
                sys.stdout.flush()


@runs.command("stop", epilog=EXIT_CODES)
def stop_command(  # noqa: PLR0917 - Typer passes options by name
    run: Name,
    now: Annotated[bool, typer.Option("--now", help="Do not wait for a last checkpoint.")] = False,
    within: Annotated[
        float, typer.Option("--within", metavar="SECONDS", min=1, help="How long it may take to save.")
    ] = 180.0,
    stack: Stack = None,
    context: Context = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """End a run: it saves a checkpoint first, then its machines are given back. Launched again it goes on
    from there.

    [bold]Examples[/]

    trainfleet runs stop night-1

    trainfleet runs stop night-1 --now --stack outputs.json
    """
    from trainfleet.console import err, out, print_json
    from trainfleet.training.launch.kuberay.runs import find, stop

    with _refusals(cluster := _cluster(stack, context, namespace, run)):
        found = find(cluster, run)
        how = stop(
            cluster,
            found,
            now=now,
            within_s=within,
            say=lambda text: err().print(f"{run} {text}", markup=False),
        )
    if as_json:
        print_json({"run": run, "how": how, "storage": found.storage})
    else:
        out().print(f"{run} {how}; its checkpoints are in {found.storage}", markup=False, soft_wrap=True)


@runs.command("attach", epilog=EXIT_CODES)
def attach_command(
    run: Name,
    stack: Stack = None,
    context: Context = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Come back to a run, as if it had been launched here: its lines from the start, its report at the end.
    Ctrl-C stops the run.

    [bold]Examples[/]

    trainfleet runs attach night-1

    trainfleet runs attach night-1 --stack outputs.json --json
    """
    import tempfile
    from pathlib import Path

    from trainfleet.training.cli.runs import start_and_show
    from trainfleet.training.launch.kuberay.runs import find, recipe_of
    from trainfleet.training.launch.request import Request

    if stack is None and context is None:
        stack, context, remembered = launched_on(run)
        namespace = namespace or remembered
    with _refusals(cluster := _cluster(stack, context, namespace)):
        found = find(cluster, run)
        text = recipe_of(cluster, found)
    with tempfile.TemporaryDirectory(prefix="trainfleet-") as folder:
        file = Path(folder) / "recipe.yaml"
        file.write_text(text, encoding="utf-8")
        request = Request(
            str(file),
            on="kuberay",
            stacks=(stack,) if stack else (),
            storage=_storage(text),
            json=as_json,
            cluster=found.ray_cluster if found.shared else None,
            options={"attach": True, "launch": found.launch},
            context=None if stack else cluster.name,
            namespace=cluster.namespace,
            image="as-launched",
        )
        start_and_show(request)


@dashboard.command(epilog=EXIT_CODES)
def dashboard_command(  # noqa: PLR0917 - Typer passes options by name
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="A run, or a long-lived Ray cluster.", show_default=False),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            "--port", metavar="PORT", min=0, max=65535, help="Of this machine; 0 takes one that is free."
        ),
    ] = 8265,
    token: Annotated[
        bool, typer.Option("--token", help="Print the token that the dashboard asks for.")
    ] = False,
    stack: Stack = None,
    context: Context = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Show Ray's dashboard of a run on a port of this machine, until Ctrl-C. Nothing is opened to a network.

    [bold]Examples[/]

    trainfleet dashboard night-1

    trainfleet dashboard shared-ray --port 0 --token --stack outputs.json
    """
    import threading

    from trainfleet.console import err, out, print_json
    from trainfleet.training.launch.kuberay.forward import forwarded
    from trainfleet.training.launch.kuberay.runs import head_of
    from trainfleet.training.launch.kuberay.token import token_of

    with _refusals(cluster := _cluster(stack, context, namespace, run)):
        _, name = head_of(cluster, run)
        secret = token_of(cluster, name) if token else None
    with forwarded(
        cluster, lambda: head_of(cluster, name)[0], 8265, port, lambda text: err().print(text, markup=False)
    ) as here:
        address = f"http://127.0.0.1:{here}"
        if as_json:
            print_json({"address": address, "ray_cluster": name, **({"token": secret} if token else {})})
        else:
            out().print(f"{name}: {address} (Ctrl-C ends it)", markup=False, soft_wrap=True)
            if token:
                out().print(f"token: {secret}", markup=False, soft_wrap=True)
        threading.Event().wait()


def _cluster(
    stack: str | None, context: str | None, namespace: str | None, run: str | None = None
) -> Cluster:
    """The cluster that is meant: the one that is named, else the one that `run` was launched on from this
    folder, else the one in use.

    Raises:
        InputError: no such stack or context.
        MissingToolError: the package `kubernetes` is not here.
    """
    from trainfleet.training.launch.kuberay.client import connect, contexts
    from trainfleet.training.launch.stack_outputs import load_stack

    if stack is None and context is None and run is not None:
        stack, context, remembered = launched_on(run)
        namespace = namespace or remembered
    if stack is not None:
        outputs = load_stack(stack).outputs
        return connect(context, outputs.kubeconfig, outputs.kube_context, namespace or outputs.namespace)
    probe = connect(context, "", "", namespace or "")
    known, _ = contexts()
    probe.namespace = namespace or known.get(probe.name, {}).get("namespace") or "training"
    return probe


def launched_on(run: str) -> tuple[str | None, str | None, str | None]:
    """Stack, context and namespace of the last launch of a run from this folder; nothing where there was
    none.
    """
    from pathlib import Path

    from trainfleet.training.runs.reader import read_run

    launches = read_run(Path("runs") / run).get("launches", []) if run == Path(run).name else []
    last = launches[-1] if launches and launches[-1].get("on") == "kuberay" else {}
    return next(iter(last.get("stacks", [])), None), last.get("context"), last.get("namespace")


@contextlib.contextmanager
def _refusals(cluster: Cluster) -> Iterator[None]:
    """Say an API server's refusals in words."""
    from trainfleet.training.launch.kuberay.checks import in_words
    from trainfleet.training.launch.kuberay.client import ApiError

    try:
        yield
    except ApiError as error:
        raise in_words(error, cluster) from error


def _storage(recipe: str) -> str | None:
    """Where the run itself keeps its checkpoints: a stack's storage must not take its place."""
    import yaml

    document: Any = yaml.safe_load(recipe)
    return str(document["storage"]) if isinstance(document, dict) and "storage" in document else None
