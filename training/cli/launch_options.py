"""The options of `trainfleet launch` as parameters. The names in its help say which launchers have them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from trainfleet import completion
from trainfleet.training.cli.options import minutes

REMOTE, KUBERNETES, SKY, RAY_UP = "Other machines", "Kubernetes", "SkyPilot", "ray up"


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
LaunchedOn = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="LAUNCHER",
        help="Launch the processes as a run: local, torchrun, kuberay, sky or ray-up. By default, they run "
        "on this machine without a launcher.",
        autocompletion=_launchers,
    ),
]
Stacks = Annotated[
    list[str] | None,
    typer.Option(
        "--stack",
        "--platform",
        metavar="OUTPUTS.json|STACK",
        help="A platform: an outputs file or a Pulumi stack (also --outputs). Stores the runs by default.",
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
        help="How long to wait for machines: minutes, or a unit as in 90s, 5m, 2h. Then it is undone. "
        "kuberay: by default up to 45 minutes for more than 10 pods.",
        rich_help_panel=REMOTE,
    ),
]
Detach = Annotated[
    bool,
    typer.Option(
        "--detach",
        help="Exit once the run is submitted. How to follow and stop it is printed "
        "(`trainfleet runs attach` and `trainfleet runs stop`).",
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
        help="kuberay, ray-up, sky: train on this long-lived cluster; created if it does not exist.",
        rich_help_panel=REMOTE,
    ),
]
Idle = Annotated[
    float,
    typer.Option(
        "--idle",
        metavar="MINUTES",
        parser=minutes,
        help="ray-up: the head deletes the machines after this long without a run, as in 90, 2h; with"
        " --cluster 4h by default. sky, with --cluster: SkyPilot deletes the cluster; 30 by default.",
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
        help="kuberay, sky, with --context: the namespace of the run's pods. sky: that of SkyPilot's "
        "configuration or of the context, and no other.",
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
PodTemplate = Annotated[
    str | None,
    typer.Option(
        "--pod-template",
        metavar="FILE",
        help="kuberay, sky: a YAML file with changes of the pods: volumes, sidecars, variables, resources.",
        rich_help_panel=KUBERNETES,
    ),
]
Priority = Annotated[
    str | None,
    typer.Option(
        "--priority",
        help="kuberay, sky: the priority in the queue and of the pods: high, normal or low. In the "
        "queue, a run preempts those of lower priority, which continue later.",
        rich_help_panel=KUBERNETES,
        show_default="normal",
    ),
]
WorkloadCheck = Annotated[
    Literal["auto", "always", "never"],
    typer.Option(
        "--workload-check",
        help="kuberay, sky: validate image, code, workload and storage in a pod without GPUs before the run "
        "requests its machines. auto: if the run has GPUs. always: or do not start. never.",
        rich_help_panel=KUBERNETES,
    ),
]
GcsFaultTolerance = Annotated[
    Literal["auto", "always", "never"],
    typer.Option(
        "--gcs-fault-tolerance",
        help="kuberay: keep Ray's control store in Redis, so that a lost head costs no step. auto: with "
        "--redis. always: or do not start. never.",
        rich_help_panel=KUBERNETES,
    ),
]
Redis = Annotated[
    str | None,
    typer.Option(
        "--redis",
        metavar="ADDRESS",
        help="kuberay: a Redis for Ray's control store, instead of the platform's: redis://HOST:PORT.",
        rich_help_panel=KUBERNETES,
    ),
]
RedisSecret = Annotated[
    str | None,
    typer.Option(
        "--redis-secret",
        metavar="SECRET",
        help="kuberay: the Secret with the password of --redis, under the key `password`.",
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
        help="A private key, for hosts and Azure. On a cloud Ray creates one, always on AWS and GCP.",
        rich_help_panel=RAY_UP,
    ),
]

OF_LAUNCHES = ("write", "detach")
"""Parameters of `trainfleet launch` alone: a search starts all its trials, and follows them."""
OF_JOBS = ("write",)
"""Parameters that a launched evaluation or prediction lacks."""


def with_launcher_options(
    without: Sequence[str],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the launchers' options of `trainfleet launch`, other than `without`, to a command.

    It reads them with `given_options`.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        from trainfleet.training.cli.launch import COMMON, launch_command

        own = inspect.signature(command, eval_str=True)
        names = set(own.parameters)

        @functools.wraps(command)
        def with_options(**values: Any) -> None:
            command(**{name: value for name, value in values.items() if name in names})

        parameters = [
            each
            for each in inspect.signature(launch_command, eval_str=True).parameters.values()
            if each.name not in (*COMMON, *without, "ctx")
        ]
        signature = own.replace(parameters=[*own.parameters.values(), *parameters])
        with_options.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
        with_options.__signature__ = signature  # type: ignore[attr-defined]  # what inspect.signature reads
        return with_options

    return decorate
