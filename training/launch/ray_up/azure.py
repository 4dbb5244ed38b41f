"""Machines on Azure, as Ray's launcher deploys them. Used by `document`; like its siblings `aws`, `gcp` and
`onprem`.

Easy to get wrong: Ray gives head and workers the one managed identity that the provider names, so that it
needs both rights: to make
machines in the resource group, and in the bucket. Without one Ray makes it, with the first right alone.
"""

from __future__ import annotations

from trainfleet.training.launch.ray_up.cluster_yaml import Document
from trainfleet.training.launch.ray_up.cluster_yaml import node_types as types
from trainfleet.training.launch.ray_up.run_spec import Site

HEAD_SIZE = "Standard_D4s_v5"
CPU_SIZE = "Standard_D8s_v5"
MACHINE_IMAGE = {
    "imagePublisher": "microsoft-dsvm",
    "imageOffer": "ubuntu-2204",
    "imageSku": "2204-gen2",
    "imageVersion": "latest",
}
"""Microsoft's data science machine: driver, Docker, NVIDIA's container toolkit and the az command."""
HEAD_GIB, WORKER_GIB = 150, 256
"""The image itself takes 120."""


def provider(site: Site) -> Document:
    """Where the machines are made: in a resource group of the cluster's own, which can be deleted whole."""
    parts = site.identity.strip("/").split("/")
    identity = {"msi_name": parts[-1], "msi_resource_group": parts[3]} if site.identity else {}
    tags = {"trainfleet-run": site.recipe.name, "trainfleet-platform": site.outputs.name or "none"}
    return {
        "type": "azure",
        "location": site.outputs.region,
        "subscription_id": site.outputs.account,
        "resource_group": f"ray-{site.name}",
        "availability_zone": site.zone or "auto",
        "tags": tags,
        **identity,
    }


def auth(site: Site) -> Document:
    """Beside user and key: Azure wants both halves of a key, or none."""
    return {"ssh_public_key": f"{site.ssh_key}.pub"} if site.ssh_key else {}


def node_types(site: Site) -> Document:
    """Head and workers."""
    pool = site.pool
    worker = _machine(site, pool.instance_type if pool is not None else CPU_SIZE, WORKER_GIB)
    if pool is not None and pool.spot:
        worker |= {"priority": "Spot", "billingProfile": {"maxPrice": -1}}
    head = _machine(site, HEAD_SIZE, HEAD_GIB) | {"availability_zone": "none"}
    return types(site, {"azure_arm_parameters": head}, {"azure_arm_parameters": worker})


def login(site: Site) -> list[str]:
    """Let Docker pull from the registry by the machine's own identity."""
    host = site.image.partition("/")[0]
    if not host.endswith(".azurecr.io"):
        return []
    return [
        "az login --identity --allow-no-subscriptions --output none",
        f"az acr login --name {host.partition('.')[0]}",
    ]


def head_setup(site: Site) -> list[str]:  # noqa: ARG001 - the siblings have the same arguments
    """What Ray's autoscaler needs on the head."""
    packages = "azure-common azure-identity azure-mgmt-compute azure-mgmt-network 'azure-mgmt-resource<25' msrestazure"
    return [f"python -c 'import azure.mgmt.compute' 2>/dev/null || pip install {packages}"]


def _machine(site: Site, size: str, gib: int) -> Document:
    image: Document = {"imageId": site.machine_image} if site.machine_image else dict(MACHINE_IMAGE)
    return {"vmSize": size, **image, "osDiskSize": gib, "enableAcceleratedNetworking": True}
