"""How one node pool of AKS is made: disk, market, labels, taints, and what cannot change without another
pool. Pure parts first.

Used by cluster.py (the one pool AKS wants inline), system_pool.py and gpu_pools.py. Easy to get wrong: AKS
adds the spot taint
and label itself and sees a change wherever they are not written down; a disk on the machine itself must fit
into what it has.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainfleet.infra.azure.sizes import TEMPORARY_DISK_GIB
from trainfleet.infra.catalog.machines import Machine
from trainfleet.infra.spec.schema import Capacity

OS_SKU = "Ubuntu"
"""Azure Linux gets no security patches for GPU drivers by itself, and InfiniBand and Lustre know Ubuntu (AKS,
use NVIDIA GPUs).
"""
PODS_PER_NODE = 110
SPOT = ("kubernetes.azure.com/scalesetpriority", "spot")
GPU_TAINT = ("nvidia.com/gpu", "present")
SYSTEM_TAINT = "CriticalAddonsOnly=true:NoSchedule"
SPOT_TOLERATION = {"key": SPOT[0], "operator": "Equal", "value": SPOT[1], "effect": "NoSchedule"}


@dataclass(frozen=True)
class PurchaseOptions:
    """How a pool's nodes are bought, as AKS says it; None where AKS wants nothing said."""

    priority: str
    eviction: str | None = None
    price: float | None = None
    reservation: str | None = None


def purchase_options(capacity: Capacity, reservation: str) -> PurchaseOptions:
    """Spot nodes go when Azure wants them back, at most for the on-demand price; reserved ones come out of a
    group.
    """
    if capacity is Capacity.SPOT:
        return PurchaseOptions("Spot", eviction="Delete", price=-1.0)
    return PurchaseOptions("Regular", reservation=reservation or None)


def os_disk(machine: Machine, disk_gib: int) -> str:
    """On the machine's own temporary disk where the root disk fits: faster, free, and gone with the node.
    Else a managed disk.
    """
    return "Ephemeral" if TEMPORARY_DISK_GIB.get(machine.instance_type, 0) >= disk_gib else "Managed"


def taints(capacity: Capacity) -> list[str]:
    """GPU nodes take GPU pods only, spot nodes only those that know they may end."""
    key, value = GPU_TAINT
    spot = [f"{SPOT[0]}={SPOT[1]}:NoSchedule"] if capacity is Capacity.SPOT else []
    return [f"{key}={value}:NoSchedule", *spot]


def tolerations(capacity: Capacity) -> tuple[dict[str, str], ...]:
    """What pods need beside the GPU toleration."""
    return (SPOT_TOLERATION,) if capacity is Capacity.SPOT else ()
