"""SystemPool and GpuPools: the managed node groups of a platform, able to start from zero nodes.

SkyPilot and the autoscaler decide by a pool's labels, taints and resources while it has no node, so these are
set on the node group and on its Auto Scaling group. The autoscaler owns the size (asg_lookup.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pulumi
import pulumi_aws as aws

from trainfleet.infra.aws import layout, node_config
from trainfleet.infra.aws.asg_lookup import scaling
from trainfleet.infra.aws.cluster import Cluster
from trainfleet.infra.aws.foundation import Foundation
from trainfleet.infra.catalog.machines import Machine, machine_for_pool, system_machine
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.platform import Pool
from trainfleet.infra.spec.node_group import NodeGroup
from trainfleet.infra.spec.node_groups import node_groups
from trainfleet.infra.spec.schema import Capacity, PlatformSpec

SYSTEM_AMI_TYPE = "AL2023_x86_64_STANDARD"


class SystemPool(PlatformComponent):
    """The system node group of a platform."""

    TYPE = "trainfleet:aws:SystemPool"

    def __init__(
        self,
        spec: PlatformSpec,
        foundation: Foundation,
        cluster: Cluster,
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "system-pool", opts)
        identity = foundation.identity
        self.machine = system_machine(spec)
        template = node_config.node_config(
            self, "system", self.machine, layout.SYSTEM_DISK_GIB, foundation.keys.nodes.arn
        )
        prefix = f"{spec.name}-system-"
        size = scaling(
            cluster.scaling_groups.running(prefix), spec.system_pool.min_nodes, spec.system_pool.max_nodes
        )
        self.nodes = aws.eks.NodeGroup(
            self.name("system"),
            # A prefix, so that a replacement can exist next to the old nodes while their pods move.
            node_group_name_prefix=prefix,
            cluster_name=cluster.cluster.name,
            node_role_arn=identity.node_role.arn,
            subnet_ids=foundation.network.private_subnet_ids(),
            version=cluster.cluster.version,
            release_version=spec.system_pool.image_release or None,
            ami_type=SYSTEM_AMI_TYPE,
            capacity_type="ON_DEMAND",
            instance_types=[self.machine.instance_type],
            launch_template={"id": template.id, "version": template.latest_version.apply(str)},
            scaling_config=size.config,
            update_config={"max_unavailable": 1},
            node_repair_config={"enabled": self.spec.layer.node_problems},
            labels={"trainfleet.io/pool": "system"},
            tags=self.tags("system"),
            opts=self.options(depends_on=cluster.ready, ignore_changes=size.ignored),
        )
        self.register_outputs({})


AMI_TYPE = "AL2023_x86_64_NVIDIA"
EFA_RESOURCE = "vpc.amazonaws.com/efa"
FABRIC_ENVIRONMENT = {
    "NCCL_NET": "AWS Libfabric",
    "FI_PROVIDER": "efa",
    "FI_EFA_USE_HUGE_PAGE": "0",
    "NCCL_SOCKET_IFNAME": "^docker,lo,veth",
}
"""NOTE: with these, a run uses EFA or fails. Without NCCL_NET, an image that lacks the plugin aws-ofi-nccl
falls back to TCP silently; without FI_PROVIDER, libfabric does. Newer plugins are called Libfabric and accept
this name (aws-ofi-nccl#530). Huge pages are off, because a process that forks runs out of them. NCCL's
control traffic avoids interfaces without a route (awsome-distributed-training, EFA environment variables).
"""
GPU_TAINT = ("nvidia.com/gpu", "present")
TEMPLATE_TAG = "k8s.io/cluster-autoscaler/node-template"
HUGE_PAGES = "10256Mi"
"""5128 pages of 2 MiB that the NVIDIA image reserves on EFA machines (EKS user guide, node-efa)."""
ONE_FOR_ONE = (Capacity.RESERVED, Capacity.CAPACITY_BLOCK)
"""Capacity without a spare: an update must end a node before it starts the next."""


def uses_efa(pool: NodeGroup, machine: Machine) -> bool:
    """Whether the pool's nodes get fabric interfaces."""
    return pool.interconnect == "best" and machine.rdma == "efa"


def needs_placement_group(pool: NodeGroup, machine: Machine) -> bool:
    """Whether the platform creates a placement group for the nodes.

    Capacity blocks are placed together already and accept none. A reservation is usable only in the group in
    which it was created, or in none (EC2 user guide, Capacity Reservations with placement groups); in a new
    one, only some of its instances start (eksctl-io/eksctl#7949).
    """
    return (pool.compact or uses_efa(pool, machine)) and pool.capacity not in ONE_FOR_ONE


def labels(pool: NodeGroup, machine: Machine) -> dict[str, str]:
    """Labels that schedulers use. SkyPilot ignores its label unless it is in lower case.

    The autoscaler's own label (its GPULabel for AWS) makes it wait for a GPU whose plugin is starting,
    instead of adding another node.
    """
    return {
        **pool.labels,
        "k8s.amazonaws.com/accelerator": machine.skypilot_label or pool.accelerator.lower(),
        "nvidia.com/gpu.present": "true",
        "skypilot.co/accelerator": machine.skypilot_label or pool.accelerator.lower(),
        "trainfleet.io/pool": pool.pool,
        **pool.capacity_label,
    }


def scale_from_zero(pool: NodeGroup, machine: Machine) -> dict[str, str]:
    """Tags of the scaling group from which the autoscaler knows a node that does not exist yet."""
    key, value = GPU_TAINT
    disk = f"{int(machine.local_nvme_gb * 0.95)}G" if machine.local_nvme_gb else f"{pool.disk_gib}Gi"
    resources = {"nvidia.com/gpu": str(machine.accelerators_per_node), "ephemeral-storage": disk}
    if uses_efa(pool, machine):
        resources |= {EFA_RESOURCE: str(machine.rdma_nics), "hugepages-2Mi": HUGE_PAGES}
    return {
        **{f"{TEMPLATE_TAG}/label/{name}": text for name, text in labels(pool, machine).items()},
        **{f"{TEMPLATE_TAG}/resources/{name}": text for name, text in resources.items()},
        f"{TEMPLATE_TAG}/taint/{key}": f"{value}:NoSchedule",
    }


class GpuPools(PlatformComponent):
    """The GPU node groups of a platform: `pools`, in the order of the spec. HyperPod's pools are in
    hyperpod.py.
    """

    TYPE = "trainfleet:aws:GpuPools"

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
        # By family: groups that differ by zone only share a template.
        self._templates: dict[str, aws.ec2.LaunchTemplate] = {}
        pools = [
            (pool, machine_for_pool(spec.cloud, pool)) for pool in node_groups(spec) if pool.kind == "nodes"
        ]
        self.fabric = self._fabric() if any(uses_efa(pool, machine) for pool, machine in pools) else None
        self.pools = tuple(self._pool(pool, machine) for pool, machine in pools)
        self.register_outputs({})

    def _fabric(self) -> aws.ec2.SecurityGroup:
        """EFA's group: all traffic among its members in both directions, which EFA requires."""
        group = aws.ec2.SecurityGroup(
            self.name("fabric-sg"),
            vpc_id=self.foundation.network.vpc.id,
            description="EFA traffic among GPU nodes",
            tags=self.tags("fabric-sg"),
            opts=self.options(),
        )
        aws.vpc.SecurityGroupIngressRule(
            self.name("fabric-in"),
            security_group_id=group.id,
            referenced_security_group_id=group.id,
            description="EFA from members",
            ip_protocol="-1",
            tags=self.tags("fabric-in"),
            opts=self.options(),
        )
        aws.vpc.SecurityGroupEgressRule(
            self.name("fabric-out"),
            security_group_id=group.id,
            referenced_security_group_id=group.id,
            description="EFA to members",
            ip_protocol="-1",
            tags=self.tags("fabric-out"),
            opts=self.options(),
        )
        return group

    def _pool(self, pool: NodeGroup, machine: Machine) -> Pool:
        zones = layout.pool_zones(self.spec, pool)
        capacity_type, _, _ = node_config.purchase_options(pool.capacity, pool.reservation)
        fabric = (
            (self.cluster.security_group_id, self.fabric.id)
            if self.fabric and uses_efa(pool, machine)
            else None
        )
        if pool.family not in self._templates:
            self._templates[pool.family] = node_config.node_config(
                self,
                pool.family,
                machine,
                pool.disk_gib,
                self.foundation.keys.nodes.arn,
                capacity=pool.capacity,
                reservation=pool.reservation,
                fabric=fabric,
                fast_image_pull=pool.fast_image_pull,
                placement=self._placement(pool, machine),
            )
        template = self._templates[pool.family]
        key, value = GPU_TAINT
        one_for_one = pool.capacity in ONE_FOR_ONE
        prefix = layout.node_group_prefix(self.spec, pool)
        size = scaling(self.cluster.scaling_groups.running(prefix), pool.min_nodes, pool.max_nodes)
        group = aws.eks.NodeGroup(
            self.name(pool.name),
            # A prefix, so that a replacement can exist next to the old nodes while their pods move.
            node_group_name_prefix=prefix,
            cluster_name=self.cluster.cluster.name,
            node_role_arn=self.foundation.identity.node_role.arn,
            subnet_ids=self.foundation.network.private_subnet_ids(zones),
            version=pool.version or self.cluster.cluster.version,
            release_version=pool.image_release or None,
            ami_type=AMI_TYPE,
            capacity_type=capacity_type,
            instance_types=None if pool.capacity is Capacity.CAPACITY_BLOCK else [machine.instance_type],
            launch_template={"id": template.id, "version": template.latest_version.apply(str)},
            scaling_config=size.config,
            update_config={"max_unavailable": 1, "update_strategy": "MINIMAL" if one_for_one else "DEFAULT"},
            # EKS replaces a node whose GPU failed after ten minutes.
            node_repair_config={"enabled": self.spec.layer.node_problems},
            labels=labels(pool, machine),
            taints=[{"key": key, "value": value, "effect": "NO_SCHEDULE"}],
            tags=self.tags(pool.name),
            opts=self.options(depends_on=self.ready, ignore_changes=size.ignored),
        )
        self._scaling_tags(pool, machine, group)
        return Pool(
            spec=pool,
            machine=machine,
            labels=labels(pool, machine),
            zones=zones,
            nodes=group,
            rdma_resource=EFA_RESOURCE if fabric else "",
            environment=FABRIC_ENVIRONMENT if fabric else {},
            # EKS adds `eks-` before a node group's name and an id after it; see asg_lookup.py.
            group_name=f"^eks-{prefix}[0-9a-f]{{26}}-",
        )

    def _placement(self, pool: NodeGroup, machine: Machine) -> aws.ec2.LaunchTemplatePlacementArgsDict | None:
        if pool.placement_group:
            shared = pool.placement_group.startswith("pg-")
            return {"group_id": pool.placement_group} if shared else {"group_name": pool.placement_group}
        if not needs_placement_group(pool, machine):
            return None
        what = f"{pool.name}-placement"
        group = aws.ec2.PlacementGroup(
            self.name(what), strategy="cluster", tags=self.tags(what), opts=self.options()
        )
        return {"group_name": group.name}

    def _scaling_tags(self, pool: NodeGroup, machine: Machine, group: aws.eks.NodeGroup) -> None:
        scaling_group = group.resources.apply(scaling_group_name)
        for key, value in scale_from_zero(pool, machine).items():
            # by digest: a key is too long for a name
            what = f"{pool.name}-tag-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
            aws.autoscaling.Tag(
                self.name(what),
                autoscaling_group_name=scaling_group,
                tag={"key": key, "value": value, "propagate_at_launch": False},
                opts=self.options(),
            )


def scaling_group_name(resources: Sequence[aws.eks.outputs.NodeGroupResource]) -> str:
    """The Auto Scaling group that EKS created for a node group, which is exactly one."""
    for resource in resources:
        for group in resource.autoscaling_groups or ():
            if group.name:
                return group.name
    raise LookupError("EKS did not report the node group's Auto Scaling group")
