"""Values of the GPU plugin, the EFA plugin and the DCGM exporter. All run on GPU nodes alone, under every
taint.
"""

from __future__ import annotations

from collections.abc import Iterable

from trainfleet.infra.kubernetes.manifest_model import document
from trainfleet.infra.kubernetes.values.common import (
    EVERYWHERE,
    SMALL,
    Affinity,
    Amounts,
    Resources,
    Switch,
    Toleration,
    on_nodes,
)
from trainfleet.infra.platform import Pool

GPU_LABEL = "nvidia.com/gpu.present"


@document
class NvidiaPlugin:
    affinity: Affinity
    tolerations: tuple[Toleration, ...]
    resources: Resources
    gfd: Switch


@document
class Labels:
    keys: tuple[str, ...]
    values: tuple[str, ...]


@document
class EfaPlugin:
    supported_instance_labels: Labels
    tolerations: tuple[Toleration, ...]
    resources: Resources


@document
class ServiceMonitor:
    enabled: bool
    interval: str | None = None


@document
class Exporter:
    affinity: Affinity
    tolerations: tuple[Toleration, ...]
    resources: Resources
    service_monitor: ServiceMonitor


def nvidia() -> NvidiaPlugin:
    # GPU feature discovery labels nodes late, and SkyPilot cannot scale from zero by its labels: the pools
    # carry their own.
    return NvidiaPlugin(
        affinity=on_nodes(GPU_LABEL, "true"), tolerations=EVERYWHERE, resources=SMALL, gfd=Switch(False)
    )


def efa(pools: Iterable[Pool]) -> EfaPlugin:
    types = tuple(sorted({pool.machine.instance_type for pool in pools}))
    # The chart's own list of machines is outdated.
    return EfaPlugin(
        Labels(("node.kubernetes.io/instance-type",), types), tolerations=EVERYWHERE, resources=SMALL
    )


def exporter(*, monitored: bool) -> Exporter:
    # The exporter opens every GPU of the node: the chart's 512 MiB are not enough on machines with eight.
    resources = Resources(Amounts("100m", "256Mi"), Amounts(memory="1Gi"))
    return Exporter(
        affinity=on_nodes(GPU_LABEL, "true"),
        tolerations=EVERYWHERE,
        resources=resources,
        service_monitor=ServiceMonitor(monitored, "15s"),
    )
