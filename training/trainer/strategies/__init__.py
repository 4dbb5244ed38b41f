"""How a model is spread over ranks, by one word of the recipe: `ddp`, `fsdp` (shards), `hsdp` (shards, and
replicas of them).

Used by the step loop, which calls `make_strategy` and then only what `Strategy` has. Easy to get wrong: the
optimizer is
made after the strategy, of `strategy.module`, for sharding puts other parameters in the model.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.context import RunContext
from trainfleet.training.trainer.strategies.base import Strategy, Tensors
from trainfleet.training.trainer.strategies.ddp import Replicated
from trainfleet.training.trainer.strategies.fsdp import Sharded

__all__ = ["STRATEGIES", "Replicated", "Sharded", "Strategy", "Tensors", "make_strategy"]

STRATEGIES: dict[str, Callable[[Recipe, Callable[[], nn.Module], RunContext], Strategy]] = {
    "ddp": Replicated,
    "fsdp": Sharded,
    "hsdp": Sharded,
}
"""By the recipe's `strategy`."""


def make_strategy(recipe: Recipe, make: Callable[[], nn.Module], context: RunContext) -> Strategy:
    """Build the model that `make` makes, the same on every rank and under every strategy, and spread it.

    Raises:
        InputError: the model has no such blocks, the ranks cannot be grouped as asked, or `meta_init` does
        not suit the model.
    """
    return STRATEGIES[recipe.strategy](recipe, make, context)
