"""What the kubelet of EKS's AL2023 reserves (awslabs/amazon-eks-ami, nodeadm, kubelet configuration)."""

from __future__ import annotations

from trainfleet.infra.catalog.allocatable import CPU_STEPS, MIB, Allocatable, allocatable, in_steps
from trainfleet.infra.catalog.machines import Machine

PODS_PER_NODE = 29
"""Of the GPU machine with the fewest network interfaces (g4dn.xlarge); larger machines reserve more."""


def node_allocatable(machine: Machine) -> Allocatable:
    """What pods can request on an empty node of EKS: memory is reserved by the number of pods."""
    return allocatable(machine, in_steps(machine.vcpu, CPU_STEPS), (255 + 11 * PODS_PER_NODE) * MIB)
