"""AdamW, Muon and their learning rate schedule, a stateless function of the step: a resumed run gets the
same rates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from trainfleet.errors import InputError, Problem
from trainfleet.training.recipe.schema import Optimizer
from trainfleet.training.trainer.sharded_muon import ShardedMuon
from trainfleet.training.trainer.strategies.wrap import find_blocks


def make_optimizer(
    settings: Optimizer, model: nn.Module, blocks: Sequence[str] = ()
) -> torch.optim.Optimizer:
    """AdamW with weight decay on matrices only, or Muon for the matrices of the model's blocks.

    Args:
        settings: of the recipe.
        model: after it was distributed.
        blocks: classes of its blocks (`sharding.blocks`); empty: detected.

    Raises:
        InputError: Muon was requested, and no block has a matrix.
    """
    parameters = [each for each in model.parameters() if each.requires_grad]
    if settings.name == "adamw":
        return _adamw(settings, parameters)
    matrices = _matrices(model, blocks)
    if not matrices:
        what = "`muon` updates the matrices of repeated blocks, and the model has none"
        fix = "optimizer.name=adamw, or name its blocks in sharding.blocks"
        raise InputError("Muon has nothing to update", [Problem("optimizer.name", what, fix)])
    known = {id(each) for each in matrices}
    sharded = any(isinstance(each, DTensor) for each in matrices)
    muon = (ShardedMuon if sharded else torch.optim.Muon)(
        matrices,
        lr=settings.lr,
        weight_decay=settings.weight_decay,
        momentum=settings.momentum,
        adjust_lr_fn="match_rms_adamw",  # so that rate and weight decay are AdamW's (arXiv:2502.16982)
    )
    return Combined(muon, _adamw(settings, [each for each in parameters if id(each) not in known]))


class Combined(torch.optim.Optimizer):
    """Optimizers of different parameters as one, for schedules and checkpoints.

    NOTE: Muon cannot skip a step on the device, as fused AdamW does (`found_inf`).
    """

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self._parts = parts
        self._sizes = [len(each.param_groups) for each in parts]
        super().__init__([group for each in parts for group in each.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters. Groups and state are this object's, because a checkpoint replaces them."""
        if closure is not None:
            raise ValueError("a closure is not supported")
        first = 0
        for part, size in zip(self._parts, self._sizes, strict=True):
            part.param_groups = self.param_groups[first : first + size]
            part.state = self.state
            part.step()
            first += size


def _matrices(model: nn.Module, blocks: Sequence[str]) -> list[nn.Parameter]:
    """The trained matrices in the blocks, besides embeddings."""
    found = {
        id(each): each
        for block in find_blocks(model, blocks)
        for module in block.modules()
        if not isinstance(module, nn.Embedding)
        for each in module.parameters(recurse=False)
        if each.ndim == 2 and each.requires_grad
    }
    return list(found.values())


def _adamw(settings: Optimizer, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    groups = [
        {"params": [each for each in parameters if each.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [each for each in parameters if each.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        fused=True,
    )


def recipe_settings(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """What the recipe sets in each group of parameters, besides the rate, which is set in each step."""
    keys = ("betas", "eps", "weight_decay", "momentum")
    return [{key: group[key] for key in keys if key in group} for group in optimizer.param_groups]


def learning_rate(settings: Optimizer, step: float, steps: int) -> float:
    """The rate of step `step` (from 0) of `steps`: linear warm-up to the peak, then by `schedule`.

    cosine: decay to `min_ratio` of the peak. wsd: the peak, and a linear decay to `min_ratio` in the last
    `decay` of all steps (warm-up, stable, decay: Hu et al. 2024, arXiv:2404.06395), so that a run can be made
    longer before its decay begins.
    """
    if step < settings.warmup:
        return settings.lr * (step + 1) / settings.warmup
    if settings.schedule == "constant":
        return settings.lr
    if settings.schedule == "wsd":
        decay = max(1.0, settings.decay * steps)
        progress = min(1.0, max(0.0, step - (steps - 1 - decay)) / decay)
        return settings.lr * (1 - (1 - settings.min_ratio) * progress)
    progress = (step - settings.warmup) / max(1, steps - 1 - settings.warmup)
    return settings.lr * (
        settings.min_ratio + (1 - settings.min_ratio) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of the next step."""
    for group in optimizer.param_groups:
        group["lr"] = rate
