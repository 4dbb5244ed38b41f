"""How one node pool of AKS is made: disk, market, labels, taints, and what cannot change without another pool. Pure parts first.

Used by cluster.py (the one pool AKS wants inline), system_pool.py and gpu_pools.py. Easy to get wrong: AKS adds the spot taint
and label itself and sees a change wherever they are not written down; a disk on the machine itself must fit into what it has.
"""

from __future__ import annotations

from dataclasses import dataclass

from infra.machines import Machine
from infra.spec import Capacity

TEMPORARY_DISK_GIB = {
    "Standard_NC4as_T4_v3": 180,
    "Standard_NC64as_T4_v3": 2880,
    "Standard_NC24ads_A100_v4": 64,
    "Standard_NC48ads_A100_v4": 128,
    "Standard_NC96ads_A100_v4": 256,
    "Standard_ND96asr_v4": 6000,
    "Standard_ND96amsr_A100_v4": 6400,
    "Standard_NC40ads_H100_v5": 128,
    "Standard_NC80adis_H100_v5": 256,
    "Standard_ND96isr_H100_v5": 1000,
    "Standard_ND96isr_H200_v5": 1000,
    "Standard_NV36ads_A10_v5": 720,
    "Standard_NV72ads_A10_v5": 1400,
}
"""The temporary disk of a machine, where its root disk can live for nothing (Azure virtual machine sizes); 0 where there is none."""
UNRESERVABLE = ("Standard_ND", "Standard_NC40ads_H100", "Standard_NC80adis_H100")
"""Series of which no capacity can be reserved (Azure, on-demand capacity reservation, limitations, 2026-02-17)."""
OS_SKU = "Ubuntu"
"""Azure Linux gets no security patches for GPU drivers by itself, and InfiniBand and Lustre know Ubuntu (AKS, use NVIDIA GPUs)."""
PODS_PER_NODE = 110
LARGEST_DISK_GIB = 2048
"""The largest root disk that AKS gives a node (AKS agent pools, osDiskSizeGB)."""
SPOT = ("kubernetes.azure.com/scalesetpriority", "spot")
GPU_TAINT = ("nvidia.com/gpu", "present")
SYSTEM_TAINT = "CriticalAddonsOnly=true:NoSchedule"
SPOT_TOLERATION = {"key": SPOT[0], "operator": "Equal", "value": SPOT[1], "effect": "NoSchedule"}


@dataclass(frozen=True)
class Market:
    """How a pool's nodes are bought, as AKS says it; None where AKS wants nothing said."""

    priority: str
    eviction: str | None = None
    price: float | None = None
    reservation: str | None = None


def market(capacity: Capacity, reservation: str) -> Market:
    """Spot nodes go when Azure wants them back, at most for the on-demand price; reserved ones come out of a group."""
    if capacity is Capacity.SPOT:
        return Market("Spot", eviction="Delete", price=-1.0)
    return Market("Regular", reservation=reservation or None)


def os_disk(machine: Machine, disk_gib: int) -> str:
    """On the machine's own temporary disk where the root disk fits: faster, free, and gone with the node. Else a managed disk."""
    return "Ephemeral" if TEMPORARY_DISK_GIB.get(machine.instance_type, 0) >= disk_gib else "Managed"


def taints(capacity: Capacity) -> list[str]:
    """GPU nodes take GPU pods only, spot nodes only those that know they may end."""
    key, value = GPU_TAINT
    spot = [f"{SPOT[0]}={SPOT[1]}:NoSchedule"] if capacity is Capacity.SPOT else []
    return [f"{key}={value}:NoSchedule", *spot]


def tolerations(capacity: Capacity) -> tuple[dict[str, str], ...]:
    """What pods need beside the GPU toleration."""
    return (SPOT_TOLERATION,) if capacity is Capacity.SPOT else ()


def reservable(machine: Machine) -> bool:
    """Whether Azure reserves capacity of this machine."""
    return not machine.instance_type.startswith(UNRESERVABLE)
