"""Azure machines for Ray's launcher.

Head and workers share the provider's managed identity, so it needs both rights: to create machines in the
resource group, and to write to the storage. An identity that Ray creates has only the first.
"""

from __future__ import annotations

from trainfleet.training.launch.ray_up.cluster_yaml import Document
from trainfleet.training.launch.ray_up.cluster_yaml import node_types as types
from trainfleet.training.launch.ray_up.run_spec import RunSpec

HEAD_TYPE = "Standard_D4s_v5"
CPU_TYPE = "Standard_D8s_v5"
MACHINE_IMAGE = {
    "imagePublisher": "microsoft-dsvm",
    "imageOffer": "ubuntu-2204",
    "imageSku": "2204-gen2",
    "imageVersion": "latest",
}
"""Microsoft's data science machine: driver, Docker, NVIDIA's container toolkit and the az command."""
HEAD_GIB, WORKER_GIB = 150, 256
"""The image itself takes 120."""


def provider(run: RunSpec) -> Document:
    """Where the machines are created: in a resource group of their own, which can be deleted as a whole.

    Released machines are deleted: a deallocated one would cost its disk and its address.
    """
    parts = run.identity.strip("/").split("/")
    identity = {"msi_name": parts[-1], "msi_resource_group": parts[3]} if run.identity else {}
    tags = {"trainfleet-run": run.recipe.name, "trainfleet-platform": run.outputs.name or "none"}
    return {
        "type": "azure",
        "location": run.outputs.region,
        "subscription_id": run.outputs.account,
        "resource_group": f"ray-{run.name}",
        "availability_zone": run.zone or "auto",
        "tags": tags,
        "cache_stopped_nodes": False,
        **identity,
    }


def auth(run: RunSpec) -> Document:
    """In addition to user and key: Azure needs both halves of a key, or none."""
    return {"ssh_public_key": f"{run.ssh_key}.pub"} if run.ssh_key else {}


def node_types(run: RunSpec) -> Document:
    """Head and workers."""
    pool = run.pool
    worker = _machine(run, pool.instance_type if pool is not None else CPU_TYPE, WORKER_GIB)
    if pool is not None and pool.spot:
        worker |= {"priority": "Spot", "billingProfile": {"maxPrice": -1}}
    head = _machine(run, HEAD_TYPE, HEAD_GIB) | {"availability_zone": "none"}
    return types(run, {"azure_arm_parameters": head}, {"azure_arm_parameters": worker})


def login(run: RunSpec) -> list[str]:
    """Log Docker in to the registry with the machine's identity."""
    host = run.image.partition("/")[0]
    if not host.endswith(".azurecr.io"):
        return []
    return [
        "az login --identity --allow-no-subscriptions --output none",
        f"az acr login --name {host.partition('.')[0]}",
    ]


def _machine(run: RunSpec, size: str, gib: int) -> Document:
    image: Document = {"imageId": run.machine_image} if run.machine_image else dict(MACHINE_IMAGE)
    return {"vmSize": size, **image, "osDiskSize": gib, "enableAcceleratedNetworking": True}
