"""SystemPool: the CPU nodes that run the cluster's own pods (DNS, operators, autoscaler) and Ray heads. Never
tainted.

Everything on the cluster depends on it. Easy to get wrong: its size belongs to the autoscaler once it exists
(scaling.py).
"""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from trainfleet.infra.aws import node_config
from trainfleet.infra.aws.asg_lookup import scaling
from trainfleet.infra.aws.cluster import Cluster
from trainfleet.infra.aws.identity import Identity
from trainfleet.infra.aws.keys import Keys
from trainfleet.infra.aws.network import Network
from trainfleet.infra.catalog.machines import system_machine
from trainfleet.infra.component import Room
from trainfleet.infra.spec.schema import PlatformSpec

AMI_TYPE = "AL2023_x86_64_STANDARD"
DISK_GIB = 100


class SystemPool(Room):
    """The system node group of a platform."""

    TYPE = "trainfleet:aws:SystemPool"

    def __init__(
        self,
        spec: PlatformSpec,
        network: Network,
        identity: Identity,
        cluster: Cluster,
        keys: Keys,
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "system-pool", opts)
        self.machine = system_machine(spec)
        template = node_config.template(self, "system", self.machine, DISK_GIB, keys.nodes.arn)
        prefix = f"{spec.name}-system-"
        size = scaling(
            cluster.scaling_groups.running(prefix), spec.system_pool.min_nodes, spec.system_pool.max_nodes
        )
        self.nodes = aws.eks.NodeGroup(
            self.name("system"),
            # A prefix, so that a replacement can stand beside the old nodes while their pods move.
            node_group_name_prefix=prefix,
            cluster_name=cluster.cluster.name,
            node_role_arn=identity.node_role.arn,
            subnet_ids=network.private_subnet_ids(),
            version=cluster.cluster.version,
            ami_type=AMI_TYPE,
            capacity_type="ON_DEMAND",
            instance_types=[self.machine.instance_type],
            launch_template={"id": template.id, "version": template.latest_version.apply(str)},
            scaling_config=size.config,
            update_config={"max_unavailable": 1},
            node_repair_config={"enabled": self.spec.layer.node_problems},
            labels={"trainfleet.io/pool": "system"},
            tags=self.tags("system"),
            opts=self.options("system", depends_on=cluster.ready, ignore_changes=size.ignored),
        )
        self.register_outputs({})
