"""Tables of what Azure sells: temporary disks, reservable machines, filesystem sizes, and AKS's inline pool.
Imports no SDK.
"""

from __future__ import annotations

from trainfleet.api_limits import limit
from trainfleet.infra.catalog.machines import Machine

TEMPORARY_DISK_GIB = {
    "Standard_NC4as_T4_v3": 180,
    "Standard_NC8as_T4_v3": 360,
    "Standard_NC16as_T4_v3": 360,
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
    "Standard_NV36adms_A10_v5": 720,
    "Standard_NV72ads_A10_v5": 1400,
}
"""The temporary disk of a machine, which can hold the root disk for free (Azure virtual machine sizes)."""
UNRESERVABLE = ("Standard_ND", "Standard_NC40ads_H100", "Standard_NC80adis_H100")
"""Series without capacity reservations (Azure, on-demand capacity reservation, limitations, 2026-02-17)."""
LARGEST_DISK_GIB = 2048
"""The largest root disk that AKS gives a node (AKS agent pools, osDiskSizeGB)."""
LUSTRE_STEPS_TIB: dict[int, int] = {
    speed: limit(f"azure.lustre_tib.{speed}", "multipleOf") for speed in (125, 250, 500)
}
"""By MB/s for each TiB: the step in which capacity is sold, and its least (Managed Lustre documentation,
throughput and sizes).
"""
LONGEST_RECOVERY: int = limit("azure.blob_recovery_days", "maximum")
"""Days for which deleted objects and files can be restored."""
LUSTRE_MOST_TIB = 128
NFS_MOST_GIB = 102400
DRAIN_MINUTES = 30
"""How long an upgrade waits for the pods of a node; then it fails (AKS API, drainTimeoutInMinutes)."""
INLINE_POOL = "addons"
INLINE_NODES = {False: (1, 2), True: (2, 3)}
"""By production or not: minimum and maximum of nodes for AKS's own workloads (DNS, metrics, policy agent)."""


def reservable(machine: Machine) -> bool:
    """Whether Azure reserves capacity of this machine."""
    return not machine.instance_type.startswith(UNRESERVABLE)


SYSTEM_DISK_GIB = 128
DEFAULT_DISK_GIB = 128
"""The root disk of an AKS node of most sizes, where a pool states none (AKS, default OS disk sizing)."""
DISK_TIERS = {
    4: 1,
    8: 2,
    16: 3,
    32: 4,
    64: 6,
    128: 10,
    256: 15,
    512: 20,
    1024: 30,
    2048: 40,
    4096: 50,
    8192: 60,
}
"""GiB to the number of the tier in which a managed disk is sold: P10, E10 (Azure managed disk types)."""


def os_disk(machine: Machine, disk_gib: int) -> str:
    """Ephemeral if the root disk fits on the machine's temporary disk, which is faster and free, else
    managed.
    """
    return "Ephemeral" if TEMPORARY_DISK_GIB.get(machine.instance_type, 0) >= disk_gib else "Managed"


def disk_tier(gib: float) -> int:
    """Return the number of the tier that a disk is billed as: the next larger one."""
    return next((tier for size, tier in DISK_TIERS.items() if size >= gib), 80)
