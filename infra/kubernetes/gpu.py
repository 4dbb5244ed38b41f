"""GPUs and RDMA adapters made visible to the scheduler: one device plugin each, only where a pool's machines need it.

Both run on GPU nodes alone (label `nvidia.com/gpu.present`, or the EFA machines' types) and tolerate the GPU taint.
GKE runs its own GPU plugin. SkyPilot reads only `vpc.amazonaws.com/efa`, so EFA stays on the device plugin, not on DRA.
"""

from __future__ import annotations

from typing import Any

import pulumi

from infra.kubernetes.charts import EFA_DEVICE_PLUGIN, NVIDIA_DEVICE_PLUGIN, release
from infra.kubernetes.isolation import GPU_NAMESPACE, needs_gpu_namespace
from infra.platform import Platform, Pool
from infra.spec import PlatformSpec

EFA_RESOURCE = "vpc.amazonaws.com/efa"
GPU_TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
SMALL = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}}


class Gpu(pulumi.ComponentResource):
    """The NVIDIA plugin where there is a GPU pool, the EFA plugin where a pool has its adapters."""

    def __init__(self, platform: Platform, spec: PlatformSpec, opts: pulumi.ResourceOptions) -> None:
        super().__init__("trainfleet:kubernetes:Gpu", f"{spec.name}-gpu", None, opts)
        if needs_gpu_namespace(platform):
            release(f"{spec.name}-nvidia-device-plugin", NVIDIA_DEVICE_PLUGIN, GPU_NAMESPACE, nvidia_values(), parent=self)
        if efa := [pool for pool in platform.pools if pool.rdma_resource == EFA_RESOURCE]:
            release(f"{spec.name}-efa-device-plugin", EFA_DEVICE_PLUGIN, GPU_NAMESPACE, efa_values(efa), parent=self)
        self.register_outputs({})


def nvidia_values() -> dict[str, Any]:
    present = {"key": "nvidia.com/gpu.present", "operator": "In", "values": ["true"]}
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [present]}]}}},
        "tolerations": [GPU_TOLERATION],
        "resources": SMALL,
        "gfd": {"enabled": False},
    }


def efa_values(pools: list[Pool]) -> dict[str, Any]:
    types = sorted({pool.machine.instance_type for pool in pools})
    return {
        # The chart's own list of machines lags behind what is sold; the pools know better.
        "supportedInstanceLabels": {"keys": ["node.kubernetes.io/instance-type"], "values": types},
        "tolerations": [GPU_TOLERATION],
        "resources": SMALL,
    }
