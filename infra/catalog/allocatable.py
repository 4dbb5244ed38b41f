"""What pods can request of a node: the machine's CPUs and memory without those that the kubelet reserves.

Upper bounds: the kernel takes some memory, and the platform runs pods on every node. A pod that requests more
never starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainfleet.infra.catalog.machines import Machine

MIB = 1 / 1024
EVICTION_GIB = 100 * MIB
"""The kubelet evicts pods when less memory is left (default of all three clouds)."""


@dataclass(frozen=True)
class Allocatable:
    """What pods can request on an empty node; 0 = unknown."""

    cpus: float = 0.0
    memory_gib: float = 0.0


def allocatable(machine: Machine, reserved_cpus: float, reserved_gib: float) -> Allocatable:
    """What is left of a machine, rounded down to hundredths."""
    left = machine.vcpu - reserved_cpus, machine.memory_gib - reserved_gib - EVICTION_GIB
    cpus, memory = (math.floor(round(each * 100, 6)) / 100 for each in left)
    return Allocatable(cpus, memory)


def in_steps(amount: float, steps: tuple[tuple[float, float], ...]) -> float:
    """The sum of the shares of `amount`. Each step is an upper limit and the share below it."""
    reserved, low = 0.0, 0.0
    for high, share in steps:
        reserved += share * max(0.0, min(amount, high) - low)
        low = high
    return reserved


CPU_STEPS = ((1, 0.06), (2, 0.01), (4, 0.005), (math.inf, 0.0025))
"""The shares of a machine's CPUs that GKE and EKS reserve (GKE, plan node sizes; awslabs/amazon-eks-ami,
nodeadm, kubelet configuration).
"""
