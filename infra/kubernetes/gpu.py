"""Gpu: agents that expose GPUs and their fabric to the scheduler and Prometheus, where a pool needs them.

All run only on GPU nodes (label `nvidia.com/gpu.present`, or the EFA machines' types) and tolerate every
taint. SkyPilot reads only `vpc.amazonaws.com/efa`, so EFA uses the device plugin and not DRA.
"""

from __future__ import annotations

import pulumi

from trainfleet.infra.kubernetes.charts import DCGM_EXPORTER, EFA_DEVICE_PLUGIN, NVIDIA_DEVICE_PLUGIN, release
from trainfleet.infra.kubernetes.fabrics import infiniband_plugin, nccl_plugin
from trainfleet.infra.kubernetes.features import EFA_RESOURCE, LayerFeatures
from trainfleet.infra.kubernetes.names import GPU_NAMESPACE
from trainfleet.infra.kubernetes.values import gpu
from trainfleet.infra.platform import Platform
from trainfleet.infra.spec.schema import PlatformSpec


class Gpu(pulumi.ComponentResource):
    """The NVIDIA plugin, the plugin of each fabric that a pool has, and the exporter of GPU metrics."""

    def __init__(
        self, platform: Platform, spec: PlatformSpec, features: LayerFeatures, opts: pulumi.ResourceOptions
    ) -> None:
        super().__init__("trainfleet:kubernetes:Gpu", f"{spec.name}-gpu", None, opts)
        if features.gpu_plugin:
            release(
                f"{spec.name}-nvidia-device-plugin",
                NVIDIA_DEVICE_PLUGIN,
                GPU_NAMESPACE,
                gpu.nvidia(),
                parent=self,
            )
        if features.efa_plugin:
            efa = [pool for pool in platform.pools if pool.rdma_resource == EFA_RESOURCE]
            release(
                f"{spec.name}-efa-device-plugin", EFA_DEVICE_PLUGIN, GPU_NAMESPACE, gpu.efa(efa), parent=self
            )
        if features.infiniband_plugin:
            pools = [pool for pool in platform.pools if pool.machine.rdma == "infiniband"]
            infiniband_plugin(spec, pools, self)
        for fabric in features.nccl_plugins:
            nccl_plugin(spec, fabric, [pool for pool in platform.pools if pool.machine.rdma == fabric], self)
        if features.gpu_metrics:
            release(
                f"{spec.name}-dcgm-exporter",
                DCGM_EXPORTER,
                GPU_NAMESPACE,
                gpu.exporter(monitored=features.monitoring),
                parent=self,
            )
        self.register_outputs({})
