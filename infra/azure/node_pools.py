"""SystemPool and GpuPools: the node pools of a platform, able to start from zero nodes.

SkyPilot and the autoscaler decide by a pool's labels and taints while it has no node. The autoscaler owns the
size, so a pool never has a count.
"""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
from pulumi_azure_native import authorization, compute, containerservice

from trainfleet.infra.azure import layout, node_config
from trainfleet.infra.azure.cluster import Cluster
from trainfleet.infra.azure.foundation import Foundation
from trainfleet.infra.azure.permissions import grant, once_in_effect
from trainfleet.infra.azure.sizes import DRAIN_MINUTES, SYSTEM_DISK_GIB, os_disk
from trainfleet.infra.catalog.machines import Machine, machine_for_pool, system_machine
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.platform import HCA_SHARES, Pool
from trainfleet.infra.spec.node_group import NodeGroup
from trainfleet.infra.spec.node_groups import node_groups
from trainfleet.infra.spec.schema import Capacity, PlatformSpec


class SystemPool(PlatformComponent):
    """The system node pool of a platform."""

    TYPE = "trainfleet:azure:SystemPool"

    def __init__(
        self,
        spec: PlatformSpec,
        foundation: Foundation,
        cluster: Cluster,
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "system-pool", opts)
        network = foundation.network
        self.machine = system_machine(spec)
        zones = layout.platform_zones(spec)
        size = spec.system_pool
        self.nodes = containerservice.AgentPool(
            self.name("system"),
            resource_group_name=cluster.group.platform.name,
            resource_name_=cluster.cluster.name,
            agent_pool_name=layout.node_pool_name(
                "system",
                self.machine.instance_type,
                zones,
                SYSTEM_DISK_GIB,
                network.nodes_range(()),
                node_config.PODS_PER_NODE,
            ),
            mode="User",
            type="VirtualMachineScaleSets",
            vm_size=self.machine.instance_type,
            orchestrator_version=spec.kubernetes.version,
            os_type="Linux",
            os_sku=node_config.OS_SKU,
            os_disk_type="Managed",
            os_disk_size_gb=SYSTEM_DISK_GIB,
            enable_auto_scaling=True,
            # NOTE: no count. AKS starts with the minimum, and an update with a count would reset the
            # autoscaler's size.
            min_count=size.min_nodes,
            max_count=size.max_nodes,
            max_pods=node_config.PODS_PER_NODE,
            availability_zones=list(zones) or None,
            vnet_subnet_id=network.nodes.id,
            enable_encryption_at_host=True,
            enable_node_public_ip=False,
            scale_down_mode="Delete",
            node_labels={"trainfleet.io/pool": "system"},
            security_profile={"enable_secure_boot": True, "enable_vtpm": True, "ssh_access": "Disabled"},
            upgrade_settings={
                "max_surge": "33%",
                "drain_timeout_in_minutes": DRAIN_MINUTES,
            },
            tags=self.tags("system"),
            opts=self.options(depends_on=cluster.ready),
        )
        self.register_outputs({})


RDMA_RESOURCE = "rdma/ib"
"""Resource name of an InfiniBand adapter (NVIDIA network operator's shared device plugin)."""
TEMPLATE_TAG = "k8s.io_cluster-autoscaler_node-template"
FABRIC_ENVIRONMENT = {
    # NCCL's name of InfiniBand: a run uses it or fails, where NCCL would silently fall back to TCP.
    "NCCL_NET": "IB",
    # Relaxed ordering doubles the speed of the adapters behind Azure's PCIe virtualisation.
    "NCCL_IB_PCI_RELAXED_ORDERING": "1",
    "NCCL_SOCKET_IFNAME": "eth0",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
}
"""As in Azure's own images for these machines (Azure HPC documentation, NDv5)."""
TOPOLOGY_FOLDER = "/opt/microsoft"
"""Where the image has the files that describe the PCI topology of ND machines (images/Dockerfile, target
infiniband; Azure/azhpc-images components/customizations/ndv4.sh and ndv5.sh).
"""


UPGRADE: containerservice.AgentPoolUpgradeSettingsArgsDict = {
    "max_surge": "0",
    "max_unavailable": "1",
    "drain_timeout_in_minutes": DRAIN_MINUTES,
}


def uses_infiniband(pool: NodeGroup, machine: Machine) -> bool:
    """Whether the pool's pods get InfiniBand adapters."""
    return pool.interconnect == "best" and machine.rdma == "infiniband"


def fabric_environment(machine: Machine) -> dict[str, str]:
    """NCCL's environment on this machine, with the file of its generation (v4, v5)."""
    generation = machine.instance_type.rpartition("_")[2]
    return {**FABRIC_ENVIRONMENT, "NCCL_TOPO_FILE": f"{TOPOLOGY_FOLDER}/nd{generation}-topo.xml"}


def needs_placement_group(pool: NodeGroup) -> bool:
    """Whether the nodes need a proximity placement group. Reserved capacity accepts none (Azure, capacity
    reservation limitations).
    """
    return pool.compact and pool.capacity is not Capacity.RESERVED


def labels(pool: NodeGroup, machine: Machine) -> dict[str, str]:
    """Labels that schedulers use. SkyPilot ignores its label unless it is in lower case; AKS's spot label is
    included, or it drifts.
    """
    spot = {node_config.SPOT[0]: node_config.SPOT[1]} if pool.capacity is Capacity.SPOT else {}
    return {
        **pool.labels,
        **spot,
        "nvidia.com/gpu.present": "true",
        "skypilot.co/accelerator": machine.skypilot_label or pool.accelerator.lower(),
        "trainfleet.io/pool": pool.pool,
        **pool.capacity_label,
    }


def scale_from_zero(pool: NodeGroup, machine: Machine) -> dict[str, str]:
    """Tags from which the autoscaler knows the resources of a node that does not exist yet. It knows CPUs,
    memory, GPUs, labels and taints without tags.

    Source: kubernetes/autoscaler#3532 and cloudprovider/azure/azure_template.go
    (extractAllocatableResourcesFromScaleSet): with `_` for each `/`. AKS sets a pool's tags on its scale set
    (AKS documentation, use tags).
    """
    if not uses_infiniband(pool, machine):
        return {}
    return {f"{TEMPLATE_TAG}_resources_{RDMA_RESOURCE.replace('/', '_')}": str(HCA_SHARES)}


class GpuPools(PlatformComponent):
    """The GPU node pools of a platform, as `pools` in the order of the spec."""

    TYPE = "trainfleet:azure:GpuPools"

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
        self._reservations = {
            name: self._use_reservation(name)
            for name in dict.fromkeys(pool.reservation for pool in node_groups(spec) if pool.reservation)
        }
        self.pools = tuple(self._pool(pool, machine_for_pool(spec.cloud, pool)) for pool in node_groups(spec))
        self.register_outputs({})

    def _pool(self, pool: NodeGroup, machine: Machine) -> Pool:
        zones = layout.pool_zones(self.spec, pool)
        bought = node_config.purchase_options(pool.capacity, pool.reservation)
        disk = os_disk(machine, pool.disk_gib)
        placement = self._placement_group(pool, machine, zones) if needs_placement_group(pool) else None
        waits = [*self.ready, *([placement[1]] if placement else [])]
        reserved = [self._reservations[pool.reservation]] if pool.reservation else []
        waits += reserved
        where = (zones, self.foundation.network.nodes_range(zones), needs_placement_group(pool))
        name = layout.node_pool_name(
            pool.name, machine.instance_type, where, disk, pool.disk_gib, bought, node_config.PODS_PER_NODE
        )
        group = containerservice.AgentPool(
            self.name(pool.name),
            resource_group_name=self.cluster.group.platform.name,
            resource_name_=self.cluster.cluster.name,
            agent_pool_name=name,
            mode="User",
            type="VirtualMachineScaleSets",
            vm_size=machine.instance_type,
            orchestrator_version=pool.version or self.spec.kubernetes.version,
            os_type="Linux",
            os_sku=node_config.OS_SKU,
            os_disk_type=disk,
            os_disk_size_gb=pool.disk_gib,
            # AKS installs the driver and monitors the GPUs; the layer installs the device plugin.
            gpu_profile={"driver": "Install"},
            enable_auto_scaling=True,
            # NOTE: no count. AKS starts with the minimum, and an update with a count would reset the
            # autoscaler's size.
            min_count=pool.min_nodes,
            max_count=pool.max_nodes,
            max_pods=node_config.PODS_PER_NODE,
            availability_zones=list(zones) or None,
            vnet_subnet_id=self.foundation.network.nodes_subnet(zones).id,
            enable_encryption_at_host=True,
            enable_node_public_ip=False,
            scale_set_priority=bought.priority,
            scale_set_eviction_policy=bought.eviction,
            spot_max_price=bought.price,
            capacity_reservation_group_id=(
                once_in_effect(bought.reservation, *reserved) if bought.reservation else None
            ),
            proximity_placement_group_id=placement[0].id if placement else None,
            # A stopped node keeps its disk and its quota; a new one takes minutes.
            scale_down_mode="Delete",
            node_labels=labels(pool, machine),
            node_taints=node_config.taints(pool.capacity),
            security_profile={"ssh_access": "Disabled"},
            # There is no spare GPU node: an update ends one before it starts the next. Spot pools are not
            # updated in place.
            upgrade_settings=None if pool.capacity is Capacity.SPOT else UPGRADE,
            tags=self.tags(pool.name) | scale_from_zero(pool, machine),
            opts=self.options(depends_on=waits),
        )
        return self._outputs(pool, machine, group, name)

    def _outputs(
        self, pool: NodeGroup, machine: Machine, group: containerservice.AgentPool, name: str
    ) -> Pool:
        fabric = uses_infiniband(pool, machine)
        return Pool(
            spec=pool,
            machine=machine,
            labels=labels(pool, machine),
            zones=layout.pool_zones(self.spec, pool),
            nodes=group,
            rdma_resource=RDMA_RESOURCE if fabric else "",
            environment=fabric_environment(machine) if fabric else {},
            tolerations=node_config.tolerations(pool.capacity),
            # AKS adds an id to the scale set's name (kubernetes/autoscaler#1896). It ends with `-vmss`.
            group_name=f"^aks-{name}-",
        )

    def _use_reservation(self, reservation: str) -> authorization.RoleAssignment:
        """Let the cluster start nodes in a capacity reservation group. Pools may share one, and Azure allows
        one assignment of each.

        AKS asks for the role Contributor on the group's resource group (AKS documentation, capacity
        reservation groups). The group itself is enough for the pool, and all that the platform should reach.
        """
        what = layout.reservation_name(reservation)
        return grant(self, f"{what}-use", "Contributor", reservation, self.foundation.identity.cluster)

    def _placement_group(
        self, pool: NodeGroup, machine: Machine, zones: tuple[str, ...]
    ) -> tuple[compute.ProximityPlacementGroup, pulumi.Resource]:
        what = f"{pool.name}-placement"
        group = compute.ProximityPlacementGroup(
            self.name(what),
            resource_group_name=self.cluster.group.platform.name,
            location=self.spec.region,
            proximity_placement_group_type="Standard",
            # So that Azure chooses a location that has this machine.
            intent={"vm_sizes": [machine.instance_type]},
            zones=list(zones) or None,
            tags=self.tags(what),
            opts=self.options(),
        )
        # Azure has no narrower role for this; it applies to this group only.
        return group, grant(self, f"{what}-use", "Contributor", group.id, self.foundation.identity.cluster)
