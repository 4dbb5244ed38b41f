"""`trainfleet cluster`: the flags, tables and JSON of the built-in Kubernetes cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainfleet.console import EXIT_CODES
from trainfleet.local_cluster.cli import up_options
from trainfleet.local_cluster.cli.cluster_node import node
from trainfleet.local_cluster.cli.options import (
    AsJson,
    Name,
    add_system_folders,
    load_state,
    progress_line,
    running_nodes,
)

if TYPE_CHECKING:
    from trainfleet.local_cluster.state import State
    from trainfleet.local_cluster.store import Store

cluster = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help=f"""A real Kubernetes on this machine (Linux, root), without Docker and without a network.

For tests, CI and demonstrations. Pass the context of an existing cluster to `trainfleet launch` instead.

[bold]Examples[/]

    trainfleet cluster up

    trainfleet cluster up --nodes 3

    trainfleet cluster up --nodes-like outputs.json

    trainfleet cluster store

    trainfleet cluster status --json

    trainfleet cluster down

{EXIT_CODES}""",
)

cluster.add_typer(node, name="node")
cluster.callback()(add_system_folders)


@cluster.command()
def up(  # noqa: PLR0917 - one per flag
    name: Name = "local",
    install: Annotated[bool, typer.Option("--install", help="Install the missing Debian packages.")] = False,
    image: up_options.Image = True,
    nodes_like: up_options.NodesLike = None,
    fake_node: up_options.FakeNode = None,
    nodes: up_options.Nodes = None,
    devices: up_options.Devices = None,
    node_label: up_options.NodeLabel = None,
    node_taint: up_options.NodeTaint = None,
    network_policies: up_options.NetworkPolicies = None,
    queue: up_options.Queue = False,
    as_json: AsJson = False,
) -> None:
    """Start the cluster, or resume an interrupted start: servers, nodes, DNS, storage, KubeRay, training
    image.

    The first start builds Kubernetes from its pins (10 minutes on two cores); later ones take half a minute.

    [bold]Examples[/]

    trainfleet cluster up --install --no-image

    trainfleet cluster up --nodes 3 --devices nvidia.com/gpu=8 --node-taint node2:spot=true:NoSchedule

    trainfleet cluster up --nodes-like aws-prod.json --fake-node big:8:skypilot.co/accelerator=h100

    export KUBECONFIG=$(trainfleet cluster kubeconfig)
    """
    import time
    from functools import partial

    from trainfleet.console import out, print_json
    from trainfleet.local_cluster import checks, fake_nodes
    from trainfleet.local_cluster.node_settings import NodeOptions
    from trainfleet.local_cluster.start import start_cluster

    started = time.monotonic()
    checks.require_supported()
    simulated = fake_nodes.from_flags(nodes_like or [], fake_node or [])
    node_options = NodeOptions(nodes, node_label or [], node_taint or [], devices or [])
    with progress_line() as progress:
        if install and (packages := checks.missing_packages(image)):
            progress(f"installing {', '.join(packages)}")
            checks.install(packages)
        start = partial(start_cluster, name, progress, image=image, fake_nodes=bool(simulated))
        state = start(node_options=node_options, enforce_policies=network_policies, queue=queue)
    fake_nodes.apply(state, simulated)
    seconds = time.monotonic() - started
    document = {"name": state.name, "context": state.context, "kubeconfig": str(state.kubeconfig)}
    if as_json:
        print_json(document | {"seconds": round(seconds, 1)})
    else:
        ready = f"ready in {seconds:.0f} s: context {state.context} in {state.kubeconfig}"
        out().print(ready, soft_wrap=True)


@cluster.command()
def down(name: Name = "local") -> None:
    """Remove the cluster and everything that it created; builds stay in the cache.

    [bold]Examples[/]

      trainfleet cluster down
    """
    from trainfleet.console import out
    from trainfleet.local_cluster.start import remove_cluster

    with progress_line() as progress:
        existed = remove_cluster(name, progress)
    out().print("removed" if existed else f"there is no cluster {name}")


@cluster.command()
def status(name: Name = "local", as_json: AsJson = False) -> None:
    """Show each server with its starts and memory, and each node. Exit code 1 unless the cluster is ready.

    [bold]Examples[/]

      trainfleet cluster status

      trainfleet cluster status --json
    """
    from trainfleet.console import out, print_json
    from trainfleet.local_cluster.cli.tables import nodes_table, servers_table
    from trainfleet.local_cluster.status import cluster_status

    document = cluster_status(name)
    if as_json:
        print_json(document)
    elif document["exists"]:
        out().print(servers_table(document))
        out().print(nodes_table(document))
    else:
        out().print("\n".join(document["not_ready"]))
    if not document["ready"]:
        raise typer.Exit(1)


@cluster.command()
def kubeconfig(
    name: Name = "local",
    show: Annotated[bool, typer.Option("--show", help="Print the file instead of its path.")] = False,
) -> None:
    """Print the path of the administrator's kubeconfig. Your own kubeconfig is not changed.

    [bold]Examples[/]

      export KUBECONFIG=$(trainfleet cluster kubeconfig)

      export PATH=$PATH:$(dirname $(trainfleet cluster kubeconfig))/bin    # a kubectl, if you have none

      trainfleet cluster kubeconfig --show > local.kubeconfig
    """
    state = load_state(name)
    typer.echo(state.kubeconfig.read_text() if show else str(state.kubeconfig))


@cluster.command()
def logs(
    server: Annotated[
        str,
        typer.Argument(
            help="The server, with its node unless that is the first; without one, the servers are listed."
        ),
    ] = "",
    name: Name = "local",
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="The number of lines to show.")] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines as they are written.")
    ] = False,
) -> None:
    """Show a server's log.

    [bold]Examples[/]

      trainfleet cluster logs

      trainfleet cluster logs kubelet -n 100

      trainfleet cluster logs node2/kubelet

      trainfleet cluster logs ray-operator --follow
    """
    import subprocess

    from trainfleet.errors import InputError, Problem
    from trainfleet.local_cluster.status import log_name
    from trainfleet.suggestions import did_you_mean

    known = {
        log_name(each, path.stem): path
        for each in load_state(name).nodes
        for path in sorted(each.file("logs").glob("*.log"))
    }
    if not server:
        typer.echo("\n".join(known))
        return
    if server not in known:
        raise InputError("no such server", [Problem(server, "has no log", did_you_mean(server, known))])
    subprocess.run(["tail", "-n", str(lines), *(["-F"] if follow else []), str(known[server])], check=False)


@cluster.command()
def load(
    archive: Annotated[
        Path, typer.Argument(help="An image as a tar file: from `docker save`, or an OCI archive.")
    ],
    name: Name = "local",
) -> None:
    """Load another image from a file into each node that runs. Pods use it with `imagePullPolicy:
    IfNotPresent`.

    [bold]Examples[/]

      docker save my/image:1 -o image.tar && trainfleet cluster load image.tar
    """
    from trainfleet.errors import InputError, Problem
    from trainfleet.local_cluster import images

    running = running_nodes(load_state(name))
    if not archive.is_file():
        raise InputError(
            "no such image", [Problem(str(archive), "is not a file", "write it with `docker save`")]
        )
    typer.echo(images.load_archive(running, archive).strip())


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
            help="The folder of the data, which is kept when the store ends.",
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

    from trainfleet.errors import InputError, Problem
    from trainfleet.local_cluster import store as stores

    state = load_state(name)
    pid = running_nodes(state)[0][1]
    data = (folder or user_data_path("trainfleet") / "stores" / name).resolve()
    if data.exists() and not data.is_dir():
        raise InputError(
            "the store needs a folder", [Problem("--folder", f"{data} is a file", "name a folder")]
        )
    data.mkdir(parents=True, exist_ok=True)
    if detach:
        _print_plain(stores.start_detached(name, namespace, data, port))
        return
    with stores.gateway(str(state.host_address), data, stores.load_keys(data), port) as served:
        stores.grant_access(state, namespace, served)
        stores.write_environment(state, served, data / "environment")
        _print_plain(_instructions(state, namespace, served, data))
        stores.wait_for_exit(pid)


def _instructions(state: State, namespace: str, served: Store, data: Path) -> str:
    """How to use a store; the number of lines is `store.LINES`."""
    from trainfleet.local_cluster.images import LOCAL
    from trainfleet.local_cluster.store import SECRET

    target = f"--on kuberay --context {state.context} --namespace {namespace} --image {LOCAL}"
    options = f"--storage {served.url} --from-secret {SECRET} --run tiny-on-cluster"
    return (
        f"{served.url} at {served.address}, data in {data}; ends with Ctrl-C or the cluster. "
        "In another shell:\n"
        f"  source {data / 'environment'}\n"
        f"  trainfleet launch lm-tiny {target} {options}"
    )


def _print_plain(text: str) -> None:
    from trainfleet.console import out

    out().print(text, markup=False, highlight=False, soft_wrap=True)
