"""How one GKE node is made: machine, disks, GPUs and their driver, identity. Pure parts and the one node
configuration.

Used by system_pool.py and gpu_pools.py. Easy to get wrong: the newest machines boot from Hyperdisk only; a
local SSD is a
count, and GKE refuses a count that the machine does not have.
"""

from __future__ import annotations

import pulumi_gcp as gcp

from trainfleet.infra.catalog.machines import Machine
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.gcp.foundation import Foundation
from trainfleet.infra.spec.schema import Capacity, GpuPool

LOCAL_SSD_GB = 375 * 1.073741824
"""One local SSD: 375 GiB, in the catalogue's GB."""
ACCELERATORS = {
    "T4": "nvidia-tesla-t4",
    "L4": "nvidia-l4",
    "A100": "nvidia-tesla-a100",
    "A100-80GB": "nvidia-a100-80gb",
    "H100": "nvidia-h100-80gb",
    "H100-MEGA": "nvidia-h100-mega-80gb",
    "H200": "nvidia-h200-141gb",
    "B200": "nvidia-b200",
}
"""GKE's names of accelerators, also the value of its node label (Compute Engine guide, GPU platforms)."""
HYPERDISK_ONLY = ("a3-ultragpu-", "a4-")
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
"""All APIs: what a node may do is said by its account's roles, not by scopes."""
NO_SPARE = (Capacity.RESERVED,)
"""Capacity of which there is no spare: an update must end a node before it starts the next."""
BY_REQUEST = (Capacity.FLEX_START, Capacity.QUEUED)
"""Capacity that is asked for, given for some time and taken back: nothing to repair, nothing reserved."""


def local_ssds(machine: Machine) -> int:
    """How many local SSDs the machine carries."""
    return round((machine.local_nvme_gb or 0) / LOCAL_SSD_GB)


def disk_type(machine: Machine) -> str:
    """The boot disk: images of ten gigabytes and more are read from it when a GPU node starts."""
    if machine.instance_type.startswith(HYPERDISK_ONLY):
        return "hyperdisk-balanced"
    return "pd-ssd" if machine.accelerator else "pd-balanced"


def driver(machine: Machine) -> str:
    """Which driver GKE installs: the newest machines are not known to the default one."""
    return "LATEST" if machine.instance_type.startswith(HYPERDISK_ONLY) else "DEFAULT"


def reservation(
    capacity: Capacity, name: str
) -> gcp.container.NodePoolNodeConfigReservationAffinityArgsDict | None:
    """Which reservation nodes are taken from: the pool's own, none, or (plain on-demand) any that fits."""
    if capacity is Capacity.RESERVED:
        return {
            "consume_reservation_type": "SPECIFIC_RESERVATION",
            "key": "compute.googleapis.com/reservation-name",
            "values": [name],
        }
    if capacity in BY_REQUEST:
        return {"consume_reservation_type": "NO_RESERVATION"}
    return None


def node_config(
    component: PlatformComponent,
    what: str,
    machine: Machine,
    disk_gib: int,
    *,
    foundation: Foundation,
    labels: dict[str, str],
    pool: GpuPool | None = None,
) -> gcp.container.NodePoolNodeConfigArgsDict:
    """The node configuration of a pool. `pool`: the wish of a GPU pool."""
    count = local_ssds(machine)
    config: gcp.container.NodePoolNodeConfigArgsDict = {
        "machine_type": machine.instance_type,
        "image_type": "COS_CONTAINERD",
        "disk_type": disk_type(machine),
        "disk_size_gb": disk_gib,
        "boot_disk_kms_key": foundation.keys.nodes.id,
        "service_account": foundation.identity.nodes.email,
        "oauth_scopes": [SCOPE],
        # Pods see their own identity and never the node's.
        "workload_metadata_config": {"mode": "GKE_METADATA"},
        "metadata": {"disable-legacy-endpoints": "true"},
        # Secure boot refuses kernel modules that Google has not signed, the GPU driver's among them.
        "shielded_instance_config": {
            "enable_secure_boot": machine.accelerator is None,
            "enable_integrity_monitoring": True,
        },
        "gvnic": {"enabled": True},
        "gcfs_config": {"enabled": True},
        "kubelet_config": {"insecure_kubelet_readonly_port_enabled": "FALSE"},
        "labels": labels,
        "resource_labels": component.labels(what),
    }
    if count:
        config["ephemeral_storage_local_ssd_config"] = {"local_ssd_count": count}
    if pool is not None:
        config |= _gpu(machine, pool)
    return config


def _gpu(machine: Machine, pool: GpuPool) -> gcp.container.NodePoolNodeConfigArgsDict:
    config: gcp.container.NodePoolNodeConfigArgsDict = {
        "guest_accelerators": [
            {
                "type": ACCELERATORS[pool.accelerator],
                "count": machine.accelerators_per_node,
                "gpu_driver_installation_config": {"gpu_driver_version": driver(machine)},
            }
        ],
        # GKE adds it only where the cluster has another pool already; here it does not depend on who was
        # first.
        "taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NO_SCHEDULE"}],
        "spot": pool.capacity is Capacity.SPOT,
        "flex_start": pool.capacity is Capacity.FLEX_START,
    }
    affinity = reservation(pool.capacity, pool.reservation)
    if affinity is not None:
        config["reservation_affinity"] = affinity
    if pool.capacity in BY_REQUEST:
        config["max_run_duration"] = f"{pool.max_run_hours * 3600}s"
    return config
