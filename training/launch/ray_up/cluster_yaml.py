"""The cluster file that `ray up` reads, and the files that it refers to.

NOTE: Ray copies the cluster file to the head, so it must not hold secrets. The token and keys are separate
files, which travel by ssh; the dashboard listens on the head itself only.
"""

from __future__ import annotations

import importlib
import ipaddress
import json
import os
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainfleet.training.launch.ray_up.run_spec import RunSpec
from trainfleet.training.launch.remote.ray_job import (
    DASHBOARD_PORT,
    HEAD_PORT,
    METRICS_PORT,
    OBJECT_STORE_BYTES,
    RayJob,
    ray_job,
)
from trainfleet.training.launch.remote.run_price import price_variable, usd_per_hour
from trainfleet.training.launch.remote.storage_env import trust_variables
from trainfleet.training.recipe.load import dump
from trainfleet.training.runtime.code_archive import CODE, CODE_COPIES, archive_path, digest_of
from trainfleet.training.runtime.events import JOB

Document = dict[str, Any]

HEAD = "head"
WORKERS = "workers"
FOLDER = ".trainfleet/ray-up"
"""On each machine, in the home folder."""
IDLE_MINUTES = 10
NOFILE = 65536
PROVIDERS = {
    "aws": "ray.autoscaler._private.aws.node_provider",
    "gcp": "ray.autoscaler._private.gcp.node_provider",
    "azure": "ray.autoscaler._private._azure.node_provider",
}
"""Ray's module for the machines of each cloud; images/ray_up.lock has what it imports."""
IDLE_WATCH = "trainfleet.training.launch.ray_up.idle_watch"
IMAGE_USER = 1000
"""The user of images/Dockerfile."""
MODULES = {"aws": "aws", "gcp": "gcp", "azure": "azure", "local": "local"}


@dataclass(frozen=True)
class ClusterFiles:
    """The cluster file and those that it refers to, on this machine."""

    cluster: Path
    recipe: Path
    token: Path
    keys: Path
    ca: Path
    code: Path


def cluster_files(cluster: Path) -> ClusterFiles:
    """The paths of the files of the cluster file `cluster`."""
    stem = cluster.with_suffix("")
    kinds = ("recipe.yaml", "token", "keys", "ca.crt", "code.tar.gz")
    return ClusterFiles(cluster, *(stem.with_name(f"{stem.name}.{kind}") for kind in kinds))


def cluster_document(run: RunSpec, paths: ClusterFiles) -> Document:
    """The whole cluster file."""
    cloud: Any = importlib.import_module(f"trainfleet.training.launch.ray_up.{MODULES[run.cloud]}")
    return {
        "cluster_name": run.name,
        "max_workers": _max_workers(run),
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": IDLE_MINUTES,
        "provider": cloud.provider(run),
        "auth": {
            "ssh_user": run.ssh_user,
            **({"ssh_private_key": run.ssh_key} if run.ssh_key else {}),
            **cloud.auth(run),
        },
        **({"docker": _container(run)} if run.docker else {}),
        **cloud.node_types(run),
        "file_mounts": _mounts(run, paths),
        "initialization_commands": [_let_the_image_read(run, paths), *cloud.login(run)] if run.docker else [],
        "setup_commands": _inside(run, [_require_trainfleet(), _require_files()]),
        "head_setup_commands": _inside(run, _require_provider(run.cloud)),
        "worker_setup_commands": [],
        "head_start_ray_commands": _inside(
            run,
            [
                "ray stop",
                _start(run, _head_options(run)),
                _watch(run),
            ],
        ),
        "worker_start_ray_commands": _inside(run, ["ray stop", _start(run, _worker_options(run))]),
    }


def node_type(run: RunSpec, config: Document, worker: bool) -> Document:
    """One of Ray's node types. Its resources are what the run's workers on it need; the head has none."""
    if not worker:
        return {"resources": {"CPU": 0}, "min_workers": 0, "max_workers": 0, "node_config": config}
    gpus = {"GPU": run.per_node} if run.recipe.scaling.use_gpu else {}
    least = (run.pool.min_nodes if run.pool else 0) if run.stays else run.min_nodes
    return {
        "resources": {"CPU": cpus(run), **gpus},
        "min_workers": min(least, _max_workers(run)),
        "max_workers": _max_workers(run),
        "node_config": config,
    }


def node_types(run: RunSpec, head: Document, worker: Document) -> Document:
    """Head and workers in Ray's format."""
    name = run.pool.name if run.pool is not None else WORKERS
    return {
        "head_node_type": HEAD,
        "available_node_types": {
            HEAD: node_type(run, head, worker=False),
            f"worker-{name}": node_type(run, worker, worker=True),
        },
    }


def cpus(run: RunSpec) -> int:
    """CPUs that the workers of one machine need, rounded up."""
    return max(1, -int(-run.per_node * run.recipe.cpus_per_rank // 1))


def rendered(run: RunSpec, paths: ClusterFiles) -> str:
    """The cluster file as text."""
    text = yaml.safe_dump(cluster_document(run, paths), sort_keys=False, width=150)
    head = (
        f"# Ray cluster for the recipe {run.recipe.name}. Start: ray up; stop: ray down. Holds no secrets.\n"
    )
    return head + text


def write(run: RunSpec, cluster: Path, env: Mapping[str, str]) -> ClusterFiles:
    """Write the cluster file and those that it refers to. An existing token stays: its machines may be up."""
    paths = cluster_files(cluster)
    cluster.parent.mkdir(parents=True, exist_ok=True)
    cluster.write_text(rendered(run, _absolute(paths)), encoding="utf-8")
    paths.recipe.write_text(dump(run.recipe), encoding="utf-8")
    if not paths.token.exists():
        _private(paths.token, secrets.token_hex(32))
    if run.secrets:
        _private(paths.keys, "".join(f"{name}={shlex.quote(env[name])}\n" for name in run.secrets))
    if run.ca:
        paths.ca.write_text(run.ca, encoding="utf-8")
    if run.archive:
        paths.code.write_bytes(run.archive)
    return paths


def _absolute(paths: ClusterFiles) -> ClusterFiles:
    every = (paths.cluster, paths.recipe, paths.token, paths.keys, paths.ca, paths.code)
    return ClusterFiles(*(path.absolute() for path in every))


def _private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def next_steps(run: RunSpec, cluster: Path) -> str:
    """The commands for the files of `--write`."""
    paths = cluster_files(cluster)
    environment = shlex.quote(json.dumps({"env_vars": variables_of(run)}))
    written = [
        each for each in (paths.recipe, paths.token, paths.keys, paths.ca, paths.code) if each.exists()
    ]
    submit = f"ray job submit --address http://127.0.0.1:{DASHBOARD_PORT} --runtime-env-json {environment}"
    return "\n".join(
        [
            f"wrote {cluster} and, in the same folder, {', '.join(each.name for each in written)}",
            "",
            f"ray up {cluster}",
            f"ray dashboard {cluster} &",
            f"export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={paths.token.absolute()}",
            f"{submit} -- sh -c 'python -m trainfleet.training.run ~/{FOLDER}/recipe.yaml'",
            f"ray down {cluster}",
            "",
        ]
    )


def paid_for(run: RunSpec) -> list[str]:
    """Which machines cost money, how much, and until when. Empty for hosts, whose price nobody knows."""
    if run.hosts:
        return []
    cloud: Any = importlib.import_module(f"trainfleet.training.launch.ray_up.{MODULES[run.cloud]}")
    machine = run.pool.instance_type if run.pool is not None else cloud.CPU_TYPE
    spot = " (spot)" if run.pool is not None and run.pool.spot else ""
    most = _max_workers(run)
    price = usd_per_hour(run.pool, most)
    each = "at a price that the contract does not have" if price is None else f"at ${price:,.2f}/h"
    end = "`ray down`" if run.stays else "the run ends"
    end += f", and at the latest until {run.idle_minutes:g} minutes after the last run needed them"
    return [
        f"paid for: {'up to ' if run.stays or run.min_nodes < most else ''}{most} x {machine}{spot} {each}, "
        f"and the head, 1 x {cloud.HEAD_TYPE}; until {end}"
    ]


def variables_of(run: RunSpec) -> dict[str, str]:
    """The variables of the run. None of them is secret."""
    # `ray up` returns when the head is up; workers come when they are requested.
    autoscaled = {"TRAINFLEET_AUTOSCALED": "1"}
    code = {CODE: run.code, CODE_COPIES: f"~/{FOLDER}/code"} if run.code else {}
    return {**run.env, **autoscaled, **code, **(trust_variables(run.env, _ca(run)) if run.ca else {})}


def _ca(run: RunSpec) -> str:
    return f"/tmp/trainfleet-{run.name}/ca.crt"


def submitted_job(run: RunSpec) -> RayJob:
    """What Ray's job server is asked to do."""
    timeout = {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(round(run.within_s))}
    price = price_variable(run.usd_per_hour)
    job = {JOB: run.instead} if run.instead else {}
    variables = {**variables_of(run), **timeout, **price, **job}
    return ray_job(run.recipe.name, run.launch, run.allow_changes, variables)


def _max_workers(run: RunSpec) -> int:
    if run.stays and run.pool is not None:
        return max(run.pool.max_nodes, run.nodes)
    return run.nodes


def _container(run: RunSpec) -> Document:
    return {
        "image": run.image,
        "container_name": "trainfleet",
        "pull_before_run": True,
        "run_options": [f"--ulimit nofile={NOFILE}:{NOFILE}"],
    }


def _mounts(run: RunSpec, paths: ClusterFiles) -> dict[str, str]:
    mounts = {f"~/{FOLDER}/recipe.yaml": str(paths.recipe), f"~/{FOLDER}/token": str(paths.token)}
    if run.secrets:
        mounts[f"~/{FOLDER}/keys"] = str(paths.keys)
    if run.ca:
        mounts[_ca(run)] = str(paths.ca)
    if run.archive:
        mounts[f"~/{FOLDER}/{archive_path(digest_of(run.code))}"] = str(paths.code)
    return mounts


def _require_trainfleet() -> str:
    text = "this machine lacks Ray or Trainfleet: use an image (--image), or install it for this user"
    test = "ray --version && python -c 'import trainfleet.training'"
    return f"{test} || {{ echo {shlex.quote(text)} >&2; exit 1; }}"


def _inside(run: RunSpec, commands: list[str]) -> list[str]:
    """The commands as they run where Ray is. In a container, with the path of the image.

    NOTE: Ray runs every command in a login shell, whose /etc/profile replaces the path of a Debian image.
    """
    path = "$(tr '\\0' '\\n' < /proc/1/environ | sed -n s/^PATH=//p)"
    return [f'export PATH="{path}:$PATH"; {each}' for each in commands] if run.docker else commands


def _require_files() -> str:
    text = f"cannot read ~/{FOLDER}: the image's user is another than the machine's, which has no setfacl"
    return f"test -r ~/{FOLDER}/token || {{ echo {shlex.quote(text)} >&2; exit 1; }}"


def _require_provider(cloud: str) -> list[str]:
    """The head's autoscaler creates and deletes machines; without its packages it would create no worker."""
    if cloud not in PROVIDERS:
        return []
    text = f"the image lacks what Ray needs on {cloud}: install images/ray_up.lock in it"
    test = f"python -c 'import {PROVIDERS[cloud]}'"
    return [f"{test} || {{ echo {shlex.quote(text)} >&2; exit 1; }}"]


def _let_the_image_read(run: RunSpec, paths: ClusterFiles) -> str:
    """Let the image's user read the copied files, if the machine's user has another number.

    Ray copies them as the machine's user before this command, and mounts them into the container after it
    (updater.do_update, command_runner.run_init).
    """
    # Ray does not expand the `~` in this path.
    folder = f"/tmp/ray_tmp_mount/{run.name}"
    files = " ".join(shlex.quote(f"{folder}/{target}") for target in _mounts(run, paths))
    return f'test "$(id -u)" = {IMAGE_USER} || setfacl -m u:{IMAGE_USER}:r {files} || true'


def _start(run: RunSpec, options: list[str]) -> str:
    steps = [f"ulimit -n {NOFILE} || true"]
    if run.secrets:
        steps.append(f"set -a; . $HOME/{FOLDER}/keys; set +a")
    if run.hosts:
        # With existing hosts, Ray 2.60's autoscaler v2 does not recognize the head and starts no
        # worker.
        steps.append("export RAY_enable_autoscaler_v2=0")
    steps += [
        f"export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$HOME/{FOLDER}/token RAY_USAGE_STATS_ENABLED=0",
        " ".join(
            [
                "ray start",
                *options,
                f"--object-store-memory={OBJECT_STORE_BYTES}",
                f"--metrics-export-port={METRICS_PORT}",
            ]
        ),
    ]
    return "; ".join(steps)


def _watch(run: RunSpec) -> str:
    """Start the process that deletes the machines when no run needs them."""
    keep = " --keep-workers" if run.stays or run.hosts else ""
    token = f"$HOME/{FOLDER}/token"
    command = f"python -m {IDLE_WATCH} --idle-minutes {run.idle_minutes:g}{keep} --token {token}"
    # The terminal of this command ends with it, and would end the process.
    return (
        f"export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={token}; "
        f"setsid nohup {command} > /tmp/ray/session_latest/logs/idle_watch.log 2>&1 < /dev/null &"
    )


def _head_options(run: RunSpec) -> list[str]:
    """The head does not train, and its dashboard is reached by ssh only.

    Its address is given, because Ray cannot detect it in a network without egress.
    """
    return [
        *([f"--node-ip-address={run.hosts[0]}"] if run.hosts and _is_address(run.hosts[0]) else []),
        *("--head", f"--port={HEAD_PORT}", "--num-cpus=0", "--num-gpus=0"),
        *(
            "--dashboard-host=127.0.0.1",
            f"--dashboard-port={DASHBOARD_PORT}",
            "--autoscaling-config=~/ray_bootstrap_config.yaml",
        ),
    ]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _worker_options(run: RunSpec) -> list[str]:
    """Ray detects the resources of existing hosts itself."""
    address = f"--address=$RAY_HEAD_IP:{HEAD_PORT}"
    if run.hosts:
        return [address]
    gpus = [f"--num-gpus={run.per_node}"] if run.recipe.scaling.use_gpu else []
    return [address, f"--num-cpus={cpus(run)}", *gpus]
