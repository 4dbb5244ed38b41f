"""Machines on GCP, as Ray's launcher asks Compute Engine for them. Used by `document`; like its siblings
`aws`, `azure` and `onprem`.

Easy to get wrong: Ray gives the head a service account of its own (`ray-autoscaler-sa-v1`), which may make
machines; workers get the
platform's training account. A machine with GPUs cannot be moved while it runs and must say so.
"""

from __future__ import annotations

from trainfleet.training.launch.ray_up.cluster_yaml import Document
from trainfleet.training.launch.ray_up.cluster_yaml import node_types as types
from trainfleet.training.launch.ray_up.run_spec import Site

HEAD_TYPE = "e2-standard-4"
CPU_TYPE = "e2-standard-8"
MACHINE_IMAGE = (
    "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2204-nvidia-580"
)
"""Google's image with the driver, Docker and NVIDIA's container toolkit."""
HEAD_GIB, WORKER_GIB = 100, 200
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
ATTACHED = {"n1-": {"T4": "nvidia-tesla-t4"}}
"""Machines that come without GPUs and have them attached, by the start of their names; all others bring
theirs.
"""


def provider(site: Site) -> Document:
    """Where the machines are made."""
    region = site.outputs.region
    return {
        "type": "gcp",
        "region": region,
        "availability_zone": site.zone or f"{region}-a",
        "project_id": site.outputs.account,
    }


def auth(site: Site) -> Document:  # noqa: ARG001 - the siblings have the same arguments
    """Beside user and key; without a key Ray makes one."""
    return {}


def node_types(site: Site) -> Document:
    """Head and workers."""
    pool = site.pool
    worker = _machine(site, pool.instance_type if pool is not None else CPU_TYPE, WORKER_GIB)
    if site.identity:
        worker["serviceAccounts"] = [{"email": site.identity, "scopes": [SCOPE]}]
    scheduling: Document = {}
    if pool is not None:
        scheduling["onHostMaintenance"] = "TERMINATE"
        attached = next(
            (kinds for start, kinds in ATTACHED.items() if pool.instance_type.startswith(start)), {}
        )
        if pool.accelerator in attached:
            worker["guestAccelerators"] = [
                {"acceleratorType": attached[pool.accelerator], "acceleratorCount": pool.per_node}
            ]
        if pool.spot:
            scheduling |= {
                "provisioningModel": "SPOT",
                "instanceTerminationAction": "DELETE",
                "automaticRestart": False,
            }
    if scheduling:
        worker["scheduling"] = scheduling
    return types(site, _machine(site, HEAD_TYPE, HEAD_GIB), worker)


def login(site: Site) -> list[str]:
    """Let Docker pull from Artifact Registry by the machine's own identity."""
    host = site.image.partition("/")[0]
    return [f"gcloud auth configure-docker {host} --quiet"] if host.endswith("docker.pkg.dev") else []


def head_setup(site: Site) -> list[str]:  # noqa: ARG001 - the siblings have the same arguments
    """What Ray's autoscaler needs on the head."""
    return ["python -c 'import googleapiclient' 2>/dev/null || pip install 'google-api-python-client>=2.100'"]


def _machine(site: Site, machine_type: str, gib: int) -> Document:
    image = {"diskSizeGb": gib, "sourceImage": site.machine_image or MACHINE_IMAGE}
    return {
        "machineType": machine_type,
        "disks": [{"boot": True, "autoDelete": True, "type": "PERSISTENT", "initializeParams": image}],
        "labels": {"trainfleet-run": site.name},
    }
