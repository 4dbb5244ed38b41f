"""What the cluster file of a run needs to know: the cloud, the machines, the identities and the keys' names;
decided, or refused.

Used by `trainfleet.training.launch.ray_up`. Pure but for the environment that is read once. Easy to get
wrong: the contract's identity is one of
pods; on AWS and Azure a machine needs one of its own (an instance profile, a managed identity), on GCP the
same account serves both.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainfleet.errors import InputError, Problem
from trainfleet.infra.outputs.contract import PlatformOutputs, PoolOutput
from trainfleet.infra.outputs.from_spec import outputs_from_spec
from trainfleet.suggestions import did_you_mean
from trainfleet.training.launch.external_cluster import bare_platform
from trainfleet.training.launch.kuberay.run_spec import (
    FORWARDED,
    RAY_VERSION,
    authority,
    choose_pool,
    unreachable,
)
from trainfleet.training.launch.request import Target
from trainfleet.training.recipe.schema import Recipe

CLOUDS = ("aws", "gcp", "azure", "local")
PROFILE = re.compile(r"arn:[\w-]+:iam::\d{12}:instance-profile/[\w+=,.@/-]+|[\w+=,.@-]{1,128}")
ACCOUNT = re.compile(r"[a-z0-9][a-z0-9-]*@[a-z0-9.-]+\.gserviceaccount\.com")
MANAGED = re.compile(
    r"/subscriptions/[^/]+/resource[gG]roups/[^/]+/providers/Microsoft\.ManagedIdentity/userAssignedIdentities/[^/]+"
)
IDENTITIES = {
    "aws": (PROFILE, "an instance profile: its name or its ARN (not a role's)"),
    "gcp": (ACCOUNT, "a service account's e-mail"),
    "azure": (MANAGED, "a user-assigned managed identity's resource id"),
}
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]*[A-Za-z0-9])?")
VARIABLE = re.compile(r"[A-Za-z_]\w*")
LONGEST_NAME = 30
"""Of a cluster: clouds make names of machines, disks and keys from it."""


@dataclass(frozen=True)
class Site:
    """A run on machines of its own, decided."""

    recipe: Recipe
    outputs: PlatformOutputs
    cloud: str
    name: str
    """The Ray cluster's, and its machines'."""
    stays: bool
    """Whether the machines outlive the run."""
    image: str
    """Empty: no container; the hosts have Ray and Trainfleet themselves."""
    pool: PoolOutput | None
    per_node: int
    """Workers on a machine."""
    nodes: int
    fewest: int
    hosts: tuple[str, ...]
    """On hosts that are there: the head first."""
    zone: str
    machine_image: str
    identity: str
    ssh_user: str
    ssh_key: str
    secrets: tuple[str, ...]
    """Names of variables that the machines get in a file."""
    env: dict[str, str]
    ca: str
    job: str
    launch: str
    within_s: float
    allow_changes: tuple[str, ...]

    @property
    def docker(self) -> bool:
        """Whether Ray runs in a container."""
        return bool(self.image)


def cluster_name(text: str) -> str:
    """A name that each cloud takes for its machines; one name for one run, so that a second launch meets the
    first.
    """
    name = re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-") or "run"
    return (
        name
        if name == text and len(name) <= LONGEST_NAME
        else f"{name[: LONGEST_NAME - 7]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
    )


def state_folder(name: str) -> Path:
    """Where the files of a cluster lie as long as its machines may be there."""
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return base / "trainfleet" / "ray-up" / name


def decide(recipe: Recipe, target: Target, env: Mapping[str, str]) -> Site:
    """The site of a launch.

    Raises:
        InputError: all that is missing or does not fit, at once.
    """
    request, options = target.request, target.request.options
    problems: list[Problem] = []
    hosts = tuple(options.get("hosts") or ())
    outputs = _platform(target, hosts, problems)
    cloud = "local" if hosts else outputs.cloud
    if not hosts and outputs.cloud == "local":
        problems.append(
            Problem(
                "--host",
                "which machines? Ray starts no machines here",
                "--host HEAD --host WORKER, once for each",
            )
        )
    problems += _hosts(hosts)
    problems += unreachable(recipe.storage, env, "the machines")
    pool, why = choose_pool(recipe, outputs, request.pool)
    problems += why
    if hosts:
        per_node, nodes = 1, max(1, len(hosts) - 1)
    else:
        per_node = (
            min(pool.per_node, recipe.scaling.workers) if pool is not None and recipe.scaling.use_gpu else 1
        )
        nodes = -(-recipe.scaling.workers // per_node)
        if pool is not None and nodes > pool.max_nodes > 0:
            what = f"{recipe.scaling.workers} workers need {nodes} machines of pool {pool.name}, which grows to {pool.max_nodes}"
            problems.append(
                Problem("scaling.workers", what, f"at most {pool.max_nodes * per_node}, or another pool")
            )
    names = tuple(options.get("secrets") or ())
    problems += _secrets(names, env)
    identity = str(options.get("identity") or (outputs.training_identity if cloud == "gcp" else ""))
    problems += _identity(cloud, identity, bool(names))
    ca, bad = authority(env)
    problems += bad
    image = request.image or ("" if hosts and not outputs.image else outputs.image)
    if not image and cloud != "local":
        problems.append(
            Problem(
                "--image",
                "is missing: no stack says what the machines run",
                "--image REF, built from images/Dockerfile",
            )
        )
    key = str(options.get("ssh_key") or "")
    problems += _ssh_key(cloud, key)
    if problems:
        raise InputError("this cannot run on machines as asked", problems)
    fewest = -(-(recipe.scaling.min_workers or recipe.scaling.workers) // per_node)
    return Site(
        recipe=recipe,
        outputs=outputs,
        cloud=cloud,
        name=cluster_name(request.cluster or f"tf-{recipe.name}"),
        stays=request.cluster is not None,
        image=image,
        pool=pool,
        per_node=per_node,
        nodes=nodes,
        fewest=nodes if hosts else min(fewest, nodes),
        hosts=hosts,
        zone=str(options.get("zone") or ""),
        machine_image=str(options.get("machine_image") or ""),
        identity=identity,
        ssh_user=str(options.get("ssh_user") or ("ubuntu" if cloud != "local" else getpass.getuser())),
        ssh_key=key,
        secrets=names,
        env={key: env[key] for key in FORWARDED if env.get(key) and key not in names},
        ca=ca,
        job=cluster_name(f"tf-{recipe.name}"),
        launch=str(options.get("launch") or secrets.token_hex(8)),
        within_s=request.within_s,
        allow_changes=request.allow_changes,
    )


def _platform(target: Target, hosts: tuple[str, ...], problems: list[Problem]) -> PlatformOutputs:
    """What is known of the platform: its contract, else what its spec says, else nothing."""
    spec = target.request.options.get("spec")
    if target.places and spec:
        problems.append(
            Problem(
                "--spec",
                "stands beside --stack",
                "--stack for a platform that was applied, --spec for one that was not",
            )
        )
    if len(target.places) > 1:
        problems.append(
            Problem(
                "--stack",
                "a run by `ray up` is on one platform",
                "name one; `--on sky` chooses between several",
            )
        )
    outputs = bare_platform("", "", "", "").model_copy(update={"ray_version": RAY_VERSION})
    if target.place is not None:
        outputs = target.place.outputs
    elif spec:
        outputs = outputs_from_spec(str(spec))
    elif not hosts:
        fix = "--stack OUTPUTS.json, --spec STACK, or --host HEAD --host WORKER"
        raise InputError("this cannot run on machines as asked", [Problem("--stack", "which machines?", fix)])
    if hosts and outputs.cloud not in ("local", ""):
        problems.append(
            Problem(
                "--host",
                f"stands beside a platform on {outputs.cloud}, where Ray makes machines itself",
                "leave out one of both",
            )
        )
    if outputs.cloud not in CLOUDS:
        problems.append(
            Problem(
                "--stack",
                f"Ray's launcher knows no cloud `{outputs.cloud}`",
                did_you_mean(outputs.cloud, CLOUDS),
            )
        )
    return outputs


def _hosts(hosts: tuple[str, ...]) -> list[Problem]:
    found = [
        Problem("--host", f"`{host}` is no host's name or address", "--host 10.0.0.5")
        for host in hosts
        if not HOST.fullmatch(host)
    ]
    if len(set(hosts)) < len(hosts):
        found.append(
            Problem(
                "--host", "the same host stands twice", "the head trains nothing, so each host is one thing"
            )
        )
    if len(hosts) == 1:
        found.append(
            Problem(
                "--host",
                f"only {hosts[0]}, which becomes the head and trains nothing",
                "name a worker too: --host HEAD --host WORKER",
            )
        )
    return found


def _secrets(names: tuple[str, ...], env: Mapping[str, str]) -> list[Problem]:
    found = [
        Problem(
            "--secret",
            f"`{name}` is no variable's name; a value has no place on a command line",
            "--secret NAME",
        )
        for name in names
        if not VARIABLE.fullmatch(name)
    ]
    return found + [
        Problem("--secret", f"{name} is not set here", f"export {name}=…")
        for name in names
        if VARIABLE.fullmatch(name) and not env.get(name)
    ]


def _identity(cloud: str, identity: str, keys: bool) -> list[Problem]:
    """Why the workers could not reach the bucket. Hosts that are there may have rights of their own, of which
    nothing is known here.
    """
    if cloud not in IDENTITIES:
        return (
            [
                Problem(
                    "--identity",
                    "hosts that are there have no cloud's identity",
                    "--secret NAME for each key",
                )
            ]
            if identity
            else []
        )
    pattern, meant = IDENTITIES[cloud]
    if identity and not pattern.fullmatch(identity):
        return [Problem("--identity", f"`{identity}` is not {meant}")]
    if not identity and not keys:
        return [
            Problem(
                "--identity",
                "the workers would have no rights in the bucket",
                f"--identity with {meant}, or --secret NAME for each key",
            )
        ]
    return []


def _ssh_key(cloud: str, key: str) -> list[Problem]:
    if not key:
        return []
    path = Path(key).expanduser()
    if not path.is_file():
        return [Problem("--ssh-key", f"{key} is not there")]
    if path.stat().st_mode & 0o077:
        return [
            Problem(
                "--ssh-key", f"{key} may be read by others, and ssh refuses such keys", f"chmod 600 {key}"
            )
        ]
    if cloud == "azure" and not Path(f"{path}.pub").is_file():
        return [
            Problem(
                "--ssh-key",
                f"{key}.pub is not there, which Azure's machines need",
                f"ssh-keygen -y -f {key} > {key}.pub",
            )
        ]
    return []
