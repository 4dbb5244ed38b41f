"""`trainfleet fabric`: check on two nodes that NCCL uses the fabric of a pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trainfleet import completion
from trainfleet.console import EXIT_CODES
from trainfleet.training.cli.options import AliasedCommand, Context, Json, Namespace, StackHelp, minutes

if TYPE_CHECKING:
    from trainfleet.training.launch.kuberay.fabric_check import FabricReport

HELP = f"""Check on two nodes that NCCL uses the fabric of a pool.

[bold]Examples[/]

    trainfleet fabric check --stack outputs.json --pool h100

{EXIT_CODES}"""

RequiredStack = Annotated[
    str,
    typer.Option(
        "--stack",
        metavar="OUTPUTS.json|STACK",
        help=StackHelp,
        show_default=False,
        autocompletion=completion.stacks,
    ),
]
Pool = Annotated[str, typer.Option("--pool", metavar="NAME", help="The node pool.", show_default=False)]
MinBusBandwidth = Annotated[
    float | None,
    typer.Option("--min-bus-bandwidth", metavar="GB/S", min=0, help="Fail below this bus bandwidth."),
]
Within = Annotated[
    float,
    typer.Option(
        "--within",
        metavar="MINUTES",
        parser=minutes,
        help="How long to wait for the nodes: minutes, or a unit as in 90s, 5m, 2h.",
    ),
]
BackendName = Annotated[
    str,
    typer.Option(
        "--backend",
        metavar="NAME",
        help="nccl: the fabric. gloo: only the ordinary network between two pods, without GPUs.",
    ),
]
Image = Annotated[
    str | None, typer.Option("--image", metavar="REF", help="By default the platform's training image.")
]

fabric = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help=HELP,
)


@fabric.callback()
def group() -> None:
    """Keep `check` a subcommand: Typer would call an only command directly."""


@fabric.command("check", cls=AliasedCommand, epilog=EXIT_CODES)
def check_command(  # noqa: PLR0917 - Typer passes options by name
    stack: RequiredStack,
    pool: Pool,
    min_bus_bandwidth: MinBusBandwidth = None,
    within: Within = 45.0,
    backend: BackendName = "nccl",
    image: Image = None,
    context: Context = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Run all-reduces on two whole nodes of a pool, and check the network that NCCL used.

    Two pods with the fabric settings of a training run all-reduces over all their GPUs. The check reads the
    log of NCCL and fails unless every process used the network that the platform's outputs name. Bandwidths
    are those of nccl-tests. The pods are deleted however the check ends. New nodes cost money from their
    start until the autoscaler removes them.

    [bold]Examples[/]

    trainfleet fabric check --stack outputs.json --pool h100

    trainfleet fabric check --stack aws-prod --pool h100 --min-bus-bandwidth 300 --json

    trainfleet fabric check --stack outputs.json --pool l4 --backend gloo
    """
    import signal

    from trainfleet.console import err, print_json
    from trainfleet.errors import InputError, Problem, TrainfleetError
    from trainfleet.training.launch.kuberay.fabric_check import check_fabric
    from trainfleet.training.launch.kuberay.fabric_pods import Backend, resolve
    from trainfleet.training.launch.platform_outputs import load_platform
    from trainfleet.training.launch.remote.kubernetes import connect

    if backend not in ("nccl", "gloo"):
        raise InputError("unknown backend", [Problem("--backend", f"{backend!r} is not known", "nccl, gloo")])
    outputs = load_platform(stack).outputs
    pods = Backend(backend)
    check = resolve(outputs, pool, pods, image=image, context=context, namespace=namespace, within_s=within)
    cluster = connect(context, outputs.kubeconfig, outputs.kube_context, check.run.namespace)
    # SIGTERM ends it as Ctrl-C does. Without that, the pods would stay.
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def notify(text: str) -> None:
        err().print(text, markup=False, soft_wrap=True)

    notify(f"checking pool {pool} of {outputs.name}: {check.processes} processes in 2 pods")
    report = check_fabric(cluster, check, min_bus_bandwidth, notify)
    if as_json:
        print_json(report.document())
    else:
        _print(report)
    if report.problems:
        summary = "the pool's fabric was not used as required" if check.backend.gpus else "the check failed"
        raise TrainfleetError(summary, report.problems)


def _print(report: FabricReport) -> None:
    from trainfleet.console import out

    lines = [
        f"{each.size / 2**20:>10.4g} MiB  {each.seconds * 1e6:>12.1f} us"
        f"  algorithm {each.algorithm_bandwidth:>8.3f} GB/s  bus {each.bus_bandwidth:>8.3f} GB/s"
        for each in report.timings
    ]
    if report.backend == "gloo":
        lines.append("gloo: this checks the ordinary network between two pods, not the fabric")
    else:
        direct = {True: "with", False: "without", None: "not known whether with"}[report.gpu_direct]
        names, versions = ", ".join(report.networks) or "no network", ", ".join(report.versions) or "?"
        lines.append(f"NCCL {versions} used {names} ({report.required} is required), {direct} GPUDirect RDMA")
    if report.bus_bandwidth is not None:
        lines.append(f"pool {report.pool}: highest bus bandwidth {report.bus_bandwidth:.3f} GB/s")
    for line in lines:
        out().print(line, markup=False, soft_wrap=True)
