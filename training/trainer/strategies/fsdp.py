"""FSDP2: each block's parameters are sharded over ranks and gathered while it computes; hsdp replicates the
shards.

Between the micro batches of a step, gradients stay unsharded on each rank, unless `sharding.reduce_every`
trades
that memory for communication.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from trainfleet.errors import InputError, Problem
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.context import RunContext
from trainfleet.training.trainer.strategies.base import Strategy
from trainfleet.training.trainer.strategies.float8 import use_float8
from trainfleet.training.trainer.strategies.init_weights import build
from trainfleet.training.trainer.strategies.wrap import compile_blocks, find_blocks, recompute

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class FsdpStrategy(Strategy):
    """A shard of every parameter on each rank."""

    forward_is_collective = True

    def __init__(
        self, recipe: Recipe, make: Callable[[], nn.Module], context: RunContext, resumes: bool = False
    ) -> None:
        settings = recipe.sharding
        built = build(make, recipe.seed, meta=recipe.meta_init, resumes=resumes)
        super().__init__(built.model)
        self.not_drawn, self.notes = built.not_drawn, built.notes
        blocks = find_blocks(built.model, settings.blocks)
        use_float8(recipe.float8, blocks, context.device)
        recompute(blocks, recipe.activation_checkpointing)
        if recipe.compile:
            compile_blocks(built.model, blocks)
        offload = (
            CPUOffloadPolicy(pin_memory=context.device.startswith("cuda"))
            if settings.cpu_offload
            else OffloadPolicy()
        )
        mesh = _mesh(recipe, context)
        for part in (*blocks, built.model):  # in turn, so that only one is unsharded
            built.materialise(part)
            # Below a block, each BatchNorm has a type of its own, and therefore a shard of its own.
            for module in (*_batch_norms(part, recipe), part):
                fully_shard(
                    module,
                    mesh=mesh,
                    reshard_after_forward=settings.reshard
                    and part is not built.model,  # the backward pass needs the root immediately
                    mp_policy=_types(recipe, module),
                    offload_policy=offload,
                )
        self._root = built.model
        self._reshard, self._reduce_every = settings.reshard, settings.reduce_every

    def warm_up(self, warmup_pass: Callable[[nn.Module], Any]) -> None:
        """Nothing: the order of sums is fixed from the first step."""

    @contextlib.contextmanager
    def grad_sync(self, last: bool) -> Iterator[None]:
        assert isinstance(self._root, FSDPModule)
        self._root.set_requires_gradient_sync(last or self._reduce_every)
        self._root.set_is_last_backward(last)
        self._root.set_reshard_after_backward(last or self._reshard)
        yield

    def precision(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()


def _types(recipe: Recipe, module: nn.Module) -> MixedPrecisionPolicy:
    """Types of computation and of reduction. FSDP2 also keeps the sum over micro batches in the latter.

    BatchNorm keeps its weights in fp32, like its running means: on CPUs it fails with weights of another
    type.
    It takes and returns bf16, as with autocast.
    """
    reduced = torch.bfloat16 if recipe.reduce_precision == "bf16" else torch.float32
    if isinstance(module, BATCH_NORMS):
        return MixedPrecisionPolicy(reduce_dtype=reduced, cast_forward_inputs=False)
    return MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if recipe.precision == "bf16" else None, reduce_dtype=reduced
    )


def _batch_norms(part: nn.Module, recipe: Recipe) -> list[nn.Module]:
    """The BatchNorms below a part that need another type than the part, and are not sharded yet."""
    if recipe.precision != "bf16":
        return []
    return [
        each
        for each in part.modules()
        if each is not part and isinstance(each, BATCH_NORMS) and not isinstance(each, FSDPModule)
    ]


def _mesh(recipe: Recipe, context: RunContext) -> DeviceMesh:
    kind, world = context.device.partition(":")[0], dist.get_world_size()
    if recipe.strategy == "fsdp":
        return init_device_mesh(kind, (world,), mesh_dim_names=("shard",))
    replicas = recipe.sharding.replicas or _replicas(world, context)
    if world % replicas:
        what = f"{world} ranks cannot be divided into {replicas} replicas"
        raise InputError(
            "the number of ranks does not fit the replicas",
            [Problem("sharding.replicas", what, f"a divisor of {world}")],
        )
    return init_device_mesh(kind, (replicas, world // replicas), mesh_dim_names=("replicate", "shard"))


def _replicas(world: int, context: RunContext) -> int:
    """One replica per machine; on one machine the smallest number that divides the ranks."""
    machines = world // context.local_world_size if world % context.local_world_size == 0 else 1
    return (
        machines
        if machines > 1
        else next((number for number in range(2, world + 1) if world % number == 0), 1)
    )
