"""How an AKS node pool is configured: disk, purchase options, labels and taints."""

from __future__ import annotations

from dataclasses import dataclass

from trainfleet.infra.spec.schema import Capacity

OS_SKU = "Ubuntu"
"""Azure Linux gets no automatic security patches for GPU drivers, and InfiniBand and Lustre support Ubuntu
(AKS, use NVIDIA GPUs).
"""
PODS_PER_NODE = 110
SPOT = ("kubernetes.azure.com/scalesetpriority", "spot")
GPU_TAINT = ("nvidia.com/gpu", "present")
SYSTEM_TAINT = "CriticalAddonsOnly=true:NoSchedule"
SPOT_TOLERATION = {"key": SPOT[0], "operator": "Equal", "value": SPOT[1], "effect": "NoSchedule"}


@dataclass(frozen=True)
class PurchaseOptions:
    """How a pool's nodes are bought, in AKS's terms. None leaves a property unset."""

    priority: str
    eviction: str | None = None
    price: float | None = None
    reservation: str | None = None

    def __repr__(self) -> str:
        # NOTE: the name of a node pool has a digest of this text. Another text replaces every pool.
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"Market({values})"


def purchase_options(capacity: Capacity, reservation: str) -> PurchaseOptions:
    """Spot nodes are evicted at any time and cost at most the on-demand price; reserved ones use a
    reservation group.
    """
    if capacity is Capacity.SPOT:
        return PurchaseOptions("Spot", eviction="Delete", price=-1.0)
    return PurchaseOptions("Regular", reservation=reservation or None)


def taints(capacity: Capacity) -> list[str]:
    """Taints of GPU and spot nodes. NOTE: AKS adds the spot taint and label itself and reports a diff if they
    are missing.
    """
    key, value = GPU_TAINT
    spot = [f"{SPOT[0]}={SPOT[1]}:NoSchedule"] if capacity is Capacity.SPOT else []
    return [f"{key}={value}:NoSchedule", *spot]


def tolerations(capacity: Capacity) -> tuple[dict[str, str], ...]:
    """Tolerations in addition to the GPU toleration."""
    return (SPOT_TOLERATION,) if capacity is Capacity.SPOT else ()
