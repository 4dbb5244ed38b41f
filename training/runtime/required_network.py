"""The network that the platform requires of NCCL: used, or the run ends with the reason before it trains."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from trainfleet.errors import InputError, Problem
from trainfleet.training.runtime.process_group import World

VARIABLE = "NCCL_NET"
"""Set by launchers for whole nodes of a run over several, from the platform's outputs. NCCL uses the network
of this name or fails; without it, NCCL falls back to sockets silently (NCCL documentation, NCCL_NET).
"""
FIX = "an image with this network's libraries (the targets of images/Dockerfile), or a pool without a fabric"


def require_network(world: World) -> str:
    """Make NCCL connect all ranks, and return the name of the network that it must use; empty if none is
    required.

    Raises:
        InputError: NCCL does not start with that network.
    """
    name = os.environ.get(VARIABLE, "")
    if not name or world.world_size == 1 or not world.device.startswith("cuda"):
        return ""
    try:
        # NCCL opens its network at the first collective.
        dist.all_reduce(torch.zeros(1, device=world.device))
        torch.cuda.synchronize()
    except dist.DistBackendError as error:
        first = next(filter(None, (line.strip() for line in str(error).splitlines())), type(error).__name__)
        what = f"NCCL does not start with the network {name} that the platform requires: {first}"
        raise InputError("the fabric cannot be used", [Problem(VARIABLE, what, FIX)]) from error
    return name
