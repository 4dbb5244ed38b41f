"""Linear layers whose matrix products are computed in float8, with torchao.

Inputs, weights and gradients are scaled and rounded in each pass, without state: checkpoints are those of a
run without float8, and a resumed run has the same losses. Norms and what is outside the blocks are computed
in the recipe's `precision`. Source: https://github.com/pytorch/ao/tree/main/torchao/float8
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from trainfleet.errors import InputError, Problem
from trainfleet.training.recipe.schema import Float8

MULTIPLE = 16
"""Both sizes of a layer's weight are multiples of it: the matrix products of GPUs require that."""
CAPABILITY = {"tensorwise": (8, 9), "rowwise": (9, 0)}
"""The oldest compute capability with such matrix products: Ada (L4, L40S), and Hopper (H100)."""
_SUMMARY = "the linear layers cannot be computed in float8"


def use_float8(settings: Float8, blocks: Sequence[nn.Module], device: str) -> int:
    """Replace the linear layers of the blocks that are trained and whose sizes fit, in place. Parameters and
    their names stay as they are. Call it before recomputation, compilation and sharding.

    Returns:
        How many layers were replaced.

    Raises:
        InputError: torchao is not installed, the device has no such products, or no layer fits.
    """
    if settings.scaling == "none":
        return 0
    if not settings.emulate:
        _check(settings.scaling, device)
    float8, layer = _torchao()
    config = float8.Float8LinearConfig.from_recipe_name(settings.scaling)
    config = dataclasses.replace(config, emulate=settings.emulate)
    for block in blocks:
        float8.convert_to_float8_training(block, config=config, module_filter_fn=_fits)
    layers = sum(isinstance(each, layer) for block in blocks for each in block.modules())
    if not layers:
        what = f"no linear layer of a block has trained weights with sizes that are multiples of {MULTIPLE}"
        fix = "float8.scaling=none, or name the blocks in sharding.blocks"
        raise InputError(_SUMMARY, [Problem("float8.scaling", what, fix)])
    return layers


def _fits(module: nn.Module, _name: str) -> bool:
    # Subclasses have passes of their own: that of nn.MultiheadAttention is never called.
    return (
        type(module) is nn.Linear
        and module.weight.requires_grad
        and not any(size % MULTIPLE for size in module.weight.shape)
    )


def _check(scaling: str, device: str) -> None:
    needed = CAPABILITY[scaling]
    if not device.startswith("cuda"):
        what, found = "a CPU has no matrix products in float8", None
    else:
        found = torch.cuda.get_device_capability(device)
        name = torch.cuda.get_device_name(device)
        what = (
            f"{name} has compute capability {found[0]}.{found[1]}, `{scaling}` needs {needed[0]}.{needed[1]}"
        )
    if found is None or (found < needed and torch.version.hip is None):
        fix = "float8.scaling=none; float8.emulate=true rounds in the same way, slowly, to try it"
        raise InputError(_SUMMARY, [Problem("float8.scaling", what, fix)])


def _torchao() -> tuple[Any, Any]:
    """torchao's `float8`, and the class of its linear layer."""
    try:
        from torchao import float8
        from torchao.float8.float8_linear import Float8Linear
    except ImportError as error:
        what, fix = f"torchao cannot be imported: {error}", "pip install 'trainfleet[float8]'"
        raise InputError(_SUMMARY, [Problem("float8.scaling", what, fix)]) from error
    return float8, Float8Linear
