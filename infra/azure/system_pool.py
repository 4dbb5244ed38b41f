"""SystemPool: the CPU nodes that run the cluster layer (operators, queue, metrics) and Ray heads. Never
tainted.

Everything on the cluster depends on it; what AKS itself runs has its own small pool (cluster.py). Easy to get
wrong: its size
belongs to the autoscaler, and is never said.
"""

from __future__ import annotations

import pulumi
from pulumi_azure_native import containerservice

from trainfleet.infra.azure import layout, node_config
from trainfleet.infra.azure.cluster import Cluster
from trainfleet.infra.azure.network import Network
from trainfleet.infra.catalog.machines import system_machine
from trainfleet.infra.component import Room
from trainfleet.infra.spec.schema import PlatformSpec

DISK_GIB = 128


class SystemPool(Room):
    """The system node pool of a platform."""

    TYPE = "trainfleet:azure:SystemPool"

    def __init__(
        self,
        spec: PlatformSpec,
        network: Network,
        cluster: Cluster,
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "system-pool", opts)
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
                DISK_GIB,
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
            os_disk_size_gb=DISK_GIB,
            enable_auto_scaling=True,
            # No count: AKS begins with the least, and each later update that named a count would throw the
            # autoscaler back to it.
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
            upgrade_settings={"max_surge": "33%", "drain_timeout_in_minutes": 30},
            tags=self.tags("system"),
            opts=self.options("system", depends_on=cluster.ready),
        )
        self.register_outputs({})
