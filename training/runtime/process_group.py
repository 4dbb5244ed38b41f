"""The default process group: set up from torchrun's or Ray's environment, and agreement between ranks."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainfleet.errors import MissingToolError, Problem, TrainfleetError
from trainfleet.training.runtime import nccl_diagnostics

LOOPBACK = ("127.0.0.1", "localhost")
DRIVER_MOUNT = Path("/usr/local/nvidia/lib64")
"""Where GKE mounts the GPU driver. The image must have this folder in LD_LIBRARY_PATH."""


@dataclass(frozen=True)
class World:
    """This process among all: `rank` of `world_size`, on its machine `local_rank` of `local_world_size`, and
    its
    `device` (`cpu` or `cuda:N`).
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    device: str = "cpu"


def init_from_env(use_gpu: bool, timeout_s: float = 600) -> World:
    """Join the process group that RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT describe.

    Keeps an existing group, such as Ray Train's. A single process gets no group.

    Raises:
        MissingToolError: the recipe requires GPUs, and there is none for this process.
    """
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if use_gpu:
        if torch.cuda.device_count() <= local_rank:
            raise MissingToolError("not enough GPUs", [_too_few_gpus(torch.cuda.device_count(), local_rank)])
        if old := _old_driver():
            raise MissingToolError("the GPU cannot be used", [old])
        torch.cuda.set_device(local_rank)
        nccl_diagnostics.enable()
    if world_size > 1 and not dist.is_initialized():
        if os.environ.get("MASTER_ADDR") in LOOPBACK and sys.platform == "linux":
            # Otherwise gloo resolves the host name, which can take minutes without a network.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        backend = "cpu:gloo,cuda:nccl" if use_gpu else "gloo"
        dist.init_process_group(
            backend, rank=rank, world_size=world_size, timeout=timedelta(seconds=timeout_s)
        )
    if dist.is_initialized():
        rank, world_size = dist.get_rank(), dist.get_world_size()
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    return World(rank, world_size, local_rank, local_world_size, f"cuda:{local_rank}" if use_gpu else "cpu")


def _too_few_gpus(count: int, local_rank: int) -> Problem:
    """Why this process has no GPU: a driver that the loader does not find, or a machine with fewer GPUs."""
    searched = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    if not count and (DRIVER_MOUNT / "libcuda.so.1").exists() and str(DRIVER_MOUNT) not in searched:
        what = f"the GPU driver is in {DRIVER_MOUNT}, which the image's LD_LIBRARY_PATH does not contain"
        return Problem("image", what, f"ENV LD_LIBRARY_PATH={DRIVER_MOUNT} in its Dockerfile")
    if not count and (old := _old_driver()):
        return old
    what = f"this machine has {count} GPUs, but process {local_rank} needs its own"
    return Problem("scaling.use_gpu", what, "scaling.use_gpu=false, or fewer workers")


def _old_driver() -> Problem | None:
    """The problem of a node whose GPU driver does not support the image's CUDA. The driver is of the cloud's
    node image, so no contract knows its version.
    """
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        if found := re.search(r"driver on your system is too old \(found version (\d+)\)", str(error)):
            version = int(found[1])  # cuDriverGetVersion: 1000 * major + 10 * minor
            supported = f"{version // 1000}.{version % 1000 // 10}"
            what = f"the node's GPU driver supports CUDA {supported}, and the image has {torch.version.cuda}"
            fix = "a newer driver: another release of the node image; or an image with an older CUDA"
            return Problem("image", what, fix)
    return None


def shutdown() -> None:
    """Leave the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def single_process_group() -> Iterator[None]:
    """A process group of this process only, if there is none: sharding requires one even on a single rank."""
    if dist.is_initialized():
        yield
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]  # public, but missing from the stubs
    try:
        yield
    finally:
        dist.destroy_process_group()


def gather(value: Any, rank: int, world_size: int) -> list[Any]:
    """Every rank's value, in the order of ranks, on rank 0; an empty list elsewhere."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] | None = [None] * world_size if rank == 0 else None
    dist.gather_object(value, values, dst=0)
    return values or []


def on_first(action: Callable[[], Any], rank: int) -> Any:
    """Run `action` on rank 0 and return its plain result on all ranks; its `TrainfleetError` is raised on
    all.

    NOTE: an error on one rank alone would leave the others waiting in a collective.
    """
    result: Any = None
    error: TrainfleetError | None = None
    if rank == 0:
        try:
            result = action()
        except TrainfleetError as caught:
            error = caught
    if dist.is_initialized():
        message = [(result, error and (type(error), error.summary, error.problems))]
        dist.broadcast_object_list(message, src=0)
        result, sent = message[0]
        if sent and error is None:
            kind, summary, problems = sent
            error = kind(summary, problems)
    if error is not None:
        raise error
    return result
