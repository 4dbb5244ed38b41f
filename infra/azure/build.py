"""Build the Azure platform, component by component.

Destroy happens in reverse order, so that no interface or load balancer is left: the cluster layer first, then
nodes, the control plane, role assignments after their users, and the network last. An upgrade is in the
order of creation: the control plane, the system pool, the GPU pools, the cluster layer.
"""

from __future__ import annotations

from pulumi_azure_native import authorization

from trainfleet.infra.azure import layout
from trainfleet.infra.azure.budget import Budget
from trainfleet.infra.azure.cluster import Cluster
from trainfleet.infra.azure.filesystem import Lustre, LustreDriver, Nfs
from trainfleet.infra.azure.foundation import Foundation
from trainfleet.infra.azure.group import Group
from trainfleet.infra.azure.identity import CLIENT_ID_ANNOTATION, POD_LABEL, Identity, PodIdentities
from trainfleet.infra.azure.keys import Keys
from trainfleet.infra.azure.logs import FlowLogs, Logs
from trainfleet.infra.azure.network import Network
from trainfleet.infra.azure.node_pools import GpuPools, SystemPool
from trainfleet.infra.azure.registry import Registry
from trainfleet.infra.azure.secrets import Secrets
from trainfleet.infra.azure.storage import Storage
from trainfleet.infra.azure.workspace import Workspace
from trainfleet.infra.platform import Platform, ProvidedFeature, ServiceIdentity, Subject
from trainfleet.infra.spec.schema import PlatformSpec

PROVIDED: frozenset[ProvidedFeature] = frozenset({"autoscaler", "node-problems"})
"""AKS scales pools and repairs nodes itself, and collects logs of pods if they are enabled."""


def build(spec: PlatformSpec) -> Platform:
    """Everything on Azure below the cluster layer.

    Raises:
        InputError: the network cannot be planned. Validation reports this earlier.
    """
    tenant = authorization.get_client_config_output().tenant_id
    group = Group(spec)
    workspace = Workspace(spec, group)
    network = Network(spec, group)
    identity = Identity(spec, group)
    keys = Keys(spec, tenant, group=group, network=network, identity=identity, workspace=workspace)
    storage = Storage(spec, keys, group=group, network=network, identity=identity, workspace=workspace)
    secrets = Secrets(spec, tenant, group=group, network=network, identity=identity, workspace=workspace)
    registry = Registry(spec, group=group, network=network, identity=identity, workspace=workspace)
    foundation = Foundation(group, workspace, keys, network, identity, registry)
    if identity.flow_logs is not None:
        FlowLogs(spec, foundation)
    cluster = Cluster(spec, foundation)
    credentials = PodIdentities(spec, cluster.cluster, identity)
    logs = Logs(spec, foundation, cluster.cluster)
    system = SystemPool(spec, foundation, cluster)
    pools = GpuPools(spec, foundation, cluster, after=[system.nodes])
    shared = spec.storage.shared_filesystem
    volume = None
    if shared:
        filesystem = Lustre if shared.kind == "lustre" else Nfs
        volume = filesystem(spec, shared, foundation).volume
    if spec.budget:
        Budget(spec, spec.budget)
    provider = cluster.provider([system.nodes, *credentials.ready, *storage.ready, *secrets.ready, logs])
    drivers = [LustreDriver(spec, provider).installed] if shared and shared.kind == "lustre" else []
    return Platform(
        cloud=spec.cloud,
        kubernetes=provider,
        cluster=cluster.cluster,
        cluster_name=cluster.cluster_name,
        kube_context=layout.cluster_name(spec),
        kubeconfig=cluster.kubeconfig,
        bucket_url=storage.url,
        registry=registry.url,
        pools=pools.pools,
        identities=_identities(credentials),
        storage_class_provisioner="disk.csi.azure.com",
        storage_class_parameters={"skuName": "Premium_LRS", "diskEncryptionSetID": keys.disks.id},
        shared_filesystem=volume,
        autoscaler="generic",
        priorities_namespace="kube-system",  # of AKS's own autoscaler
        # Storage and Entra also have public addresses, so egress is limited by port and not by range.
        api_cidrs=(),
        # Volumes need their driver until the end, so it is deleted after the layer, like the nodes.
        system_nodes=(system.nodes, *drivers),
        secrets=secrets.names,
        provides=PROVIDED | ({"logs"} if spec.layer.logs else set()),
        secret_store=secrets.store,
        launchers=tuple(Subject("Group", launcher) for launcher in spec.kubernetes.launchers),
    )


def _identities(credentials: PodIdentities) -> dict[str, ServiceIdentity]:
    return {
        purpose: ServiceIdentity(
            pods.namespace,
            pods.service_account,
            pods.identity.client_id,
            annotations={CLIENT_ID_ANNOTATION: pods.identity.client_id},
            labels={POD_LABEL[0]: POD_LABEL[1]},
        )
        for purpose, pods in credentials.bound.items()
    }
