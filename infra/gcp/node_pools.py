"""SystemPool and GpuPools: the node pools of a platform, able to start from zero nodes.

GKE counts the first nodes per zone; afterwards the autoscaler owns the size and counts all zones together.
"""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
import pulumi_gcp as gcp

from trainfleet.infra.catalog.machines import Machine, machine_for_pool, system_machine
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.gcp import fabric as fabrics
from trainfleet.infra.gcp import layout, node_config
from trainfleet.infra.gcp.cluster import Cluster
from trainfleet.infra.gcp.compute_classes import class_label, class_tolerations
from trainfleet.infra.gcp.foundation import Foundation
from trainfleet.infra.gcp.machine_zones import ACCELERATORS
from trainfleet.infra.platform import Pool
from trainfleet.infra.spec.node_group import NodeGroup
from trainfleet.infra.spec.node_groups import node_groups
from trainfleet.infra.spec.schema import Capacity, PlatformSpec


class SystemPool(PlatformComponent):
    """The system node pool of a platform."""

    TYPE = "trainfleet:gcp:SystemPool"

    def __init__(
        self,
        spec: PlatformSpec,
        foundation: Foundation,
        cluster: Cluster,
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "system-pool", opts)
        self.machine = system_machine(spec)
        size, zones = spec.system_pool, layout.system_zones(spec)
        self.nodes = gcp.container.NodePool(
            self.name("system"),
            # A prefix, so that a replacement can exist next to the old nodes while their pods move.
            name_prefix=layout.node_pool_prefix("system"),
            cluster=cluster.cluster.name,
            location=spec.region,
            node_locations=list(zones),
            initial_node_count=size.min_nodes // len(zones),
            autoscaling={
                "total_min_node_count": size.min_nodes,
                "total_max_node_count": size.max_nodes,
                "location_policy": "BALANCED",
            },
            max_pods_per_node=layout.PODS_PER_NODE,
            management={"auto_repair": True, "auto_upgrade": True},
            upgrade_settings={"strategy": "SURGE", "max_surge": 1, "max_unavailable": 0},
            network_config={"enable_private_nodes": True},
            node_config=node_config.node_config(
                self,
                "system",
                self.machine,
                layout.SYSTEM_DISK_GIB,
                foundation=foundation,
                labels={"trainfleet.io/pool": "system"},
            ),
            opts=self.options(depends_on=cluster.ready, ignore_changes=["initialNodeCount"]),
        )
        self.register_outputs({})


QUEUED_TAINT = {
    "key": "cloud.google.com/gke-queued",
    "operator": "Equal",
    "value": "true",
    "effect": "NoSchedule",
}
"""GKE reserves queued nodes for the pods that queued."""
QUEUED_CLASS = "queued-provisioning.gke.io"
"""The class of requests for queued nodes (GKE guide, flex-start with queued provisioning)."""


def is_compact(pool: NodeGroup, machine: Machine) -> bool:
    """Whether the nodes need compact placement. Reservations of RDMA machines are placed together already and
    accept no policy.
    """
    return pool.compact and not (pool.capacity is Capacity.RESERVED and machine.rdma == "roce")


def labels(pool: NodeGroup) -> dict[str, str]:
    """Labels that the platform sets. NOTE: never SkyPilot's own label, or SkyPilot looks for it on every node
    of the cluster.
    """
    own = {"nvidia.com/gpu.present": "true", "trainfleet.io/pool": pool.pool, **pool.capacity_label}
    return {**pool.labels, **own, **class_label(pool)}


def all_labels(pool: NodeGroup, machine: Machine) -> dict[str, str]:
    """All labels of nodes, including GKE's own (GKE guide, labels for GPUs and Spot VMs)."""
    found = {**labels(pool), "cloud.google.com/gke-accelerator": ACCELERATORS[pool.accelerator]}
    if pool.capacity is Capacity.SPOT:
        found["cloud.google.com/gke-spot"] = "true"
    return found | {"node.kubernetes.io/instance-type": machine.instance_type}


class GpuPools(PlatformComponent):
    """The GPU node pools of a platform, as `pools` in the order of the spec."""

    TYPE = "trainfleet:gcp:GpuPools"

    def __init__(
        self,
        spec: PlatformSpec,
        foundation: Foundation,
        cluster: Cluster,
        *,
        after: Sequence[pulumi.Resource] = (),
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "gpu-pools", opts)
        self.foundation, self.cluster = foundation, cluster
        self.ready = [*cluster.ready, *after]
        self.pools = tuple(self._pool(pool, machine_for_pool(spec.cloud, pool)) for pool in node_groups(spec))
        self.register_outputs({})

    def _pool(self, pool: NodeGroup, machine: Machine) -> Pool:
        zones = layout.pool_zones(self.spec, pool)
        linked = layout.uses_fabric(pool, machine)
        by_request = pool.capacity in node_config.BY_REQUEST
        group = gcp.container.NodePool(
            self.name(pool.name),
            # A prefix, so that a replacement can exist next to the old nodes while their pods move.
            name_prefix=layout.node_pool_prefix(pool.name, whole=not pool.preferences),
            cluster=self.cluster.cluster.name,
            location=self.spec.region,
            node_locations=list(zones),
            initial_node_count=pool.min_nodes // len(zones),
            # Any zone that has the machines; an even spread would wait for the scarcest one.
            autoscaling={
                "total_min_node_count": pool.min_nodes,
                "total_max_node_count": pool.max_nodes,
                "location_policy": "ANY",
            },
            max_pods_per_node=layout.PODS_PER_NODE,
            # GKE rejects repair of capacity that is provided on request.
            management={"auto_repair": not by_request, "auto_upgrade": True},
            upgrade_settings=node_config.upgrades(pool.capacity),
            queued_provisioning={"enabled": True} if pool.capacity is Capacity.QUEUED else None,
            placement_policy={"type": "COMPACT"} if is_compact(pool, machine) else None,
            network_config={
                "enable_private_nodes": True,
                "additional_node_network_configs": [
                    {"network": link.network.name, "subnetwork": link.subnet.name}
                    for link in (self.foundation.fabric.of(machine) if linked else ())
                ],
            },
            node_config=node_config.node_config(
                self,
                pool.name,
                machine,
                pool.disk_gib,
                foundation=self.foundation,
                labels=labels(pool),
                pool=pool,
            ),
            opts=self.options(depends_on=self.ready, ignore_changes=["initialNodeCount"]),
        )
        return Pool(
            spec=pool,
            machine=machine,
            labels=all_labels(pool, machine),
            zones=zones,
            nodes=group,
            pod_annotations=fabrics.pod_annotations(machine) if linked else {},
            environment=fabrics.environment(machine) if linked else {},
            selector=class_label(pool),
            tolerations=(QUEUED_TAINT,) if pool.capacity is Capacity.QUEUED else class_tolerations(pool),
            group_name=group.name,
            provisioning_class=QUEUED_CLASS if pool.capacity is Capacity.QUEUED else "",
        )
