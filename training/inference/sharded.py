"""A model whose parameters are sharded over the ranks that evaluate it.

A rank holds its share of every parameter, and while it computes, the parameters of one block after the other.
The recipe's `sharding` applies as in training, except `reduce_every` and `meta_init`, which are of gradients
and initial weights, and that without `replicas` there is one replica on however many machines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainfleet.errors import InputError, Problem

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from trainfleet.training.recipe.schema import Recipe
    from trainfleet.training.workloads import Workload

SHARDED = ("fsdp", "hsdp")
"""The strategies whose models are evaluated in shards."""
ENTRIES = ("next_logits", "generate")
"""Methods that predictions call instead of the forward pass, and that need the root's parameters."""


def is_sharded(recipe: Recipe, world_size: int) -> bool:
    """Whether this many ranks evaluate a model of this recipe in shards."""
    return world_size > 1 and recipe.strategy in SHARDED


def empty_sharded_model(workload: Workload, recipe: Recipe, device: str) -> nn.Module:
    """The model in shards over all ranks; the weights are undefined or initial ones. Collective.

    With `Workload.on_meta`, no rank allocates more than its share. Other models are first built whole
    in the host memory of each rank.

    Args:
        workload: builds the model, in its precision.
        recipe: its `sharding`.
        device: of this rank. With `sharding.cpu_offload` the shards stay in host memory.

    Raises:
        InputError: the model does not have these blocks, or the replicas do not divide the ranks.
    """
    import torch
    from torch.distributed.fsdp import (
        CPUOffloadPolicy,
        OffloadPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    from trainfleet.training.trainer.strategies.wrap import find_blocks

    with torch.device("meta" if workload.on_meta else "cpu"):
        model = workload.build_model()
    model = model.to(dtype=torch.bfloat16 if workload.precision == "bf16" else None)
    settings, mesh = recipe.sharding, _mesh(recipe, device)
    offload = (
        CPUOffloadPolicy(pin_memory=device.startswith("cuda")) if settings.cpu_offload else OffloadPolicy()
    )
    for part in (*find_blocks(model, settings.blocks), model):
        # Without a backward pass, nothing needs the root's parameters after the forward pass.
        fully_shard(part, mesh=mesh, reshard_after_forward=settings.reshard, offload_policy=offload)
    for name in ENTRIES:
        if hasattr(model, name):
            register_fsdp_forward_method(model, name)
    if not settings.cpu_offload:
        return model.to_empty(device=device) if workload.on_meta else model.to(device)
    if workload.on_meta:
        model.to_empty(device="cpu")
        for module in model.modules():
            for name, buffer in module._buffers.items():
                module._buffers[name] = buffer if buffer is None else buffer.to(device)
    return model


def _mesh(recipe: Recipe, device: str) -> DeviceMesh:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    kind, world = device.partition(":")[0], dist.get_world_size()
    replicas = recipe.sharding.replicas if recipe.strategy == "hsdp" else None
    if replicas is None:
        return init_device_mesh(kind, (world,), mesh_dim_names=("shard",))
    if world % replicas:
        what = f"{world} processes cannot be divided into {replicas} replicas, the run's `sharding.replicas`"
        fix = f"a multiple of {replicas}, or 1"
        raise InputError(
            "the number of processes does not fit the replicas", [Problem("--workers", what, fix)]
        )
    return init_device_mesh(kind, (replicas, world // replicas), mesh_dim_names=("replicate", "shard"))
