"""A model whose parameters are sharded over the ranks that evaluate it.

A rank holds its share of every parameter, and while it computes, the parameters of one block after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

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
        recipe: names the blocks, in `sharding.blocks`.
        device: of this rank.

    Raises:
        InputError: the model does not have these blocks.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    from trainfleet.training.trainer.strategies.wrap import find_blocks

    with torch.device("meta" if workload.on_meta else "cpu"):
        model = workload.build_model()
    model = model.to(dtype=torch.bfloat16 if workload.precision == "bf16" else None)
    mesh = init_device_mesh(device.partition(":")[0], (dist.get_world_size(),), mesh_dim_names=("shard",))
    for part in (*find_blocks(model, recipe.sharding.blocks), model):
        # Without a backward pass, nothing needs the root's parameters after the forward pass.
        fully_shard(part, mesh=mesh, reshard_after_forward=True)
    for name in ENTRIES:
        if hasattr(model, name):
            register_fsdp_forward_method(model, name)
    return model.to_empty(device=device) if workload.on_meta else model.to(device)
