"""Controllers: learning rate and batch size changed by what the run itself measures. Off unless the recipe
switches them on.

Used by the step loop: `Steering` is asked before a step and told after it. Easy to get wrong: a decision must
follow from
values that are equal on all ranks, is logged with its reason, and is part of the checkpoint, so that a
resumed run decides the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.controllers.batch import (
    BatchController,
    choose_micro_batch,
    micro_batch_sizes,
)
from trainfleet.training.trainer.controllers.rate import RateController, make_rate_controller
from trainfleet.training.trainer.optimizer import learning_rate

__all__ = ["Decision", "Live", "Steering"]


@dataclass(frozen=True)
class Live:
    """What a step showed, equal on all ranks.

    Attributes:
        step: steps done.
        loss: mean over the global batch.
        noise: norms of the gradient over the first half and over the whole batch, for steps that
        `wants_noise` named.
        figures: the validation's metrics, for a step that was validated.
    """

    step: int
    loss: float
    noise: tuple[float, float] | None = None
    figures: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Decision:
    """A change that a controller made: a row of metrics.jsonl of kind `decision`."""

    step: int
    what: str
    old: float
    new: float
    why: str

    def row(self) -> dict[str, Any]:
        return {
            "kind": "decision",
            "step": self.step,
            "what": self.what,
            "old": self.old,
            "new": self.new,
            "why": self.why,
        }


class Steering:
    """A run's course: the schedule's learning rate and the recipe's batch, changed by the controllers that
    are switched on.
    """

    def __init__(self, recipe: Recipe, steps: int) -> None:
        self._recipe, self._steps = recipe, steps
        self._rate: RateController | None = make_rate_controller(recipe.controllers.rate)
        self._batch = BatchController(recipe.controllers.batch, recipe.batch.global_batch)
        self.micro_batch = recipe.batch.micro_batch

    @property
    def global_batch(self) -> int:
        """Samples of the next step over all ranks."""
        return self._batch.size

    def rate(self, position: int) -> float:
        """The learning rate of the step that begins at sample `position`: the schedule goes by samples,
        whatever the batch is.
        """
        factor = (self._rate.factor if self._rate is not None else 1.0) * self._batch.rate_factor
        return (
            learning_rate(self._recipe.optimizer, position / self._recipe.batch.global_batch, self._steps)
            * factor
        )

    def wants_noise(self, step: int) -> bool:
        """Whether the gradient's norm is wanted half way through step `step` (from 0), too."""
        return self._batch.wants_noise(step)

    def after_step(self, live: Live) -> list[Decision]:
        """Learn from a step, and decide for the next."""
        decisions = []
        if self._rate is not None:
            before = self._rate.factor
            why = self._rate.observe(live.step, live.loss, live.figures)
            if why:
                decisions.append(Decision(live.step, "learning rate factor", before, self._rate.factor, why))
        size = self._batch.size
        why = self._batch.observe(live.noise)
        if why:
            decisions.append(Decision(live.step, "global batch", size, self._batch.size, why))
        return decisions

    def choose_micro_batch(self, world_size: int, seconds: Callable[[int], float | None]) -> list[Decision]:
        """Take the fastest micro batch that fits; `seconds` as in
        `trainfleet.training.trainer.controllers.batch.choose_micro_batch`.
        """
        old, sizes = self.micro_batch, micro_batch_sizes(self.global_batch, world_size)
        self.micro_batch, why = choose_micro_batch(sizes, old, seconds)
        return [Decision(0, "micro batch", old, self.micro_batch, why)]

    def state(self) -> dict[str, Any]:
        return {
            "rate": self._rate.state() if self._rate is not None else None,
            "batch": self._batch.state(),
            "micro_batch": self.micro_batch,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; a controller that was switched on since starts afresh."""
        if self._rate is not None and state["rate"] is not None:
            self._rate.load_state(state["rate"])
        self._batch.load_state(state["batch"])
        self.micro_batch = state["micro_batch"]
