"""Checks before the first machine starts: local programs, packages, hosts, and Ray's validation."""

from __future__ import annotations

import copy
import importlib.util
import platform
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, MissingToolError, Problem
from trainfleet.training.launch.ray_up.cluster_yaml import Document, cluster_document, cluster_files
from trainfleet.training.launch.ray_up.run_spec import RunSpec
from trainfleet.training.launch.run_record import launcher_process
from trainfleet.training.runs.listing import RETRY, read_info
from trainfleet.training.runtime.progress import duration
from trainfleet.training.runtime.run_lock import started_elsewhere
from trainfleet.training.stores import open_store
from trainfleet.training.stores.lease import IN_PROGRESS

SSH = (
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=10",
    "-o",
    "StrictHostKeyChecking=no",
    "-o",
    "UserKnownHostsFile=/dev/null",
    "-o",
    "LogLevel=ERROR",
)
SSH_FAILED = 255
PROGRAMS = {"ssh": "openssh-client", "rsync": "rsync"}
MODULES = {
    "aws": ("boto3",),
    "gcp": ("googleapiclient", "google_auth_httplib2", "httplib2"),
    "azure": (
        "azure.common.credentials",
        "azure.identity",
        "azure.mgmt.compute",
        "azure.mgmt.network",
        "azure.mgmt.resource.resources",
        "msrestazure",
    ),
    "local": (),
}
"""By cloud: what Ray's launcher imports (ray/autoscaler/_private/<cloud>), in the extra `ray-up`."""


def ready_for(run: RunSpec) -> None:
    """Check that this machine can create the cluster.

    Raises:
        MissingToolError: a program or package is missing.
        InputError: Ray rejects the cluster file, or a host cannot be used.
    """
    missing = [
        Problem(program, "is not on the path", f"apt install {package}")
        for program, package in PROGRAMS.items()
        if not shutil.which(program)
    ]
    absent = [module for module in MODULES[run.cloud] if not _is_installed(module)]
    if absent:
        what = f"cannot import {', '.join(absent)}"
        fix = "pip install 'trainfleet[ray-up]'"
        missing.append(Problem(f"Ray's launcher for {run.cloud}", what, fix))
    if missing:
        raise MissingToolError("something that `ray up` needs is missing", missing)
    validated_by_ray(cluster_document(run, cluster_files(Path("cluster.yaml"))))
    if problems := [problem for host in run.hosts for problem in _host_problems(run, host)]:
        raise InputError("a host cannot be used", problems)


def require_free(home: str, within_s: float) -> None:
    """Check that no other launch trains this run or starts its machines: starting Ray on them again would end
    it.

    Args:
        home: the folder or URL of the run.
        within_s: how long a launch may wait for its machines. Until then, a launch elsewhere without a first
            step counts as alive.

    Raises:
        InputError: another launch renews the run's lease, or may be starting its machines.
    """
    info = read_info(open_store(home, RETRY), home.rpartition("/")[2])
    if info is None:
        return
    if info.state == "running":
        raise started_elsewhere(info.name, home)
    age = info.age_s()
    if info.state == "not started" and age is not None and age < within_s and _may_be_alive(info.launch):
        who, host = info.owner or "another user", info.launch.get("host", "another machine")
        what = f"{who} launched it on {host} {duration(age)} ago, and may be starting its machines"
        fix = f"wait for its first step; if that launch has ended, {duration(within_s - age)}; or --run NAME"
        raise InputError(IN_PROGRESS, [Problem(home, what, fix)])


def _may_be_alive(launch: Mapping[str, Any]) -> bool:
    """Whether the launcher of a launch may run, or has left its run to its machines."""
    elsewhere = launch.get("host") != platform.node()
    return elsewhere or launch.get("status") == "detached" or launcher_process(launch) is not None


def _host_problems(run: RunSpec, host: str) -> list[Problem]:
    """Why Ray could not use a host. Ray itself would wait 15 minutes for one that denies the login.

    Workers need not be reachable from this machine.
    """
    key = ["-i", run.ssh_key, "-o", "IdentitiesOnly=yes"] if run.ssh_key else []
    command = "command -v rsync >/dev/null || echo lacks-rsync"
    done = subprocess.run(
        ["ssh", *SSH, *key, f"{run.ssh_user}@{host}", command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    last_line = (done.stderr.strip().splitlines() or [f"ssh ended with {done.returncode}"])[-1]
    if done.returncode == SSH_FAILED and (host == run.hosts[0] or "denied" in last_line.lower()):
        return [
            Problem(
                f"--host {host}",
                last_line,
                "check --ssh-user and --ssh-key; `ssh` must work without a prompt",
            )
        ]
    if "lacks-rsync" in done.stdout:
        return [
            Problem(f"--host {host}", "has no rsync, which Ray copies files with", "apt install rsync there")
        ]
    return []


def validated_by_ray(document: Document) -> Document:
    """The cluster file with Ray's defaults, validated against Ray's schema as `ray up` does it.

    Raises:
        InputError: Ray rejects it.
    """
    from ray.autoscaler._private.util import prepare_config, validate_config

    try:
        prepared: Document = prepare_config(copy.deepcopy(document))
        validate_config(prepared)
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError("Ray rejects the cluster file", [Problem("cluster file", lines[0])]) from error
    return prepared


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
