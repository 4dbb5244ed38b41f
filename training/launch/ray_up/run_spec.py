"""A run by `ray up`, resolved: cloud, machines, identity and the names of its secrets."""

from __future__ import annotations

import getpass
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainfleet.errors import InputError, Problem
from trainfleet.infra.outputs.contract import PlatformOutputs, PoolOutput
from trainfleet.infra.outputs.from_spec import outputs_from_spec
from trainfleet.suggestions import did_you_mean
from trainfleet.training.launch.platform_outputs import external_cluster
from trainfleet.training.launch.ray_up.options import RayUpOptions
from trainfleet.training.launch.remote.pool_choice import choose_pool, too_many_nodes, workers_per_machine
from trainfleet.training.launch.remote.ray_job import RAY_VERSION
from trainfleet.training.launch.remote.run_price import unpriced, usd_per_hour
from trainfleet.training.launch.remote.secret_variables import unset
from trainfleet.training.launch.remote.storage_env import certificates, forwarded, unreachable
from trainfleet.training.launch.request import Target
from trainfleet.training.recipe.schema import Recipe

CLOUDS = ("aws", "gcp", "azure", "local")
INSTANCE_PROFILE = re.compile(r"arn:[\w-]+:iam::\d{12}:instance-profile/[\w+=,.@/-]+|[\w+=,.@-]{1,128}")
SERVICE_ACCOUNT = re.compile(r"[a-z0-9][a-z0-9-]*@[a-z0-9.-]+\.gserviceaccount\.com")
MANAGED_IDENTITY = re.compile(
    r"/subscriptions/[^/]+/resource[gG]roups/[^/]+"
    r"/providers/Microsoft\.ManagedIdentity/userAssignedIdentities/[^/]+"
)
IDENTITIES = {
    "aws": (INSTANCE_PROFILE, "an instance profile: its name or its ARN (not a role's)"),
    "gcp": (SERVICE_ACCOUNT, "a service account's e-mail"),
    "azure": (MANAGED_IDENTITY, "a user-assigned managed identity's resource id"),
}
OWN_KEYS = ("aws", "gcp")
"""Where Ray registers only keys that it creates (ray/autoscaler/_private/<cloud>/config.py)."""
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]*[A-Za-z0-9])?")
VARIABLE = re.compile(r"[A-Za-z_]\w*")
IDLE_MINUTES, CLUSTER_IDLE_MINUTES = 20.0, 240.0
"""Defaults of --idle, for the machines of one run and for those of --cluster."""
MAX_NAME_LENGTH = 30
"""Of a cluster: clouds derive the names of machines, disks and keys from it."""


@dataclass(frozen=True)
class RunSpec:
    """A run on VMs or hosts."""

    recipe: Recipe
    outputs: PlatformOutputs
    cloud: str
    name: str
    """The Ray cluster's, and its machines'."""
    stays: bool
    """Whether the machines outlive the run."""
    image: str
    """Empty: no container; Ray and Trainfleet are installed on the hosts."""
    pool: PoolOutput | None
    per_node: int
    """Workers on a machine."""
    nodes: int
    min_nodes: int
    hosts: tuple[str, ...]
    """Existing hosts, the head first."""
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
    idle_minutes: float
    """After how long without a run the head deletes the machines."""
    allow_changes: tuple[str, ...]
    instead: str = ""
    """What the ranks do instead of training, or empty: `Request.job`."""
    code: str = ""
    """The URL of the user's code, or empty."""
    archive: bytes = field(default=b"", repr=False)
    """The same, for the machines: a cloud's identity of the head cannot read the storage."""

    @property
    def docker(self) -> bool:
        """Whether Ray runs in a container."""
        return bool(self.image)

    @property
    def usd_per_hour(self) -> float | None:
        """The price of the workers' machines, if the contract has it. Existing hosts have none."""
        return None if self.hosts else usd_per_hour(self.pool, self.nodes)


def cluster_name(text: str) -> str:
    """A name that each cloud accepts for its machines: always the same, so that a second launch finds the
    first.
    """
    name = re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-") or "run"
    if name == text and len(name) <= MAX_NAME_LENGTH:
        return name
    return f"{name[: MAX_NAME_LENGTH - 7]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def job_name(run: str) -> str:
    """The name of a run's job, and of its Ray cluster unless that stays."""
    return cluster_name(f"tf-{run}")


def state_folder(name: str) -> Path:
    """The folder of a cluster's files, kept as long as its machines may exist."""
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return base / "trainfleet" / "ray-up" / name


def resolve(recipe: Recipe, target: Target, options: RayUpOptions, env: Mapping[str, str]) -> RunSpec:
    """What a launch runs, and where.

    Raises:
        InputError: everything that is missing or does not fit, at once.
    """
    hosts, (outputs, problems) = options.hosts, _platform(target, options)
    cloud = "local" if hosts else outputs.cloud
    pool, pool_problems = choose_pool(recipe, outputs, options.pool)
    # The contract's identity is one of pods. Only on GCP can a machine use the same account.
    identity = options.identity or (outputs.training_identity if cloud == "gcp" else "")
    ca, ca_problems = certificates(env)
    image = options.image or outputs.image
    problems += [
        *_host_problems(options, outputs.cloud),
        *unreachable(recipe.storage, env, "the machines"),
        *pool_problems,
        *([] if hosts else too_many_nodes(recipe, pool, "machines")),
        *_secret_problems(options.secrets, env),
        *unset(recipe.notifications, (), options.secrets, fix="--secret NAME"),
        *_identity_problems(cloud, identity, bool(options.secrets)),
        *ca_problems,
        *_image_problems(cloud, image),
        *_ssh_key_problems(cloud, options.ssh_key),
        *unpriced(recipe, usd_per_hour(None if hosts else pool, 1), "these machines"),
    ]
    if problems:
        raise InputError("the machines cannot run this as requested", problems)
    per_node = 1 if hosts else workers_per_machine(recipe, pool)
    nodes = max(1, len(hosts) - 1) if hosts else -(-recipe.scaling.workers // per_node)
    min_nodes = -(-(recipe.scaling.min_workers or recipe.scaling.workers) // per_node)
    return RunSpec(
        recipe=recipe,
        outputs=outputs,
        cloud=cloud,
        name=cluster_name(options.cluster) if options.cluster else job_name(recipe.name),
        stays=options.cluster is not None,
        image=image,
        pool=pool,
        per_node=per_node,
        nodes=nodes,
        min_nodes=nodes if hosts else min(min_nodes, nodes),
        hosts=hosts,
        zone=options.zone,
        machine_image=options.machine_image,
        identity=identity,
        ssh_user=options.ssh_user or ("ubuntu" if cloud != "local" else getpass.getuser()),
        ssh_key=str(_path(options.ssh_key)) if options.ssh_key else "",
        secrets=options.secrets,
        env={key: value for key, value in forwarded(env).items() if key not in options.secrets},
        ca=ca,
        job=job_name(recipe.name),
        launch=target.launch_id,
        within_s=options.within_s,
        idle_minutes=_idle_minutes(options),
        allow_changes=target.request.allow_changes,
        instead=target.request.job,
        code=target.code_url,
        archive=target.code.data if target.code is not None else b"",
    )


def _idle_minutes(options: RayUpOptions) -> float:
    if options.idle_s is not None:
        return options.idle_s / 60
    return IDLE_MINUTES if options.cluster is None else CLUSTER_IDLE_MINUTES


def _platform(target: Target, options: RayUpOptions) -> tuple[PlatformOutputs, list[Problem]]:
    """What is known of the platform: its contract, else its spec, else nothing."""
    problems = []
    if target.platforms and options.spec:
        fix = "--stack for a platform that was applied, --spec for one that was not"
        problems.append(Problem("--spec", "cannot be combined with --stack", fix))
    if len(target.platforms) > 1:
        fix = "name one; `--on sky` chooses between several"
        problems.append(Problem("--stack", "a run by `ray up` is on one platform", fix))
    outputs = external_cluster("", "", "", "").model_copy(update={"ray_version": RAY_VERSION})
    if target.platform is not None:
        outputs = target.platform.outputs
    elif options.spec:
        outputs = outputs_from_spec(options.spec)
    elif not options.hosts:
        fix = "--stack OUTPUTS.json, --spec STACK, or --host HEAD --host WORKER"
        problem = Problem("--stack", "which machines?", fix)
        raise InputError("the machines cannot run this as requested", [problem])
    if options.hosts and outputs.cloud not in ("local", ""):
        what = f"cannot be combined with a platform on {outputs.cloud}, where Ray creates the machines"
        problems.append(Problem("--host", what, "leave out one of them"))
    if outputs.cloud not in CLOUDS:
        what = f"Ray's launcher does not support the cloud `{outputs.cloud}`"
        problems.append(Problem("--stack", what, did_you_mean(outputs.cloud, CLOUDS)))
    return outputs, problems


def _host_problems(options: RayUpOptions, cloud: str) -> list[Problem]:
    hosts = options.hosts
    if not hosts and cloud == "local":
        fix = "--host HEAD --host WORKER, once for each"
        return [Problem("--host", "which machines? Ray creates none on this platform", fix)]
    problems = [
        Problem("--host", f"`{host}` is not a valid host name or address", "--host 10.0.0.5")
        for host in hosts
        if not HOST.fullmatch(host)
    ]
    of_machines = {"--zone": options.zone, "--machine-image": options.machine_image}
    problems += [
        Problem(flag, "is for machines that Ray creates, and these hosts exist", "leave it out")
        for flag, value in of_machines.items()
        if value and hosts
    ]
    if len(set(hosts)) < len(hosts):
        fix = "a host is either the head, which does not train, or one worker"
        problems.append(Problem("--host", "the same host is given twice", fix))
    if len(hosts) == 1:
        what = f"only {hosts[0]}, which becomes the head and does not train"
        problems.append(Problem("--host", what, "name a worker too: --host HEAD --host WORKER"))
    return problems


def _secret_problems(names: tuple[str, ...], env: Mapping[str, str]) -> list[Problem]:
    problems = []
    for name in names:
        if not VARIABLE.fullmatch(name):
            what = f"`{name}` is not a variable's name; values do not belong on a command line"
            problems.append(Problem("--secret", what, "--secret NAME"))
        elif not env.get(name):
            problems.append(Problem("--secret", f"{name} is not set", f"export {name}=…"))
    return problems


def _identity_problems(cloud: str, identity: str, keys: bool) -> list[Problem]:
    """Why the workers could not access the storage. Existing hosts may have rights that are unknown here."""
    if cloud not in IDENTITIES:
        what = "existing hosts do not get a cloud identity"
        return [Problem("--identity", what, "--secret NAME for each key")] if identity else []
    pattern, meaning = IDENTITIES[cloud]
    if identity and not pattern.fullmatch(identity):
        return [Problem("--identity", f"`{identity}` is not {meaning}")]
    if not identity and not keys:
        fix = f"--identity with {meaning}, or --secret NAME for each key"
        return [Problem("--identity", "the workers would have no access to the storage", fix)]
    return []


def _image_problems(cloud: str, image: str) -> list[Problem]:
    if image or cloud == "local":
        return []
    what = "is missing: no stack defines what the machines run"
    return [Problem("--image", what, "--image REF, built from images/Dockerfile")]


def _path(key: str) -> Path:
    """The path of a key, for the cluster file: `ray down` may be run in another folder."""
    return Path(key).expanduser().absolute()


def _ssh_key_problems(cloud: str, key: str) -> list[Problem]:
    if not key:
        return []
    if cloud in OWN_KEYS:
        what = f"Ray registers only the key that it creates on {cloud}, so no other one opens the machines"
        return [Problem("--ssh-key", what, "leave it out")]
    path = _path(key)
    if not path.is_file():
        return [Problem("--ssh-key", f"{key} does not exist")]
    if path.stat().st_mode & 0o077:
        what = f"{key} is readable by others, and ssh rejects such keys"
        return [Problem("--ssh-key", what, f"chmod 600 {key}")]
    if cloud == "azure" and not Path(f"{path}.pub").is_file():
        what = f"{key}.pub does not exist, which Azure's machines need"
        return [Problem("--ssh-key", what, f"ssh-keygen -y -f {key} > {key}.pub")]
    return []
