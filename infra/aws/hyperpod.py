"""HyperPod: the pools of `kind: hyperpod`, one SageMaker HyperPod cluster whose nodes join the platform's EKS
cluster.

SageMaker tests every node at its start, and reboots or replaces broken ones. The size of these pools is
fixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pulumi
import pulumi_aws as aws

from trainfleet.infra.aws import hyperpod_request as request
from trainfleet.infra.aws import layout
from trainfleet.infra.aws.cluster import Cluster
from trainfleet.infra.aws.foundation import Foundation
from trainfleet.infra.aws.identity import Role
from trainfleet.infra.aws.network import Network
from trainfleet.infra.aws.node_pools import EFA_RESOURCE, FABRIC_ENVIRONMENT, GPU_TAINT, labels, uses_efa
from trainfleet.infra.aws.permissions import LIFECYCLE_PREFIX
from trainfleet.infra.catalog.machines import Machine, machine_for_pool
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.platform import Pool
from trainfleet.infra.spec.node_group import NodeGroup
from trainfleet.infra.spec.node_groups import node_groups
from trainfleet.infra.spec.schema import PlatformSpec

ON_CREATE = "on_create.sh"
SCRIPT = Path(__file__).with_name("hyperpod_on_create.sh")
HEALTHY = {"sagemaker.amazonaws.com/node-health-status": "Schedulable"}
"""SageMaker sets it on a node that passed its tests (developer guide, resilience-related
Kubernetes labels).
"""


@dataclass(frozen=True)
class HyperPodInputs:
    """Inputs of the request that are known only after other resources exist."""

    role: str
    eks: str
    bucket: str
    disk_key: str
    security_groups: tuple[str, ...]
    subnets: Mapping[str, str]
    """By zone."""


def placeholder_inputs(spec: PlatformSpec) -> HyperPodInputs:
    """Well-formed inputs, to validate the rest of the request before anything exists."""
    arn = f"arn:{layout.partition(spec.region)}"
    return HyperPodInputs(
        role=f"{arn}:iam::111122223333:role/hyperpod",
        eks=f"{arn}:eks:{spec.region}:111122223333:cluster/{layout.cluster_name(spec)}",
        bucket="bucket",
        disk_key=f"{arn}:kms:{spec.region}:111122223333:key/1",
        security_groups=("sg-1", "sg-2"),
        subnets={zone: f"subnet-{zone}" for zone in layout.platform_zones(spec)},
    )


def health_checks(pool: NodeGroup, machine: Machine) -> list[str]:
    """Tests of a node at its start: hardware under stress, and NCCL over the fabric if there is a peer."""
    return (
        ["InstanceStress", "InstanceConnectivity"]
        if uses_efa(pool, machine) and pool.max_nodes > 1
        else ["InstanceStress"]
    )


def cluster_request(spec: PlatformSpec, tags: Mapping[str, str], inputs: HyperPodInputs) -> request.Cluster:
    """The desired state of the whole cluster.

    Raises:
        ValidationError: AWS would reject it. This is a bug, because validation checks the spec.
    """
    key, value = GPU_TAINT
    groups = []
    for pool in hyperpods(spec):
        machine = machine_for_pool(spec.cloud, pool)
        groups.append(
            {
                "InstanceGroupName": pool.name,
                "InstanceType": machine.instance_type,
                "InstanceCount": pool.max_nodes,
                "ExecutionRole": inputs.role,
                "LifeCycleConfig": {
                    "SourceS3Uri": f"s3://{inputs.bucket}/{LIFECYCLE_PREFIX.rstrip('/')}",
                    "OnCreate": ON_CREATE,
                },
                "KubernetesConfig": {
                    "Labels": labels(pool, machine),
                    "Taints": [{"Key": key, "Value": value, "Effect": "NoSchedule"}],
                },
                "InstanceStorageConfigs": [
                    {"EbsVolumeConfig": {"VolumeSizeInGB": pool.disk_gib, "VolumeKmsKeyId": inputs.disk_key}}
                ],
                "OnStartDeepHealthChecks": health_checks(pool, machine),
                "OverrideVpcConfig": {
                    "SecurityGroupIds": list(inputs.security_groups),
                    "Subnets": [inputs.subnets[zone] for zone in layout.pool_zones(spec, pool)],
                },
                "TrainingPlanArn": pool.reservation or None,
            }
        )
    return request.Cluster.model_validate(
        {
            "ClusterName": layout.cluster_name(spec),
            "InstanceGroups": groups,
            "Orchestrator": {"Eks": {"ClusterArn": inputs.eks}},
            "VpcConfig": {
                "SecurityGroupIds": list(inputs.security_groups),
                "Subnets": list(inputs.subnets.values()),
            },
            "Tags": [{"Key": tag, "Value": text} for tag, text in sorted(tags.items())],
        }
    )


def hyperpods(spec: PlatformSpec) -> tuple[NodeGroup, ...]:
    """The pools of this kind, in the order of the spec."""
    return tuple(pool for pool in node_groups(spec) if pool.kind == "hyperpod")


class HyperPod(PlatformComponent):
    """The HyperPod cluster of a platform, as `pools`."""

    TYPE = "trainfleet:aws:HyperPod"

    def __init__(
        self,
        spec: PlatformSpec,
        foundation: Foundation,
        cluster: Cluster,
        *,
        agents: pulumi.Resource,
        role: Role,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "hyperpod-pools", opts)
        network, identity, keys = foundation.network, foundation.identity, foundation.keys
        storage = foundation.storage
        tags = self.tags("hyperpod")
        cluster_request(spec, tags, placeholder_inputs(spec))
        script = aws.s3.BucketObjectv2(
            self.name("hyperpod-script"),
            bucket=storage.bucket.bucket,
            key=f"{LIFECYCLE_PREFIX}{ON_CREATE}",
            content=SCRIPT.read_text(encoding="utf-8"),
            content_type="text/x-shellscript",
            kms_key_id=keys.data.arn,
            server_side_encryption="aws:kms",
            tags=self.tags("hyperpod-script"),
            opts=self.options(),
        )
        zones = {zone: subnet.id for zone, subnet in network.private_subnets.items()}
        inputs = pulumi.Output.all(
            role=role.arn,
            eks=cluster.cluster.arn,
            bucket=storage.bucket.bucket,
            disk_key=keys.nodes.arn,
            security_groups=[cluster.security_group_id, self._fabric(network).id],
            subnets=zones,
        )
        self.nodes = aws.cloudcontrol.Resource(
            self.name("hyperpod"),
            type_name=request.TYPE_NAME,
            desired_state=inputs.apply(
                lambda known: cluster_request(spec, tags, HyperPodInputs(**known)).json_text()
            ),
            opts=self.options(
                depends_on=[script, agents, *cluster.ready, *identity.ready],
                # A fixed name cannot exist twice.
                delete_before_replace=True,
                # Deep health checks of a large group take two hours.
                custom_timeouts=pulumi.CustomTimeouts(create="4h", update="4h", delete="2h"),
            ),
        )
        self.pools = tuple(self._pool(pool) for pool in hyperpods(spec))
        self.register_outputs({})

    def _pool(self, pool: NodeGroup) -> Pool:
        machine = machine_for_pool(self.spec.cloud, pool)
        fabric = uses_efa(pool, machine)
        return Pool(
            spec=pool,
            machine=machine,
            labels=labels(pool, machine),
            zones=layout.pool_zones(self.spec, pool),
            nodes=self.nodes,
            rdma_resource=EFA_RESOURCE if fabric else "",
            environment=FABRIC_ENVIRONMENT if fabric else {},
            selector=HEALTHY,
        )

    def _fabric(self, network: Network) -> aws.ec2.SecurityGroup:
        """HyperPod requires a group that is open among its members in both directions, also without EFA
        (developer guide, custom VPC).
        """
        group = aws.ec2.SecurityGroup(
            self.name("hyperpod-sg"),
            vpc_id=network.vpc.id,
            description="HyperPod nodes among themselves",
            tags=self.tags("hyperpod-sg"),
            opts=self.options(),
        )
        for direction, rule in (
            ("in", aws.vpc.SecurityGroupIngressRule),
            ("out", aws.vpc.SecurityGroupEgressRule),
        ):
            what = f"hyperpod-{direction}"
            rule(
                self.name(what),
                security_group_id=group.id,
                referenced_security_group_id=group.id,
                description=f"{'from' if direction == 'in' else 'to'} members",
                ip_protocol="-1",
                tags=self.tags(what),
                opts=self.options(),
            )
        return group
