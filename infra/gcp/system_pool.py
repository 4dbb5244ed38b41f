"""SystemPool: the CPU nodes that run the cluster's own pods (DNS, operators) and Ray heads. Never tainted.

Everything on the cluster depends on it. Easy to get wrong: GKE counts the first nodes per zone; afterwards
the size
belongs to the autoscaler, which counts all zones together here.
"""

from __future__ import annotations

import pulumi
import pulumi_gcp as gcp

from trainfleet.infra.catalog.machines import system_machine
from trainfleet.infra.component import Room
from trainfleet.infra.gcp import layout, node_config
from trainfleet.infra.gcp.cluster import Cluster
from trainfleet.infra.gcp.identity import Identity
from trainfleet.infra.gcp.keys import Keys
from trainfleet.infra.spec.schema import PlatformSpec

DISK_GIB = 100


class SystemPool(Room):
    """The system node pool of a platform."""

    TYPE = "trainfleet:gcp:SystemPool"

    def __init__(
        self,
        spec: PlatformSpec,
        identity: Identity,
        cluster: Cluster,
        keys: Keys,
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "system-pool", opts)
        self.machine = system_machine(spec)
        size, zones = spec.system_pool, layout.system_zones(spec)
        self.nodes = gcp.container.NodePool(
            self.name("system"),
            # A prefix, so that a replacement can stand beside the old nodes while their pods move.
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
            node_config=node_config.configuration(
                self,
                "system",
                self.machine,
                DISK_GIB,
                identity=identity,
                keys=keys,
                labels={"trainfleet.io/pool": "system"},
            ),
            opts=self.options("system", depends_on=cluster.ready, ignore_changes=["initialNodeCount"]),
        )
        self.register_outputs({})
