"""How a model is spread over ranks, in one place: DDP now; FSDP and HSDP come later behind the same few methods.

Used by the step loop. Easy to get wrong: DDP settles the order in which gradients are summed only after its first
backward pass, and with it the last bits; `settle` has that pass over with before step one, in a fresh and a resumed run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from training.context import RunContext
from training.recipe import Recipe


class Replicated:
    """Every rank holds the whole model; gradients are averaged over ranks (DDP), or there is one rank."""

    def __init__(self, model: nn.Module, context: RunContext) -> None:
        self.module = model
        self.parallel: nn.Module = model
        if context.world_size > 1:
            self.parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)

    def settle(self, backward: Callable[[nn.Module], Any]) -> None:
        """Let one backward pass go by that changes nothing, so that all later ones sum gradients in the same order."""
        if self.parallel is not self.module:
            for _ in range(2):
                backward(self.parallel)
                self.module.zero_grad(set_to_none=True)

    def turn(self, last: bool) -> AbstractContextManager[Any]:
        """Around the forward and backward pass of a micro batch: gradients are exchanged in the last one of a step only."""
        if last or not isinstance(self.parallel, DistributedDataParallel):
            return contextlib.nullcontext()
        return self.parallel.no_sync()

    def clip(self, limit: float) -> torch.Tensor:
        """Scale the gradient down to `limit` where it is longer; returns its norm before that, the same on all ranks."""
        return nn.utils.clip_grad_norm_(self.module.parameters(), limit, foreach=True)

    def model_state(self) -> dict[str, torch.Tensor]:
        """The model's whole state, under names without any wrapper's prefix."""
        return self.module.state_dict()

    def load_model_state(self, state: dict[str, torch.Tensor]) -> None:
        self.module.load_state_dict(state)


STRATEGIES: dict[str, type[Replicated]] = {"ddp": Replicated}
"""By the recipe's `strategy`."""


def make_strategy(recipe: Recipe, model: nn.Module, context: RunContext) -> Replicated:
    """Spread a model that is already on its device."""
    return STRATEGIES[recipe.strategy](model, context)
