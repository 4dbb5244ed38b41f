"""What is looked at before the first machine starts: programs and packages that Ray's launcher needs here, and Ray's own judgement.

Used by `training.launch.ray_up`. Easy to get wrong: Ray fills in defaults before it validates, so it is handed the file as `ray up` hands it.
"""

from __future__ import annotations

import copy
import importlib.util
import shutil
from pathlib import Path

from trainfleet.errors import InputError, MissingToolError, Problem
from training.launch.ray_up.document import Document, cluster_document, files
from training.launch.ray_up.site import Site

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
"""By cloud: modules that Ray's launcher imports here, and who has them. Trainfleet does not bring them: it talks to no cloud itself."""


def ready_for(site: Site) -> None:
    """See that the cluster can be asked for from here.

    Raises:
        MissingToolError: a program or package is not here.
        InputError: Ray refuses the cluster file.
    """
    missing = [Problem(program, "is not on the path", f"apt install {package}") for program, package in PROGRAMS.items() if not shutil.which(program)]
    absent = [package for module, package in PACKAGES[site.cloud].items() if not _there(module)]
    if absent:
        missing.append(Problem(f"Ray's launcher for {site.cloud}", "lacks Python packages", f"pip install {' '.join(absent)}"))
    if missing:
        raise MissingToolError("something that `ray up` needs is not here", missing)
    judged_by_ray(cluster_document(site, files(Path("cluster.yaml"))))


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
