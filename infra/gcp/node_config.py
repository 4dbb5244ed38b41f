"""How a GKE node is configured: machine, disks, GPUs and their driver, identity."""

from __future__ import annotations

import pulumi_gcp as gcp

from trainfleet.infra.catalog.machines import Machine
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.gcp.compute_classes import class_label
from trainfleet.infra.gcp.foundation import Foundation
from trainfleet.infra.gcp.layout import HYPERDISK_ONLY, disk_type
from trainfleet.infra.gcp.machine_zones import ACCELERATORS
from trainfleet.infra.spec.node_group import NodeGroup
from trainfleet.infra.spec.schema import Capacity

LOCAL_SSD_GB = 375 * 1.073741824
"""One local SSD: 375 GiB, in the catalogue's GB."""
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
"""All APIs: the roles of a node's account limit it, not scopes."""
NO_SPARE = (Capacity.RESERVED,)
"""Capacity without a spare: an update must end a node before it starts the next."""
BY_REQUEST = (Capacity.FLEX_START, Capacity.QUEUED)
"""Capacity that is provided on request for a limited time: not repaired, not reserved."""


def local_ssds(machine: Machine) -> int:
    """How many local SSDs the machine carries."""
    return round((machine.local_nvme_gb or 0) / LOCAL_SSD_GB)


def driver(machine: Machine) -> str:
    """Which driver GKE installs: the default one does not support the newest machines."""
    return "LATEST" if machine.instance_type.startswith(HYPERDISK_ONLY) else "DEFAULT"


def reservation(
    capacity: Capacity, name: str
) -> gcp.container.NodePoolNodeConfigReservationAffinityArgsDict | None:
    """The reservation of a pool's nodes: its own, none, or any that fits (on demand)."""
    if capacity is Capacity.RESERVED:
        return {
            "consume_reservation_type": "SPECIFIC_RESERVATION",
            "key": "compute.googleapis.com/reservation-name",
            "values": [name],
        }
    if capacity in BY_REQUEST:
        return {"consume_reservation_type": "NO_RESERVATION"}
    return None


def upgrades(capacity: Capacity) -> gcp.container.NodePoolUpgradeSettingsArgsDict | None:
    """How nodes are replaced; None for GKE's own way with capacity that is provided on request."""
    if capacity in BY_REQUEST:
        return None
    spare = capacity not in NO_SPARE
    return {"strategy": "SURGE", "max_surge": int(spare), "max_unavailable": int(not spare)}


def node_config(
    component: PlatformComponent,
    what: str,
    machine: Machine,
    disk_gib: int,
    *,
    foundation: Foundation,
    labels: dict[str, str],
    pool: NodeGroup | None = None,
) -> gcp.container.NodePoolNodeConfigArgsDict:
    """The node configuration of a pool.

    Args:
        component: the component that creates the pool.
        what: the pool's name within the platform.
        machine: the machine type, with its GPUs and local disks.
        disk_gib: size of the boot disk.
        foundation: the service account and the keys of the platform.
        labels: Kubernetes labels of the nodes.
        pool: the spec of a GPU pool; None for the system pool.
    """
    count = local_ssds(machine)
    config: gcp.container.NodePoolNodeConfigArgsDict = {
        "machine_type": machine.instance_type,
        "image_type": "COS_CONTAINERD",
        "disk_type": disk_type(machine),
        "disk_size_gb": disk_gib,
        "boot_disk_kms_key": foundation.keys.nodes.id,
        "service_account": foundation.identity.nodes.email,
        "oauth_scopes": [SCOPE],
        # Pods get their own identity, never the node's.
        "workload_metadata_config": {"mode": "GKE_METADATA"},
        "metadata": {"disable-legacy-endpoints": "true"},
        # Secure boot rejects the GPU driver, whose modules Google has not signed.
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


def _gpu(machine: Machine, pool: NodeGroup) -> gcp.container.NodePoolNodeConfigArgsDict:
    config: gcp.container.NodePoolNodeConfigArgsDict = {
        "guest_accelerators": [
            {
                "type": ACCELERATORS[pool.accelerator],
                "count": machine.accelerators_per_node,
                "gpu_driver_installation_config": {"gpu_driver_version": driver(machine)},
            }
        ],
        # GKE adds it only if the cluster has another pool already.
        "taints": [
            {"key": key, "value": value, "effect": "NO_SCHEDULE"}
            for key, value in ({"nvidia.com/gpu": "present"} | class_label(pool)).items()
        ],
        "spot": pool.capacity is Capacity.SPOT,
        "flex_start": pool.capacity is Capacity.FLEX_START,
    }
    affinity = reservation(pool.capacity, pool.reservation)
    if affinity is not None:
        config["reservation_affinity"] = affinity
    if pool.capacity in BY_REQUEST:
        config["max_run_duration"] = f"{pool.max_run_hours * 3600}s"
    return config
