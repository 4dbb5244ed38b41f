"""LayerFeatures: which features of the layer a platform gets, from the spec's switches and what the cloud
provides.

A feature needs its switch and a reason (a pool with that fabric, a store to write to). A namespace exists
exactly when one of its features does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainfleet.infra.kubernetes.names import PRIORITIES
from trainfleet.infra.platform import Platform
from trainfleet.infra.spec.schema import PlatformSpec

EFA_RESOURCE = "vpc.amazonaws.com/efa"
INSTALLED_FABRICS = ("roce", "gpudirect-tcpxo", "gpudirect-tcpx")
"""Fabrics whose NCCL plugin is copied to the node. Pods request no resource."""


@dataclass(frozen=True)
class LayerFeatures:
    """True: the layer installs the feature."""

    kuberay: bool
    queue: bool
    gpu_plugin: bool
    efa_plugin: bool
    infiniband_plugin: bool
    nccl_plugins: tuple[str, ...]
    """Fabrics whose NCCL plugin is installed."""
    gpu_metrics: bool
    provided_gpu_metrics: bool
    """Whether the cloud's exporter is scraped instead."""
    autoscaler: bool
    network_policies: bool
    priority_classes: bool
    launcher_access: bool
    launcher_token: bool
    """Whether the launcher's account has a token that never expires."""
    storage_class: bool
    secrets: bool
    certificates: Literal["own-ca", "cert-manager", "none"]
    redis: bool
    monitoring: bool
    logs: bool
    node_problems: bool

    @property
    def own_priority(self) -> str | None:
        """The priority class of the layer's own pods that runs depend on: no run preempts them."""
        return max(PRIORITIES, key=PRIORITIES.__getitem__) if self.priority_classes else None

    @property
    def gpu_namespace(self) -> bool:
        """Whether anything runs in the namespace of GPU agents."""
        return (
            self.gpu_plugin
            or self.efa_plugin
            or self.infiniband_plugin
            or bool(self.nccl_plugins)
            or self.gpu_metrics
        )

    @property
    def node_namespace(self) -> bool:
        """Whether anything runs in the namespace of node agents."""
        return self.monitoring or self.node_problems


def layer_features(platform: Platform, spec: PlatformSpec) -> LayerFeatures:
    """The features that are installed on this platform."""
    layer, provides, pools = spec.layer, platform.provides, platform.pools
    fast = (
        [pool for pool in pools if pool.spec.interconnect == "best"]
        if layer.rdma_plugin and "rdma-plugin" not in provides
        else []
    )
    store = platform.log_store
    return LayerFeatures(
        kuberay=layer.kuberay,
        # The queue manages GPU pools.
        queue=spec.queue.enabled and bool(pools),
        gpu_plugin=layer.gpu_plugin and bool(pools) and "gpu-plugin" not in provides,
        efa_plugin=any(pool.rdma_resource == EFA_RESOURCE for pool in fast),
        infiniband_plugin=any(pool.machine.rdma == "infiniband" for pool in fast),
        nccl_plugins=tuple(sorted({pool.machine.rdma for pool in fast} & set(INSTALLED_FABRICS))),
        gpu_metrics=layer.gpu_metrics and bool(pools) and "gpu-metrics" not in provides,
        provided_gpu_metrics=layer.gpu_metrics and bool(pools) and "gpu-metrics" in provides,
        autoscaler=layer.autoscaler
        and "autoscaler" not in provides
        and platform.autoscaler == "generic"
        and "autoscaler" in platform.identities,
        network_policies=layer.network_policies,
        priority_classes=layer.priority_classes,
        launcher_access=layer.launcher_access,
        launcher_token=layer.launcher_access and layer.launcher_token,
        storage_class=layer.storage_classes
        and "storage-class" not in provides
        and bool(platform.storage_class_provisioner),
        secrets=spec.secrets.provider == "cloud"
        and bool(platform.secret_store)
        and "secrets" in platform.identities,
        certificates=layer.certificates if spec.ray.tls else "none",
        redis=spec.ray.redis.mode == "in-cluster",
        monitoring=spec.monitoring.enabled,
        logs=layer.logs
        and "logs" not in provides
        and store is not None
        and store.identity in platform.identities,
        node_problems=layer.node_problems and "node-problems" not in provides,
    )
