"""`trainfleet cluster`: a real Kubernetes on this machine, up and down. The work is in up.py; here are flags,
tables and JSON.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from trainfleet.console import EXIT_CODES

cluster = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help=f"""A real one-node Kubernetes on this machine (Linux, root), without Docker and without a network.

For tests, CI and demonstrations. Whoever has kind, k3s, minikube or another cluster names its context to `trainfleet launch` instead.

[bold]Examples[/]

    trainfleet cluster up

    trainfleet cluster up --nodes-like outputs.json

    trainfleet cluster store

    trainfleet cluster status --json

    trainfleet cluster down

{EXIT_CODES}""",
)

Name = Annotated[str, typer.Option("--name", help="Which cluster; its context is `trainfleet-NAME`.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


@cluster.command()
def up(  # noqa: PLR0917 - one per flag
    name: Name = "local",
    install: Annotated[
        bool, typer.Option("--install", help="Install the Debian packages that are missing.")
    ] = False,
    image: Annotated[
        bool,
        typer.Option("--image/--no-image", help="Make the training image `localhost/trainfleet:local` too."),
    ] = True,
    nodes_like: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="OUTPUTS.json",
            help="Simulate a node of each GPU pool in a stack's outputs (labels, taints, GPUs); may be repeated.",
        ),
    ] = None,
    fake_node: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:GPUS[:KEY=VALUE,...]",
            help="Simulate one node with so many GPUs and these labels; may be repeated.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Bring the cluster up, or go on where it stopped: servers, node, DNS, storage, KubeRay's operator, the
    training image.

    The first time builds Kubernetes from its pins (10 minutes on two cores); later it takes half a minute.

    [bold]Examples[/]

      trainfleet cluster up

      trainfleet cluster up --install --no-image

      trainfleet cluster up --nodes-like aws-prod.json --fake-node big:8:skypilot.co/accelerator=h100

      export KUBECONFIG=$(trainfleet cluster kubeconfig)
    """
    import time

    from trainfleet.console import out, print_json
    from trainfleet.local_cluster import checks, fake_nodes
    from trainfleet.local_cluster.start import up as bring_up

    started = time.monotonic()
    checks.machine()
    wanted = fake_nodes.wanted(nodes_like or [], fake_node or [])
    if install and (packages := checks.absent(image)):
        _say(f"installing {', '.join(packages)}")
        checks.install(packages)
    it = bring_up(name, _say, image=image, fake_nodes=bool(wanted))
    fake_nodes.apply(it, wanted)
    seconds = time.monotonic() - started
    if as_json:
        print_json(
            {
                "name": it.name,
                "context": it.context,
                "kubeconfig": str(it.kubeconfig),
                "seconds": round(seconds, 1),
            }
        )
    else:
        out().print(f"ready in {seconds:.0f} s: context {it.context} in {it.kubeconfig}", soft_wrap=True)


@cluster.command()
def down(name: Name = "local") -> None:
    """Remove the cluster and everything that it made; what was built stays in the cache.

    [bold]Examples[/]

      trainfleet cluster down
    """
    from trainfleet.console import out
    from trainfleet.local_cluster.start import down as take_down

    out().print("removed" if take_down(name, _say) else f"there is no cluster {name}")


@cluster.command()
def status(name: Name = "local", as_json: AsJson = False) -> None:
    """Say what runs, since how many starts and with how much memory. Exit code 1 unless the cluster is ready.

    [bold]Examples[/]

      trainfleet cluster status

      trainfleet cluster status --json
    """
    from trainfleet.console import out, print_json
    from trainfleet.local_cluster.status import look

    seen = look(name)
    if as_json:
        print_json(seen)
    else:
        out().print(
            _table(seen) if seen["exists"] else f"there is no cluster {name}: `trainfleet cluster up`"
        )
    if not seen["ready"]:
        raise typer.Exit(1)


@cluster.command()
def kubeconfig(
    name: Name = "local",
    show: Annotated[
        bool, typer.Option("--show", help="Print the document instead of where it lies.")
    ] = False,
) -> None:
    """Print where the administrator's kubeconfig lies. Nothing is written to your own.

    [bold]Examples[/]

      export KUBECONFIG=$(trainfleet cluster kubeconfig)

      export PATH=$PATH:$(dirname $(trainfleet cluster kubeconfig))/bin    # a kubectl, where there is none

      trainfleet cluster kubeconfig --show > local.kubeconfig
    """
    it = _there(name)
    typer.echo(it.kubeconfig.read_text() if show else str(it.kubeconfig))


@cluster.command()
def logs(
    server: Annotated[str, typer.Argument(help="Which server; none lists them.")] = "",
    name: Name = "local",
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="So many of the last lines.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines come.")] = False,
) -> None:
    """Show a server's log.

    [bold]Examples[/]

      trainfleet cluster logs

      trainfleet cluster logs kubelet -n 100

      trainfleet cluster logs ray-operator --follow
    """
    import subprocess

    from trainfleet.errors import InputError, Problem
    from trainfleet.suggestions import did_you_mean

    folder = _there(name).file("logs")
    known = sorted(path.stem for path in folder.glob("*.log"))
    if not server:
        typer.echo("\n".join(known))
        return
    if server not in known:
        raise InputError(
            "no such server", [Problem(server, "has no log", did_you_mean(server, known) or ", ".join(known))]
        )
    subprocess.run(
        ["tail", "-n", str(lines), *(["-F"] if follow else []), str(folder / f"{server}.log")], check=False
    )


@cluster.command()
def load(
    archive: Annotated[
        Path, typer.Argument(help="An image as a tar file, of `docker save` or an OCI archive.")
    ],
    name: Name = "local",
) -> None:
    """Put another image into the cluster, which no registry could bring. Pods name it with `imagePullPolicy:
    IfNotPresent`.

    [bold]Examples[/]

      docker save my/image:1 -o image.tar && trainfleet cluster load image.tar
    """
    from trainfleet.errors import InputError, Problem
    from trainfleet.local_cluster import images

    it = _there(name)
    pid = _running(it)
    if not archive.is_file():
        raise InputError("no such image", [Problem(str(archive), "is not a file")])
    typer.echo(images.load_archive(pid, archive).strip())


@cluster.command()
def store(
    name: Name = "local",
    namespace: Annotated[
        str, typer.Option("--namespace", help="The namespace of the runs; created if it is missing.")
    ] = "training",
    folder: Annotated[
        Path | None,
        typer.Option(
            "--folder",
            metavar="DIR",
            help="Where the data is kept, also after the store has ended.",
            show_default="the user's data folder",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=1, max=65535, help="The port, on the address that pods reach.")
    ] = 9000,
    detach: Annotated[
        bool, typer.Option("--detach", help="Run in the background, until `trainfleet cluster down`.")
    ] = False,
) -> None:
    """Serve an S3 store with TLS to the runs on the cluster, for a machine without a bucket.

    Pods get its keys from the Secret `s3-keys`; a shell gets them, and the kubeconfig, from the file that
    this command prints. The store ends with Ctrl-C or with the cluster. Its data, keys and authority are
    kept, so a later store continues with them.

    [bold]Examples[/]

      trainfleet cluster store

      trainfleet cluster store --detach

      trainfleet cluster store --namespace research --folder ./store --port 9001
    """
    from platformdirs import user_data_path

    from trainfleet.console import out
    from trainfleet.errors import InputError, Problem
    from trainfleet.local_cluster import store as stores
    from trainfleet.local_cluster.images import LOCAL

    it = _there(name)
    pid = _running(it)
    place = (folder or user_data_path("trainfleet") / "stores" / name).resolve()
    if place.exists() and not place.is_dir():
        raise InputError(
            "the store needs a folder", [Problem("--folder", f"{place} is a file", "name a folder")]
        )
    place.mkdir(parents=True, exist_ok=True)
    if detach:
        out().print(
            stores.detached(name, namespace, place, port), markup=False, highlight=False, soft_wrap=True
        )
        return
    with stores.gateway(str(it.outside), place, stores.keys_of(place), port) as made:
        stores.grant(it, namespace, made)
        stores.write_environment(it, made, place / "environment")
        launch = f"trainfleet launch lm-tiny --on kuberay --context {it.context} --namespace {namespace} --image {LOCAL}"
        lines = [
            f"{made.url} at {made.address}, data in {place}; ends with Ctrl-C or the cluster. In another shell:",
            f"  source {place / 'environment'}",
            f"  {launch} --storage {made.url} --from-secret {stores.SECRET} scaling.cpus_per_worker=0.25",
        ]
        out().print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
        stores.until_gone(pid)


def _there(name: str) -> Any:
    from trainfleet.errors import InputError, Problem
    from trainfleet.local_cluster import state

    it = state.load(name)
    if it is None:
        raise InputError(
            "no such cluster", [Problem("--name", f"there is no cluster {name}", "trainfleet cluster up")]
        )
    return it


def _running(it: Any) -> int:
    """The node's first process."""
    from trainfleet.errors import InputError, Problem
    from trainfleet.local_cluster import node

    pid = node.pid_of(it)
    if pid is None:
        raise InputError(
            "the cluster does not run", [Problem("--name", f"{it.name} is not up", "trainfleet cluster up")]
        )
    return pid


def _table(seen: dict[str, Any]) -> Any:
    from rich.table import Table

    short = [
        f"{row['name']} is short of {', '.join(row['short_of'])}: it takes no new pods"
        for row in seen["nodes"]
        if row["short_of"]
    ]
    title = [
        f"{seen['context']}: {'ready' if seen['ready'] else 'not ready'}, {seen['memory_mib']} MiB",
        *short,
    ]
    table = Table(title="\n".join(title), title_justify="left")
    for heading in ("server", "version", "state", "starts", "MiB"):
        table.add_column(heading, justify="right" if heading in ("starts", "MiB") else "left")
    for row in seen["servers"]:
        state = "[green]runs[/]" if row["running"] else "[red]does not run[/]"
        table.add_row(row["name"], row["version"], state, str(row["starts"]), str(row["memory_mib"]))
    return table


def _say(text: str) -> None:
    from trainfleet.console import err

    err().print(text, markup=False, soft_wrap=True)
