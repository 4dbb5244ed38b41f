"""Build the local platform: the cluster of a kubeconfig and the object store of the spec. Creates no cloud
resource.

The provider is bound to the context's name: a cluster that returns at another port keeps its resources, and
another context is another cluster.
"""

from __future__ import annotations

import json

import pulumi_kubernetes as k8s

from trainfleet.infra.catalog.machines import machine_for_pool
from trainfleet.infra.local.kubeconfig import find_cluster, kubeconfig_path
from trainfleet.infra.platform import Platform, Pool, Subject
from trainfleet.infra.spec.node_group import NodeGroup
from trainfleet.infra.spec.node_groups import node_groups
from trainfleet.infra.spec.schema import PlatformSpec


def build(spec: PlatformSpec) -> Platform:
    """The platform on an existing cluster.

    Raises:
        InputError: the kubeconfig cannot be read, or has no such context.
    """
    path = kubeconfig_path(spec)
    reached = find_cluster(spec, path)
    provider = k8s.Provider(
        f"{spec.name}-kubernetes-provider",
        # The path and not the text, which must not be stored in the state.
        kubeconfig=spec.kubernetes.kubeconfig or None,
        context=spec.kubernetes.context or None,
        cluster_identifier=f"{spec.name}/{reached.context or 'current-context'}",
        enable_server_side_apply=True,
    )
    return Platform(
        cloud=spec.cloud,
        kubernetes=provider,
        cluster=None,
        cluster_name=reached.context,
        kube_context=reached.context,
        kubeconfig=json.dumps(reached.document) if reached.document else "",
        bucket_url=spec.storage.bucket_url,
        registry="",
        pools=tuple(existing_pool(spec, pool) for pool in node_groups(spec)),
        identities={},
        storage_class_provisioner="",
        storage_class_parameters={},
        shared_filesystem=None,
        autoscaler="",
        api_cidrs=(),
        store_port=spec.storage.port,
        # Groups of the cluster's own login, in addition to LAUNCHERS_GROUP.
        launchers=tuple(Subject("Group", name) for name in spec.kubernetes.launchers),
    )


def existing_pool(spec: PlatformSpec, pool: NodeGroup) -> Pool:
    """Existing GPU nodes, whose accelerators and labels the spec states."""
    return Pool(
        spec=pool, machine=machine_for_pool(spec.cloud, pool), labels=dict(pool.labels), zones=(), nodes=None
    )
