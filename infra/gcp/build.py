"""Build the Google Cloud platform, component by component.

Destroy happens in reverse order, so that no load balancer or disk is left: the cluster layer first, then
nodes, egress, and the network last. An apply upgrades the control plane; GKE upgrades the nodes.
"""

from __future__ import annotations

import pulumi_gcp as gcp

from trainfleet.infra.gcp import layout
from trainfleet.infra.gcp.apis import Apis
from trainfleet.infra.gcp.budget import Budget
from trainfleet.infra.gcp.cluster import Cluster
from trainfleet.infra.gcp.compute_classes import ComputeClasses
from trainfleet.infra.gcp.fabric import Fabric, FabricNetworks
from trainfleet.infra.gcp.filesystem import Lustre, Nfs
from trainfleet.infra.gcp.foundation import Foundation
from trainfleet.infra.gcp.identity import Identity, PodIdentities
from trainfleet.infra.gcp.keys import Keys
from trainfleet.infra.gcp.network import Network
from trainfleet.infra.gcp.node_pools import GpuPools, SystemPool
from trainfleet.infra.gcp.registry import Registry
from trainfleet.infra.gcp.secrets import Secrets
from trainfleet.infra.gcp.storage import Storage
from trainfleet.infra.platform import Platform, ProvidedFeature, ServiceIdentity, Subject
from trainfleet.infra.spec.schema import PlatformSpec

METADATA_ENDPOINTS = (("169.254.169.252/32", 988), ("169.254.169.254/32", 80))
"""GKE's metadata server as network policies match it, the second on Dataplane V2 (GKE guide, Workload
Identity and network policy).
"""


def build(spec: PlatformSpec) -> Platform:
    """Everything on Google Cloud below the cluster layer.

    Raises:
        InputError: the network cannot be planned. Validation reports this earlier.
    """
    project = gcp.organizations.get_project_output(project_id=spec.account)
    apis = Apis(spec)
    keys = Keys(spec, project.number, apis)
    storage = Storage(spec, keys)
    secrets = Secrets(spec, keys)
    registry = Registry(spec, keys)
    network = Network(spec, apis)
    fabric = Fabric(spec, network)
    identity = Identity(spec, apis, storage, secrets, registry)
    foundation = Foundation(apis, keys, network, identity, fabric)
    cluster = Cluster(spec, foundation)
    bindings = PodIdentities(spec, cluster.cluster, identity)
    system = SystemPool(spec, foundation, cluster)
    pools = GpuPools(spec, foundation, cluster, after=[system.nodes])
    shared = spec.storage.shared_filesystem
    kinds: dict[str, type[Lustre | Nfs]] = {"lustre": Lustre, "nfs": Nfs}
    volume = kinds[shared.kind](spec, shared, foundation).volume if shared else None
    if spec.budget:
        Budget(spec, spec.budget, foundation, project_number=project.number)
    provider = cluster.provider([system.nodes, *bindings.ready])
    FabricNetworks(spec, fabric, provider, [pool.nodes for pool in pools.pools if pool.nodes])
    if any(group.spec.preferences for group in pools.pools):
        ComputeClasses(spec, pools.pools, provider)
    return Platform(
        cloud=spec.cloud,
        kubernetes=provider,
        cluster=cluster.cluster,
        cluster_name=cluster.cluster_name,
        kube_context=layout.kube_context(spec),
        kubeconfig=cluster.kubeconfig,
        bucket_url=storage.url,
        registry=registry.url,
        pools=pools.pools,
        identities=_identities(bindings),
        storage_class_provisioner="pd.csi.storage.gke.io",
        storage_class_parameters={"type": "pd-balanced", "disk-encryption-kms-key": keys.nodes.id},
        shared_filesystem=volume,
        autoscaler="gke",
        # Public data sets and Cloud Storage have public addresses, so egress is limited by port and not by
        # range.
        api_cidrs=(),
        system_nodes=(system.nodes,),
        secrets=secrets.names,
        provides=provided(spec),
        limits_critical_pods=True,
        dns_metrics=has_core_dns(spec),
        secret_store=_secret_store(spec) if secrets.secrets else {},
        launchers=tuple(subject(who) for who in spec.kubernetes.launchers),
        metadata_endpoints=METADATA_ENDPOINTS,
    )


def provided(spec: PlatformSpec) -> frozenset[ProvidedFeature]:
    """What GKE provides: driver and plugin, autoscaler, repair, the metadata guard; logs and metrics if
    enabled.

    GKE attaches the fabric's interfaces to a pod, but the layer installs NCCL's plugin for them.
    """
    always: set[ProvidedFeature] = {"gpu-plugin", "autoscaler", "network-metadata-guard", "node-problems"}
    enabled: set[ProvidedFeature] = set()
    if spec.layer.logs:
        enabled.add("logs")
    if spec.monitoring.enabled and spec.layer.gpu_metrics:
        enabled.add("gpu-metrics")
    return frozenset(always | enabled)


def has_core_dns(spec: PlatformSpec) -> bool:
    """Whether the cluster's DNS is CoreDNS. It replaces kube-dns in 1.36 (GKE, About kube-dns)."""
    return int(spec.kubernetes.version.partition(".")[2]) >= 36


def subject(who: str) -> Subject:
    """A launcher as GKE names it in role bindings: by address, a group as a group."""
    kind, _, address = layout.member(who).partition(":")
    return Subject("Group" if kind == "group" else "User", address)


def _secret_store(spec: PlatformSpec) -> dict[str, object]:
    """How External Secrets authenticates to Secret Manager: as its own service account."""
    identity = {
        "clusterLocation": spec.region,
        "clusterName": layout.cluster_name(spec),
        "clusterProjectID": spec.account,
        "serviceAccountRef": {"name": "external-secrets", "namespace": "external-secrets"},
    }
    return {"gcpsm": {"projectID": spec.account, "auth": {"workloadIdentity": identity}}}


def _identities(bindings: PodIdentities) -> dict[str, ServiceIdentity]:
    return {
        purpose: ServiceIdentity(
            pods.namespace,
            pods.service_account,
            pods.account.email,
            annotations={"iam.gke.io/gcp-service-account": pods.account.email},
        )
        for purpose, pods in bindings.bound.items()
    }
