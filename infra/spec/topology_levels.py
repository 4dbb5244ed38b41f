"""The levels of a pool's topology, and how its pods ask to be placed in it."""

from __future__ import annotations

from trainfleet.infra.catalog.machines import Machine
from trainfleet.infra.cloud_support import support
from trainfleet.infra.spec.schema import GpuPool

REQUIRED = "kueue.x-k8s.io/podset-required-topology"
PREFERRED = "kueue.x-k8s.io/podset-preferred-topology"


def topology_levels(pool: GpuPool, machine: Machine) -> tuple[str, ...]:
    """The levels above the node, from the widest: the pool's own, else those of the cloud. Empty without a
    topology, or if the cloud labels no nodes of this machine.
    """
    if pool.topology is None:
        return ()
    return pool.topology.levels or support(machine.cloud).topology_levels(machine)


def placement(pool: GpuPool, machine: Machine) -> dict[str, str]:
    """The annotations of pods that train on the pool. Kueue admits no others to a flavor with a topology
    (checkPodSetAndFlavorMatchForTAS in pkg/scheduler/flavorassigner of Kueue 0.17.1).
    """
    levels = topology_levels(pool, machine)
    if pool.topology is None or not levels:
        return {}
    return {REQUIRED: pool.topology.required} if pool.topology.required else {PREFERRED: levels[-1]}
