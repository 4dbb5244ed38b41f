"""`trainfleet launch`: start a recipe with one of the launchers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from trainfleet.console import EXIT_CODES
from trainfleet.training.cli.clusters import Clusters, launch_on_clusters
from trainfleet.training.cli.launch_options import (
    ClusterName,
    Code,
    Context,
    Detach,
    FromSecrets,
    GcsFaultTolerance,
    Hosts,
    Identity,
    Idle,
    Image,
    MachineImage,
    Managed,
    Namespace,
    Nodes,
    On,
    PodTemplate,
    Pool,
    Price,
    Print,
    Priority,
    Redis,
    RedisSecret,
    Secrets,
    Spec,
    Spot,
    SshKey,
    SshUser,
    Stacks,
    Within,
    WorkloadCheck,
    Write,
    Zone,
)
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
    prices_of,
)

if TYPE_CHECKING:
    from trainfleet.training.launch.options import LaunchOptions
    from trainfleet.training.launch.request import Request

launch = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False)

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
    "idle": "idle_s",
}
"""The fields of the launchers' options whose names differ from the command's parameters."""


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
    pod_template: PodTemplate = None,  # noqa: ARG001
    priority: Priority = None,  # noqa: ARG001
    workload_check: WorkloadCheck = "auto",  # noqa: ARG001
    gcs_fault_tolerance: GcsFaultTolerance = "auto",  # noqa: ARG001
    redis: Redis = None,  # noqa: ARG001
    redis_secret: RedisSecret = None,  # noqa: ARG001
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
    idle: Idle = 20.0,  # noqa: ARG001
) -> None:
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
        options=_options(on, ctx) if clusters is None else None,
    )
    _start(request, clusters, ctx, show=show or write is not None)


def _options(on: str, ctx: typer.Context) -> LaunchOptions:
    from trainfleet.training.launch.base import parse_options

    return parse_options(on, given_options(ctx))


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


def _start(request: Request, clusters: str | None, ctx: typer.Context, *, show: bool) -> None:
    if clusters is not None:
        launch_on_clusters(request, clusters, given_options(ctx), show=show)
        return
    if show:
        import sys

        from trainfleet.training.launch.supervise import show as rendered

        sys.stdout.write(rendered(request))
        return
    from trainfleet.training.cli.outcome import start_and_report

    start_and_report(request)
