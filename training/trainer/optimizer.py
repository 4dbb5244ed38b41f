"""AdamW and its learning rate schedule, a stateless function of the step: a resumed run gets the
same rates.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from trainfleet.training.recipe.schema import Optimizer


def make_optimizer(settings: Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    """AdamW with weight decay on matrices only."""
    parameters = [each for each in model.parameters() if each.requires_grad]
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
    keys = ("betas", "eps", "weight_decay")
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
