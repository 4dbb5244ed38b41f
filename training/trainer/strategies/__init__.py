"""How a model is distributed over ranks: `ddp` (replicated), `fsdp` (sharded), `hsdp` (sharded and
replicated).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.context import RunContext
from trainfleet.training.trainer.strategies.base import StateDict, Strategy
from trainfleet.training.trainer.strategies.ddp import DdpStrategy
from trainfleet.training.trainer.strategies.fsdp import FsdpStrategy

__all__ = ["STRATEGIES", "DdpStrategy", "FsdpStrategy", "StateDict", "Strategy", "make_strategy"]

STRATEGIES: dict[str, Callable[[Recipe, Callable[[], nn.Module], RunContext, bool], Strategy]] = {
    "ddp": DdpStrategy,
    "fsdp": FsdpStrategy,
    "hsdp": FsdpStrategy,
}
"""By the recipe's `strategy`."""


def make_strategy(
    recipe: Recipe, make: Callable[[], nn.Module], context: RunContext, resumes: bool = False
) -> Strategy:
    """Build the model, identical on every rank and with every strategy, and distribute it. With `resumes` and
    `meta_init`, it has no initial weights: a checkpoint must be loaded.

    NOTE: create the optimizer afterwards, from `strategy.module`, because sharding replaces the parameters.

    Raises:
        InputError: the model does not have the requested blocks, the ranks cannot be divided into the
        requested
            replicas, or the model does not support `meta_init`.
    """
    return STRATEGIES[recipe.strategy](recipe, make, context, resumes)
