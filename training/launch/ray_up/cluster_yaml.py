"""The cluster file that `ray up` takes, and the files that it names: what all places share; `aws`, `gcp`,
`azure` and `onprem` add their own.

Used by `trainfleet.training.launch.ray_up`. Easy to get wrong: Ray copies the cluster file to the head, so
nothing secret may stand in it; the token
and keys are files of their own, which travel by ssh, and the dashboard listens to the head itself only.
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

from trainfleet.training.launch.kuberay.manifest import ENTRYPOINT, stop_file
from trainfleet.training.launch.kuberay.pods import (
    DASHBOARD_PORT,
    HEAD_PORT,
    METRICS_PORT,
    OBJECT_STORE_BYTES,
)
from trainfleet.training.launch.kuberay.run_spec import trusting
from trainfleet.training.launch.ray_up.run_spec import Site
from trainfleet.training.recipe.load import dump
from trainfleet.training.runtime import events

Document = dict[str, Any]

HEAD = "head"
WORKERS = "workers"
FOLDER = ".trainfleet/ray-up"
"""On each machine, below the home folder."""
IDLE_MINUTES = 10
NOFILE = 65536
MODULES = {"aws": "aws", "gcp": "gcp", "azure": "azure", "local": "onprem"}


@dataclass(frozen=True)
class Files:
    """What lies beside the cluster file, on this machine; the machines get each under its last name."""

    cluster: Path
    recipe: Path
    token: Path
    keys: Path
    ca: Path


def files(cluster: Path) -> Files:
    """The names of the files that belong to the cluster file `cluster`."""
    stem = cluster.with_suffix("")
    return Files(
        cluster,
        *(stem.with_name(f"{stem.name}.{kind}") for kind in ("recipe.yaml", "token", "keys", "ca.crt")),
    )


def cluster_document(site: Site, beside: Files) -> Document:
    """The whole cluster file."""
    place: Any = importlib.import_module(f"trainfleet.training.launch.ray_up.{MODULES[site.cloud]}")
    return {
        "cluster_name": site.name,
        "max_workers": _most(site),
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": IDLE_MINUTES,
        "provider": place.provider(site),
        "auth": {
            "ssh_user": site.ssh_user,
            **({"ssh_private_key": site.ssh_key} if site.ssh_key else {}),
            **place.auth(site),
        },
        **({"docker": _container(site)} if site.docker else {}),
        **place.node_types(site),
        "file_mounts": _mounts(site, beside),
        "initialization_commands": place.login(site) if site.docker else [],
        "setup_commands": [_has_trainfleet()],
        "head_setup_commands": place.head_setup(site),
        "worker_setup_commands": [],
        "head_start_ray_commands": ["ray stop", _start(site, _head_options(site))],
        "worker_start_ray_commands": ["ray stop", _start(site, _worker_options(site))],
    }


def node_type(site: Site, config: Document, worker: bool) -> Document:
    """One of Ray's node types. What a machine offers to Ray is what the run's workers on it need, and nothing
    on the head.
    """
    if not worker:
        return {"resources": {"CPU": 0}, "min_workers": 0, "max_workers": 0, "node_config": config}
    gpus = {"GPU": site.per_node} if site.recipe.scaling.use_gpu else {}
    fewest = (site.pool.min_nodes if site.pool else 0) if site.stays else site.fewest
    return {
        "resources": {"CPU": cpus(site), **gpus},
        "min_workers": min(fewest, _most(site)),
        "max_workers": _most(site),
        "node_config": config,
    }


def node_types(site: Site, head: Document, worker: Document) -> Document:
    """Head and workers as Ray wants them."""
    name = site.pool.name if site.pool is not None else WORKERS
    return {
        "head_node_type": HEAD,
        "available_node_types": {
            HEAD: node_type(site, head, worker=False),
            f"worker-{name}": node_type(site, worker, worker=True),
        },
    }


def cpus(site: Site) -> int:
    """Whole CPUs that the workers of one machine need."""
    return max(1, -int(-site.per_node * site.recipe.scaling.cpus_per_worker // 1))


def rendered(site: Site, beside: Files) -> str:
    """The cluster file as text."""
    text = yaml.safe_dump(cluster_document(site, beside), sort_keys=False, width=150)
    return f"# Ray cluster for the recipe {site.recipe.name}; `ray up` starts it, `ray down` ends it. Nothing secret stands here.\n{text}"


def write(site: Site, cluster: Path, env: Mapping[str, str]) -> Files:
    """Write the cluster file and those that it names; a token that is there stays, for its machines may be
    up.
    """
    beside = files(cluster)
    cluster.parent.mkdir(parents=True, exist_ok=True)
    cluster.write_text(rendered(site, _absolute(beside)), encoding="utf-8")
    beside.recipe.write_text(dump(site.recipe), encoding="utf-8")
    if not beside.token.exists():
        _private(beside.token, secrets.token_hex(32))
    if site.secrets:
        _private(beside.keys, "".join(f"{name}={shlex.quote(env[name])}\n" for name in site.secrets))
    if site.ca:
        beside.ca.write_text(site.ca, encoding="utf-8")
    return beside


def _absolute(beside: Files) -> Files:
    return Files(
        *(path.absolute() for path in (beside.cluster, beside.recipe, beside.token, beside.keys, beside.ca))
    )


def _private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def next_steps(site: Site, cluster: Path) -> str:
    """What a person types with the files of `--write`."""
    beside = files(cluster)
    environment = shlex.quote(json.dumps({"env_vars": variables_of(site)}))
    return "\n".join(
        [
            f"wrote {cluster} and beside it {', '.join(path.name for path in (beside.recipe, beside.token, beside.keys, beside.ca) if path.exists())}",
            "",
            f"ray up {cluster}",
            f"ray dashboard {cluster} &",
            f"export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={beside.token.absolute()}",
            f"ray job submit --address http://127.0.0.1:{DASHBOARD_PORT} --runtime-env-json {environment} -- sh -c 'python -m trainfleet.training.run ~/{FOLDER}/recipe.yaml'",
            f"ray down {cluster}",
            "",
        ]
    )


def variables_of(site: Site) -> dict[str, str]:
    """Variables of the run, none of them secret."""
    later = {
        "TRAINFLEET_AUTOSCALED": "1"
    }  # `ray up` ends when the head is up; workers come when they are asked for
    return {**site.env, **later, **(trusting(site.env, _ca(site)) if site.ca else {})}


def _ca(site: Site) -> str:
    return f"/tmp/trainfleet-{site.name}/ca.crt"


def job_document(site: Site) -> Document:
    """What Ray's job server is asked to do; the same as on Kubernetes."""
    variables = {
        **variables_of(site),
        events.EVENTS: events.STDOUT,
        events.LAUNCH: site.launch,
        events.RUN_DIR: f"/tmp/trainfleet/runs/{site.recipe.name}",
        events.STOP_FILE: stop_file(site.launch),
        "PYTHONUNBUFFERED": "1",
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(round(site.within_s)),
        **({events.ALLOW_CHANGES: ",".join(site.allow_changes)} if site.allow_changes else {}),
    }
    return {"entrypoint": ENTRYPOINT, "env": variables, "metadata": {"run": site.recipe.name}}


def _most(site: Site) -> int:
    if site.stays and site.pool is not None:
        return max(site.pool.max_nodes, site.nodes)
    return site.nodes


def _container(site: Site) -> Document:
    return {
        "image": site.image,
        "container_name": "trainfleet",
        "pull_before_run": True,
        "run_options": [f"--ulimit nofile={NOFILE}:{NOFILE}"],
    }


def _mounts(site: Site, beside: Files) -> dict[str, str]:
    mounts = {f"~/{FOLDER}/recipe.yaml": str(beside.recipe), f"~/{FOLDER}/token": str(beside.token)}
    if site.secrets:
        mounts[f"~/{FOLDER}/keys"] = str(beside.keys)
    if site.ca:
        mounts[_ca(site)] = str(beside.ca)
    return mounts


def _has_trainfleet() -> str:
    said = "this machine lacks Ray or Trainfleet: name an image (--image), or install it for this user"
    return f"ray --version && python -c 'import training' || {{ echo {shlex.quote(said)} >&2; exit 1; }}"


def _start(site: Site, options: list[str]) -> str:
    steps = [f"ulimit -n {NOFILE} || true"]
    if site.secrets:
        steps.append(f"set -a; . $HOME/{FOLDER}/keys; set +a")
    if site.hosts:
        steps.append(
            "export RAY_enable_autoscaler_v2=0"
        )  # Ray 2.60's newer one does not know the head among hosts, and starts no worker
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


def _head_options(site: Site) -> list[str]:
    """The head trains nothing, and its dashboard is reached by ssh alone. Of a network without a way out Ray
    does not find its address.
    """
    return [
        *([f"--node-ip-address={site.hosts[0]}"] if site.hosts and _is_address(site.hosts[0]) else []),
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


def _worker_options(site: Site) -> list[str]:
    """Of hosts that are there Ray finds out itself what they have."""
    address = f"--address=$RAY_HEAD_IP:{HEAD_PORT}"
    if site.hosts:
        return [address]
    gpus = [f"--num-gpus={site.per_node}"] if site.recipe.scaling.use_gpu else []
    return [address, f"--num-cpus={cpus(site)}", *gpus]
