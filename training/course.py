"""A run's course when nothing steers it: the rate of the recipe's schedule, the recipe's batch, and an end at the first bad gradient.

Used by the step loop. Easy to get wrong: whatever steers a run answers to the same calls, from values that are equal on all
ranks, and its answers for a step may not depend on how often the run was resumed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from training.optimizer import learning_rate
from training.recipe import Recipe

Verdict = Literal["go", "skip", "roll_back", "stop"]
"""On a step whose gradient is there and not yet used: use it, leave it out, go back to the last checkpoint, end the run."""


class Steady:
    """Learning rate and batch size as the recipe says, whatever the run does."""

    def __init__(self, recipe: Recipe, steps: int) -> None:
        self._recipe, self._steps = recipe, steps

    def rate(self, step: int) -> float:
        """The learning rate of step `step`, from 0."""
        return learning_rate(self._recipe.optimizer, step, self._steps)

    def global_batch(self, step: int) -> int:  # noqa: ARG002 - the same for every step
        """Samples of step `step` over all ranks."""
        return self._recipe.batch.global_batch

    def after_step(self, step: int, live: Mapping[str, float]) -> list[Any]:  # noqa: ARG002 - what others decide by
        """Decisions made because of what step `step` showed."""
        return []

    def state(self) -> dict[str, Any]:
        """What must be in a checkpoint."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""


class Finite:
    """A gradient that is infinite or no number ends the run: nothing after it could be trusted."""

    def judge(self, step: int, loss: float, norm: float) -> Verdict:  # noqa: ARG002 - what others judge by
        """What to do with step `step`, whose loss and norm are those of all ranks."""
        return "go" if math.isfinite(norm) and math.isfinite(loss) else "stop"
