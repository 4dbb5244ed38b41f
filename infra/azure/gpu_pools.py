"""GpuPools: an AKS node pool per GPU pool of the spec, ready to start from zero, with the fabric its machines
have.

SkyPilot and the autoscaler decide by what a pool says of itself while it has no node, so labels and taints
stand on the
pool. Easy to get wrong: InfiniBand reaches as far as one scale set, which is one pool in one zone; capacity
that was
reserved takes no proximity group; the count belongs to the autoscaler, and is never said.
"""

from __future__ import annotations

import pulumi
from pulumi_azure_native import compute, containerservice

from trainfleet.infra.azure import layout, node_config
from trainfleet.infra.azure.cluster import Cluster
from trainfleet.infra.azure.identity import Identity
from trainfleet.infra.azure.network import Network
from trainfleet.infra.azure.permissions import grant
from trainfleet.infra.catalog.machines import Machine, machine_for_pool
from trainfleet.infra.component import Room
from trainfleet.infra.platform import Pool
from trainfleet.infra.spec.schema import Capacity, GpuPool, PlatformSpec

RDMA_RESOURCE = "rdma/ib"
"""What the fabric's plugin calls an InfiniBand adapter (NVIDIA network operator's shared device plugin)."""
FABRIC_ENVIRONMENT = {
    # The adapters may reorder what they write into GPU memory, which doubles their speed behind Azure's PCIe
    # virtualisation.
    "NCCL_IB_PCI_RELAXED_ORDERING": "1",
    "NCCL_SOCKET_IFNAME": "eth0",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
}
"""What Azure's own images for these machines set (Azure HPC documentation, NDv5)."""


def uses_infiniband(pool: GpuPool, machine: Machine) -> bool:
    """Whether the pool's pods get InfiniBand adapters: it asks for the best, and the machine has them."""
    return pool.interconnect == "best" and machine.rdma == "infiniband"


def needs_placement_group(pool: GpuPool) -> bool:
    """Whether the nodes must be started close together. Reserved capacity takes no group (Azure, capacity
    reservation limitations).
    """
    return pool.compact and pool.capacity is not Capacity.RESERVED


def labels(pool: GpuPool, machine: Machine) -> dict[str, str]:
    """What schedulers look for. SkyPilot's label is in lower case, or SkyPilot skips it; AKS's own spot label
    is written down, or it drifts.
    """
    spot = {node_config.SPOT[0]: node_config.SPOT[1]} if pool.capacity is Capacity.SPOT else {}
    return {
        **pool.labels,
        **spot,
        "nvidia.com/gpu.present": "true",
        "skypilot.co/accelerator": machine.skypilot_label or pool.accelerator.lower(),
        "trainfleet.io/pool": pool.name,
    }


class GpuPools(Room):
    """The GPU node pools of a platform, as `pools` in the order of the spec."""

    TYPE = "trainfleet:azure:GpuPools"

    def __init__(
        self,
        spec: PlatformSpec,
        network: Network,
        identity: Identity,
        cluster: Cluster,
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "gpu-pools", opts)
        self.network, self.identity, self.cluster = network, identity, cluster
        self.pools = tuple(self._pool(pool, machine_for_pool(spec.cloud, pool)) for pool in spec.gpu_pools)
        self.register_outputs({})

    def _pool(self, pool: GpuPool, machine: Machine) -> Pool:
        zones = layout.pool_zones(self.spec, pool)
        bought = node_config.market(pool.capacity, pool.reservation)
        disk = node_config.os_disk(machine, pool.disk_gib)
        placement = self._placement_group(pool, machine, zones) if needs_placement_group(pool) else None
        waits = [*self.cluster.ready, *([placement[1]] if placement else [])]
        where = (zones, self.network.nodes_range(zones), needs_placement_group(pool))
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
            orchestrator_version=self.spec.kubernetes.version,
            os_type="Linux",
            os_sku=node_config.OS_SKU,
            os_disk_type=disk,
            os_disk_size_gb=pool.disk_gib,
            # AKS installs the driver, and then watches the GPUs; the device plugin is the layer's.
            gpu_profile={"driver": "Install"},
            enable_auto_scaling=True,
            # No count: AKS begins with the least, and each later update that named a count would throw the
            # autoscaler back to it.
            min_count=pool.min_nodes,
            max_count=pool.max_nodes,
            max_pods=node_config.PODS_PER_NODE,
            availability_zones=list(zones) or None,
            vnet_subnet_id=self.network.nodes_subnet(zones).id,
            enable_encryption_at_host=True,
            enable_node_public_ip=False,
            scale_set_priority=bought.priority,
            scale_set_eviction_policy=bought.eviction,
            spot_max_price=bought.price,
            capacity_reservation_group_id=bought.reservation,
            proximity_placement_group_id=placement[0].id if placement else None,
            # A node that is kept stopped keeps its disk and its place in the quota; a new one costs minutes
            # and is whole.
            scale_down_mode="Delete",
            node_labels=labels(pool, machine),
            node_taints=node_config.taints(pool.capacity),
            security_profile={"ssh_access": "Disabled"},
            # There is no spare GPU node: an update ends one before it starts the next. Spot pools are not
            # updated in place at all.
            upgrade_settings=None
            if pool.capacity is Capacity.SPOT
            else {"max_surge": "0", "max_unavailable": "1", "drain_timeout_in_minutes": 30},
            tags=self.tags(pool.name),
            opts=self.options(pool.name, depends_on=waits),
        )
        fabric = uses_infiniband(pool, machine)
        return Pool(
            wish=pool,
            machine=machine,
            labels=labels(pool, machine),
            zones=zones,
            nodes=group,
            rdma_resource=RDMA_RESOURCE if fabric else "",
            environment=dict(FABRIC_ENVIRONMENT) if fabric else {},
            tolerations=node_config.tolerations(pool.capacity),
        )

    def _placement_group(
        self, pool: GpuPool, machine: Machine, zones: tuple[str, ...]
    ) -> tuple[compute.ProximityPlacementGroup, pulumi.Resource]:
        what = f"{pool.name}-placement"
        group = compute.ProximityPlacementGroup(
            self.name(what),
            resource_group_name=self.cluster.group.platform.name,
            location=self.spec.region,
            proximity_placement_group_type="Standard",
            # Said at once, so that Azure looks for a place where this machine is, and not for the first one
            # that is free.
            intent={"vm_sizes": [machine.instance_type]},
            zones=list(zones) or None,
            tags=self.tags(what),
            opts=self.options(what),
        )
        # Azure has no narrower role that puts nodes into a group; it holds for this group alone.
        return group, grant(self, f"{what}-use", "Contributor", group.id, self.identity.cluster)
