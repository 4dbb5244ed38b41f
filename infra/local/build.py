"""The local platform: the cluster of a kubeconfig, as it is, and the object store that the spec names. Makes
no cloud resource.

Called by trainfleet.infra.program through the registry; the same layer goes on top. What only a cloud has is
left out: identities, a secret store, a
log store, an autoscaler, and a storage class, for which the cluster has its own. Easy to get wrong: the
provider is bound to the context's name, so a
cluster that comes up again under another port keeps what was made on it, and another context is another
cluster.
"""

from __future__ import annotations

import json

import pulumi_kubernetes as k8s

from trainfleet.infra.catalog.machines import machine_for_pool
from trainfleet.infra.local.kubeconfig import find_cluster, kubeconfig_path
from trainfleet.infra.platform import Platform, Pool, Subject
from trainfleet.infra.spec.schema import GpuPool, PlatformSpec


def build(spec: PlatformSpec) -> Platform:
    """The platform on a cluster that is already there.

    Raises:
        InputError: the kubeconfig cannot be read, or has no such context.
    """
    path = kubeconfig_path(spec)
    reached = find_cluster(spec, path)
    provider = k8s.Provider(
        f"{spec.name}-kubernetes-provider",
        # The file's path and not its text: what is in it stays out of the stack's state.
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
        pools=tuple(existing_pool(spec, pool) for pool in spec.gpu_pools),
        identities={},
        storage_class_provisioner="",
        storage_class_parameters={},
        shared_filesystem=None,
        autoscaler="",
        api_cidrs=(),
        # Whoever gave the cluster its login named these groups; beside them, ours is there for accounts.
        launchers=tuple(Subject("Group", name) for name in spec.kubernetes.launchers),
    )


def existing_pool(spec: PlatformSpec, pool: GpuPool) -> Pool:
    """GPU nodes that are already there: the spec says what they carry and how they are labelled."""
    return Pool(
        spec=pool, machine=machine_for_pool(spec.cloud, pool), labels=dict(pool.labels), zones=(), nodes=None
    )
