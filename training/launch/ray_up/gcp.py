"""Compute Engine machines for Ray's launcher.

Ray gives the head a service account of its own (`ray-autoscaler-sa-v1`), which may create machines; workers
get the platform's training account. A machine with GPUs cannot be live-migrated and must declare it.
"""

from __future__ import annotations

from trainfleet.training.launch.ray_up.cluster_yaml import Document
from trainfleet.training.launch.ray_up.cluster_yaml import node_types as types
from trainfleet.training.launch.ray_up.run_spec import RunSpec

HEAD_TYPE = "e2-standard-4"
CPU_TYPE = "e2-standard-8"
MACHINE_IMAGE = (
    "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2204-nvidia-580"
)
"""Google's image with the driver, Docker and NVIDIA's container toolkit."""
HEAD_GIB, WORKER_GIB = 100, 200
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
ATTACHED = {"n1-": {"T4": "nvidia-tesla-t4"}}
"""Machine types whose GPUs are attached separately, by name prefix; all others include theirs."""


def provider(run: RunSpec) -> Document:
    """Where the machines are created. Released ones are deleted: stopped ones would cost disks."""
    region = run.outputs.region
    return {
        "type": "gcp",
        "region": region,
        "availability_zone": run.zone or f"{region}-a",
        "project_id": run.outputs.account,
        "cache_stopped_nodes": False,
    }


def auth(run: RunSpec) -> Document:  # noqa: ARG001 - every cloud has the same arguments
    """In addition to the user: Ray creates a key."""
    return {}


def node_types(run: RunSpec) -> Document:
    """Head and workers."""
    pool = run.pool
    worker = _machine(run, pool.instance_type if pool is not None else CPU_TYPE, WORKER_GIB)
    if run.identity:
        worker["serviceAccounts"] = [{"email": run.identity, "scopes": [SCOPE]}]
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
    return types(run, _machine(run, HEAD_TYPE, HEAD_GIB), worker)


def login(run: RunSpec) -> list[str]:
    """Log Docker in to Artifact Registry with the machine's identity."""
    host = run.image.partition("/")[0]
    return [f"gcloud auth configure-docker {host} --quiet"] if host.endswith("docker.pkg.dev") else []


def _machine(run: RunSpec, machine_type: str, gib: int) -> Document:
    image = {"diskSizeGb": gib, "sourceImage": run.machine_image or MACHINE_IMAGE}
    return {
        "machineType": machine_type,
        "disks": [{"boot": True, "autoDelete": True, "type": "PERSISTENT", "initializeParams": image}],
        "labels": {"trainfleet-run": run.name},
    }
