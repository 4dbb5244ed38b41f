"""The local platform: the cluster of a kubeconfig, as it is, and the object store that the spec names. Makes no cloud resource.

Called by infra.program through the registry. Easy to get wrong: the provider is bound to the context's name, so a
cluster that comes up again under another port keeps what was made on it, and another context is another cluster.
"""

from __future__ import annotations

import json

import pulumi_kubernetes as k8s

from infra.local.kubeconfig import kubeconfig_path, reach
from infra.machines import Machine, catalogue
from infra.platform import Platform, Pool
from infra.spec import GpuPool, PlatformSpec


def build(spec: PlatformSpec) -> Platform:
    """The platform on a cluster that is already there.

    Raises:
        InputError: the kubeconfig cannot be read, or has no such context.
    """
    path = kubeconfig_path(spec)
    reached = reach(spec, path)
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
        pools=tuple(found(spec, pool) for pool in spec.gpu_pools),
        identities={},
        storage_class_provisioner="",
        storage_class_parameters={},
        shared_filesystem=None,
        autoscaler="",
        api_cidrs=(),
    )


def found(spec: PlatformSpec, pool: GpuPool) -> Pool:
    """GPU nodes that are already there: the spec says what they carry and how they are labelled; the GPU's memory is known by its name."""
    memory = max((machine.gpu_memory_gib for machine in catalogue() if machine.accelerator == pool.accelerator), default=0.0)
    machine = Machine(
        cloud=spec.cloud,
        instance_type="",
        accelerator=pool.accelerator,
        accelerators_per_node=pool.per_node,
        gpu_memory_gib=memory,
        vcpu=0,
        memory_gib=0.0,
        rdma="none",
        rdma_nics=0,
        price_region="",
        source=f"the spec of {spec.name}",
    )
    return Pool(wish=pool, machine=machine, labels=dict(pool.labels), zones=(), nodes=None)
