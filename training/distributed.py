"""Process groups: up from torchrun's or Ray's environment, down again, and this process's place in them.

Used by launchers before `training.loop.train`. Easy to get wrong: on GPUs a second backend (gloo) is needed for the
small CPU objects that checkpoints and metrics gather.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class World:
    """This process among all: `rank` of `world_size`, `local_rank` on its machine, and its `device` (`cpu` or `cuda:N`)."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    device: str = "cpu"


def init_from_env(use_gpu: bool, timeout_s: float = 600) -> World:
    """Join the process group that RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT describe; alone without them.

    A group that is already up (Ray Train makes one) is kept. With one process no group is made.
    """
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = f"cuda:{local_rank}" if use_gpu else "cpu"
    if use_gpu:
        torch.cuda.set_device(local_rank)
    if world_size > 1 and not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if use_gpu else "gloo", rank=rank, world_size=world_size, timeout=timedelta(seconds=timeout_s))
    if dist.is_initialized():
        rank, world_size = dist.get_rank(), dist.get_world_size()
    return World(rank, world_size, local_rank, device)


def shutdown() -> None:
    """Leave the process group, where there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()
