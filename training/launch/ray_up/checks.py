"""What is looked at before the first machine starts: programs and packages that Ray's launcher needs here,
and Ray's own judgement.

Used by `trainfleet.training.launch.ray_up`. Easy to get wrong: Ray fills in defaults before it validates, so
it is handed the file as `ray up` hands it.
"""

from __future__ import annotations

import copy
import importlib.util
import shutil
import subprocess
from pathlib import Path

from trainfleet.errors import InputError, MissingToolError, Problem
from trainfleet.training.launch.ray_up.cluster_yaml import Document, cluster_document, files
from trainfleet.training.launch.ray_up.run_spec import Site

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
PACKAGES = {
    "aws": {"boto3": "boto3"},
    "gcp": {"googleapiclient": "google-api-python-client"},
    "azure": {
        "azure.common": "azure-common",
        "azure.mgmt.compute": "azure-mgmt-compute",
        "azure.mgmt.network": "azure-mgmt-network",
        "azure.mgmt.resource": "'azure-mgmt-resource<25'",
        "msrestazure": "msrestazure",
    },
    "local": {},
}
"""By cloud: modules that Ray's launcher imports here, and who has them. Trainfleet does not bring them: it
talks to no cloud itself.
"""


def ready_for(site: Site) -> None:
    """See that the cluster can be asked for from here.

    Raises:
        MissingToolError: a program or package is not here.
        InputError: Ray refuses the cluster file.
    """
    missing = [
        Problem(program, "is not on the path", f"apt install {package}")
        for program, package in PROGRAMS.items()
        if not shutil.which(program)
    ]
    absent = [package for module, package in PACKAGES[site.cloud].items() if not _there(module)]
    if absent:
        missing.append(
            Problem(
                f"Ray's launcher for {site.cloud}", "lacks Python packages", f"pip install {' '.join(absent)}"
            )
        )
    if missing:
        raise MissingToolError("something that `ray up` needs is not here", missing)
    judged_by_ray(cluster_document(site, files(Path("cluster.yaml"))))
    if problems := [problem for host in site.hosts for problem in _let_in(site, host)]:
        raise InputError("a host cannot be used", problems)


def _let_in(site: Site, host: str) -> list[Problem]:
    """Why Ray could not use a host. It waits a quarter of an hour for one that does not let it in; a worker
    need not be reached from here.
    """
    key = ["-i", site.ssh_key, "-o", "IdentitiesOnly=yes"] if site.ssh_key else []
    asked = "command -v rsync >/dev/null || echo lacks-rsync"
    done = subprocess.run(
        ["ssh", *SSH, *key, f"{site.ssh_user}@{host}", asked],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    said = (done.stderr.strip().splitlines() or [f"ssh ended with {done.returncode}"])[-1]
    if done.returncode == SSH_FAILED and (host == site.hosts[0] or "denied" in said.lower()):
        return [
            Problem(
                f"--host {host}",
                said,
                "--ssh-user and --ssh-key say who may enter; `ssh` by hand must work without a question",
            )
        ]
    if "lacks-rsync" in done.stdout:
        return [
            Problem(f"--host {host}", "has no rsync, by which Ray brings files", "apt install rsync there")
        ]
    return []


def judged_by_ray(document: Document) -> Document:
    """The cluster file with Ray's defaults, as it passes Ray's schema.

    Raises:
        InputError: Ray refuses it.
    """
    from ray.autoscaler._private.util import prepare_config, validate_config

    try:
        prepared: Document = prepare_config(copy.deepcopy(document))
        validate_config(prepared)
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError("Ray refuses the cluster file", [Problem("cluster file", lines[0])]) from error
    return prepared


def _there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
