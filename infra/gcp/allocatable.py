"""What the kubelet of GKE reserves (Google Kubernetes Engine documentation, plan node sizes)."""

from __future__ import annotations

import math

from trainfleet.infra.catalog.allocatable import CPU_STEPS, Allocatable, allocatable, in_steps
from trainfleet.infra.catalog.machines import Machine

MEMORY_STEPS = ((4, 0.25), (8, 0.2), (16, 0.1), (128, 0.06), (math.inf, 0.02))
"""Upper limits in GiB, and the shares that are reserved below them."""


def node_allocatable(machine: Machine) -> Allocatable:
    """What pods can request on an empty node of GKE."""
    return allocatable(machine, in_steps(machine.vcpu, CPU_STEPS), in_steps(machine.memory_gib, MEMORY_STEPS))
