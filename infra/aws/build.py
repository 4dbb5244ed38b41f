"""Build the AWS platform, component by component.

Destroy happens in reverse order, so that no interface or load balancer is left: the cluster layer first, then
nodes, the network plugin, the control plane, and the network last. An upgrade is in the order of creation:
the control plane, the add-ons that nodes need, the system pool, the other add-ons, the GPU pools, the layer.
"""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from trainfleet.infra.aws import addons, layout
from trainfleet.infra.aws.budget import Budget
from trainfleet.infra.aws.cluster import Cluster
from trainfleet.infra.aws.filesystem import Lustre
from trainfleet.infra.aws.foundation import Foundation
from trainfleet.infra.aws.hyperpod import HyperPod
from trainfleet.infra.aws.identity import Identity, PodIdentities
from trainfleet.infra.aws.keys import Keys
from trainfleet.infra.aws.logs import Logs
from trainfleet.infra.aws.network import Network
from trainfleet.infra.aws.node_pools import GpuPools, SystemPool
from trainfleet.infra.aws.registry import Registry
from trainfleet.infra.aws.secrets import Secrets
from trainfleet.infra.aws.storage import Storage
from trainfleet.infra.kubernetes.hyperpod import HyperPodAgents
from trainfleet.infra.platform import Platform, ServiceIdentity
from trainfleet.infra.spec.node_groups import node_groups
from trainfleet.infra.spec.schema import PlatformSpec


def build(spec: PlatformSpec) -> Platform:
    """Everything on AWS below the cluster layer.

    Raises:
        InputError: the network or the add-ons cannot be planned. Validation reports this earlier.
    """
    account = aws.get_caller_identity_output().account_id
    keys = Keys(spec, account)
    storage = Storage(spec, keys, account)
    secrets = Secrets(spec, keys)
    registry = Registry(spec, keys)
    network = Network(spec, keys, account)
    logs = Logs(spec, keys) if spec.layer.logs else None
    logs_arn = logs.arn if logs else None
    identity = Identity(spec, keys, account, storage.bucket.arn, secrets.arns, logs_arn=logs_arn)
    foundation = Foundation(keys, network, identity, storage)
    cluster = Cluster(spec, foundation)
    associations = PodIdentities(spec, cluster.cluster, identity)
    system = SystemPool(spec, foundation, cluster)
    add_ons = _late_add_ons(spec, cluster, identity, system)
    provider = cluster.provider([system.nodes, *add_ons.installed, *associations.ready])
    gpu = GpuPools(spec, foundation, cluster, after=[system.nodes, *add_ons.installed])
    pools = {pool.spec.name: pool for pool in gpu.pools}
    if identity.hyperpod_role is not None:
        agents = HyperPodAgents(provider, spec, layout.HYPERPOD_REGIONS[spec.region])
        hyperpod = HyperPod(spec, foundation, cluster, agents=agents, role=identity.hyperpod_role)
        pools |= {pool.spec.name: pool for pool in hyperpod.pools}
    shared = spec.storage.shared_filesystem
    lustre = Lustre(spec, shared, foundation, nodes_group=cluster.security_group_id) if shared else None
    if spec.budget:
        Budget(spec, spec.budget)
    return Platform(
        cloud=spec.cloud,
        kubernetes=provider,
        cluster=cluster.cluster,
        cluster_name=cluster.cluster_name,
        kube_context=layout.cluster_name(spec),
        kubeconfig=cluster.kubeconfig,
        bucket_url=storage.url,
        registry=registry.url,
        pools=tuple(pools[pool.name] for pool in node_groups(spec)),
        identities={
            purpose: ServiceIdentity(pods.namespace, pods.service_account, pods.role.arn)
            for purpose, pods in associations.bound.items()
        },
        storage_class_provisioner="ebs.csi.aws.com",
        storage_class_parameters={"type": "gp3", "encrypted": "true", "kmsKeyId": keys.nodes.arn},
        shared_filesystem=lustre.volume if lustre else None,
        autoscaler="generic",
        priorities_namespace=associations.bound["autoscaler"].namespace,
        # Public data sets and S3 have public addresses, so egress is limited by port and not by range.
        api_cidrs=(),
        system_nodes=(system.nodes,),
        secrets=secrets.names,
        provides=frozenset({"node-problems"}),  # EKS and HyperPod replace nodes that their agent reports
        secret_store={"aws": {"service": "SecretsManager", "region": spec.region}} if secrets.names else {},
        log_store=logs.store if logs else None,
        metadata_endpoints=(("169.254.170.23/32", 80),),  # Pod Identity's agent; node metadata stays closed
    )


def _late_add_ons(
    spec: PlatformSpec, cluster: Cluster, identity: Identity, system: SystemPool
) -> addons.AddOns:
    late = [name for name in addons.names(spec) if name not in addons.BEFORE_NODES]
    return addons.AddOns(
        spec,
        "addons",
        cluster.cluster,
        identity,
        late,
        opts=pulumi.ResourceOptions(depends_on=[system.nodes]),
    )
