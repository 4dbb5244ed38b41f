"""`trainfleet launch`: start a recipe with one of the launchers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainfleet import completion
from trainfleet.console import EXIT_CODES
from trainfleet.training.cli.clusters import Clusters, launch_on_clusters
from trainfleet.training.cli.options import (
    AliasedCommand,
    AllowChange,
    Fresh,
    JsonAtEnd,
    Overrides,
    RecipeName,
    RunName,
    Set,
    Storage,
    minutes,
    prices_of,
)

if TYPE_CHECKING:
    from trainfleet.training.launch.request import Request

launch = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)

REMOTE, KUBERNETES, SKY, RAY_UP = "Other machines", "Kubernetes", "SkyPilot", "ray up"
HELP = """Start or resume a recipe: the same recipe, command and report on every launcher.

[bold]Examples[/]

trainfleet launch lm-small --on torchrun

trainfleet launch lm-small --on local scaling.workers=1 strategy=fsdp

trainfleet launch lm-small --on torchrun --storage gs://my-bucket/runs --run night-1

trainfleet launch recipes/lm-small.yaml --stack outputs.json --run night-1

trainfleet launch lm-small --on kuberay --stack outputs.json --pool l4 scaling.use_gpu=true

trainfleet launch lm-small --on kuberay --context kind-kind --namespace training --image my/trainfleet:1
--storage s3://my-bucket/runs --detach

trainfleet launch spirals.yaml --on kuberay --stack outputs.json --code experiments

trainfleet launch lm-small --on kuberay --clusters aws-prod.json,gcp-prod.json --run night-1

trainfleet launch lm-small --on kuberay --stack outputs.json --print

trainfleet launch lm-1b --on sky --stack aws-prod.json --stack gcp-prod.json --managed --detach

trainfleet launch lm-small --on ray-up --spec gcp-dev --image my/trainfleet:1 --storage
gs://my-bucket/runs --write cluster.yaml

trainfleet launch lm-small --on ray-up --host 10.0.0.5 --host 10.0.0.6 --storage s3://my-bucket/runs
--secret AWS_SECRET_ACCESS_KEY
"""

FIELDS = {
    "price": "prices",
    "secret": "secrets",
    "from_secret": "from_secrets",
    "host": "hosts",
    "within": "within_s",
}
"""The fields of the launchers' options whose names differ from the command's parameters."""


def _launchers() -> list[str]:
    from trainfleet.training.launch.base import LAUNCHERS

    return list(LAUNCHERS)


On = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="LAUNCHER",
        help="local: Ray on this machine. torchrun: without Ray. kuberay: Ray on a Kubernetes cluster. "
        "sky: SkyPilot. ray-up: Ray on VMs or on hosts of yours.",
        autocompletion=_launchers,
    ),
]
Stacks = Annotated[
    list[str] | None,
    typer.Option(
        "--stack",
        "--platform",
        metavar="OUTPUTS.json|STACK",
        help="A platform: an outputs file or a Pulumi stack (also --outputs). Runs are stored there.",
        autocompletion=completion.stacks,
    ),
]
Code = Annotated[
    str | None,
    typer.Option(
        "--code",
        metavar="DIR",
        help="A folder with your code, which every worker imports first. By default the recipe's folder, if "
        "its workload is a file there.",
    ),
]
Print = Annotated[
    bool, typer.Option("--print", help="Print what would be handed over, as YAML, and start nothing.")
]
Image = Annotated[
    str | None,
    typer.Option(
        "--image", metavar="REF", help="The container image; by default the stack's.", rich_help_panel=REMOTE
    ),
]
Pool = Annotated[
    str | None,
    typer.Option(
        "--pool",
        metavar="NAME",
        help="The node pool that trains; by default the cheapest that fits.",
        rich_help_panel=REMOTE,
    ),
]
Within = Annotated[
    float,
    typer.Option(
        "--within",
        metavar="MINUTES",
        parser=minutes,
        help="How long to wait for machines: minutes, or a unit as in 90s, 5m, 2h. Then it is undone.",
        rich_help_panel=REMOTE,
    ),
]
Detach = Annotated[
    bool,
    typer.Option(
        "--detach",
        help="Exit once the run is submitted. How to follow and stop it is printed "
        "(kuberay: `trainfleet runs attach`; sky: `sky logs` or `sky jobs logs`; ray-up: the same command).",
        rich_help_panel=REMOTE,
    ),
]
Secrets = Annotated[
    list[str] | None,
    typer.Option(
        "--secret",
        metavar="NAME",
        help="sky, ray-up: pass this environment variable on, such as a key of the storage.",
        rich_help_panel=REMOTE,
    ),
]
ClusterName = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="NAME",
        help="kuberay, ray-up: train on this long-lived Ray cluster; created if it does not exist.",
        rich_help_panel=REMOTE,
    ),
]
Context = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help="kuberay, sky: a context of your kubeconfig, instead of --stack.",
        rich_help_panel=KUBERNETES,
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        metavar="NS",
        help="kuberay, sky, with --context: the namespace of the run's pods.",
        rich_help_panel=KUBERNETES,
    ),
]
FromSecrets = Annotated[
    list[str] | None,
    typer.Option(
        "--from-secret",
        metavar="SECRET",
        help="kuberay, sky: a Secret of the namespace whose keys become variables of the pods.",
        rich_help_panel=KUBERNETES,
    ),
]
Managed = Annotated[
    bool,
    typer.Option(
        "--managed",
        help="A managed job, which SkyPilot restarts elsewhere when its pods are lost.",
        rich_help_panel=SKY,
    ),
]
Nodes = Annotated[
    int,
    typer.Option(
        "--nodes", min=1, help="Pods that share the workers of a recipe without GPUs.", rich_help_panel=SKY
    ),
]
Spot = Annotated[
    bool,
    typer.Option("--spot/--no-spot", help="Use spot pools too, first where cheaper.", rich_help_panel=SKY),
]
Price = Annotated[
    list[str] | None,
    typer.Option(
        "--price",
        metavar="STACK/POOL=USD",
        help="What a node of that pool costs per hour.",
        rich_help_panel=SKY,
    ),
]
Write = Annotated[
    Path | None,
    typer.Option(
        "--write",
        metavar="FILE",
        help="Write the cluster file and the files that it refers to, and start nothing.",
        rich_help_panel=RAY_UP,
    ),
]
Spec = Annotated[
    str | None,
    typer.Option(
        "--spec",
        metavar="STACK",
        help="A stack's spec, for a stack that was never applied.",
        rich_help_panel=RAY_UP,
        autocompletion=completion.stacks,
    ),
]
Hosts = Annotated[
    list[str] | None,
    typer.Option(
        "--host",
        metavar="HOST",
        help="An existing host; the first becomes the head, which does not train. Repeat for each.",
        rich_help_panel=RAY_UP,
    ),
]
Identity = Annotated[
    str | None,
    typer.Option(
        "--identity",
        metavar="NAME",
        help="The machines' instance profile, service account or managed identity.",
        rich_help_panel=RAY_UP,
    ),
]
Zone = Annotated[
    str | None,
    typer.Option("--zone", metavar="ZONE", help="The cloud's zone of the machines.", rich_help_panel=RAY_UP),
]
MachineImage = Annotated[
    str | None,
    typer.Option(
        "--machine-image",
        metavar="ID",
        help="What the machines boot; by default the cloud's image with driver and Docker.",
        rich_help_panel=RAY_UP,
    ),
]
SshUser = Annotated[
    str | None,
    typer.Option(
        "--ssh-user",
        metavar="USER",
        help="The login; by default ubuntu, on existing hosts your user name.",
        rich_help_panel=RAY_UP,
    ),
]
SshKey = Annotated[
    str | None,
    typer.Option(
        "--ssh-key",
        metavar="FILE",
        help="A private key; on a cloud Ray creates one by default.",
        rich_help_panel=RAY_UP,
    ),
]


@launch.command(cls=AliasedCommand, help=HELP, epilog=EXIT_CODES)
def launch_command(  # noqa: PLR0917 - Typer passes options by name
    ctx: typer.Context,
    recipe: RecipeName,
    overrides: Overrides = None,
    on: On = "local",
    run: RunName = None,
    stack: Stacks = None,
    clusters: Clusters = None,
    storage: Storage = None,
    code: Code = None,
    show: Print = False,
    fresh: Fresh = False,
    allow: AllowChange = None,
    settings: Set = None,
    as_json: JsonAtEnd = False,
    image: Image = None,  # noqa: ARG001 - this one and those below are read by name
    pool: Pool = None,  # noqa: ARG001
    within: Within = 30.0,  # noqa: ARG001
    detach: Detach = False,  # noqa: ARG001
    secret: Secrets = None,  # noqa: ARG001
    cluster: ClusterName = None,  # noqa: ARG001
    context: Context = None,  # noqa: ARG001
    namespace: Namespace = None,  # noqa: ARG001
    from_secret: FromSecrets = None,  # noqa: ARG001
    managed: Managed = False,  # noqa: ARG001
    nodes: Nodes = 1,  # noqa: ARG001
    spot: Spot = True,  # noqa: ARG001
    price: Price = None,  # noqa: ARG001
    write: Write = None,
    spec: Spec = None,  # noqa: ARG001
    host: Hosts = None,  # noqa: ARG001
    identity: Identity = None,  # noqa: ARG001
    zone: Zone = None,  # noqa: ARG001
    machine_image: MachineImage = None,  # noqa: ARG001
    ssh_user: SshUser = None,  # noqa: ARG001
    ssh_key: SshKey = None,  # noqa: ARG001
) -> None:
    from trainfleet.training.launch.base import parse_options
    from trainfleet.training.launch.request import Request

    request = Request(
        recipe,
        overrides=(*(overrides or ()), *(settings or ())),
        on=on,
        run=run,
        storage=storage,
        stacks=tuple(stack or ()),
        code=code,
        fresh=fresh,
        json=as_json,
        allow_changes=tuple(allow or ()),
        options=parse_options(on, given_options(ctx)) if clusters is None else None,
    )
    if clusters is not None:
        launch_on_clusters(request, clusters, given_options(ctx), show=show or write is not None)
        return
    _start(request, show=show or write is not None)


COMMON = (
    "recipe",
    "overrides",
    "on",
    "run",
    "stack",
    "clusters",
    "storage",
    "code",
    "show",
    "fresh",
    "allow",
    "settings",
    "as_json",
)
"""The parameters that every launcher has."""


def given_options(ctx: typer.Context) -> dict[str, Any]:
    """The launchers' options that are given on the command line, by field; defaults are not included."""
    given: dict[str, Any] = {}
    for parameter, value in ctx.params.items():
        source = ctx.get_parameter_source(parameter)
        if parameter in COMMON or source is None or source.name.startswith("DEFAULT"):
            continue
        given[FIELDS.get(parameter, parameter)] = _plain(parameter, value)
    return given


def _plain(parameter: str, value: Any) -> Any:
    if parameter == "price":
        return prices_of(value)
    if isinstance(value, Path):
        return str(value)
    return tuple(value) if isinstance(value, list) else value


def _start(request: Request, *, show: bool) -> None:
    if show:
        import sys

        from trainfleet.training.launch.supervise import show as rendered

        sys.stdout.write(rendered(request))
        return
    from trainfleet.training.cli.outcome import start_and_report

    start_and_report(request)
