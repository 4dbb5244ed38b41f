"""What the kubelet of AKS reserves (AKS documentation, node resource reservations)."""

from __future__ import annotations

from trainfleet.infra.azure.node_config import PODS_PER_NODE
from trainfleet.infra.catalog.allocatable import MIB, Allocatable, allocatable
from trainfleet.infra.catalog.machines import Machine


def node_allocatable(machine: Machine) -> Allocatable:
    """What pods can request on an empty node of AKS: 100 and 10 per CPU of thousandths of a CPU (four CPUs
    and more), and the smaller of 20 MB per pod and a quarter of the memory.
    """
    by_pods = (20 * PODS_PER_NODE + 50) * MIB
    return allocatable(machine, (100 + 10 * machine.vcpu) / 1000, min(by_pods, machine.memory_gib / 4))
