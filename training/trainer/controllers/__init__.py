"""Controllers adjust the learning rate and the batch size by what the run measures. Off by default.

A decision follows from values that are equal on all ranks. It is logged with its reason and part of the
checkpoint, so a resumed run decides the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.schema import DecisionRow
from trainfleet.training.trainer.controllers.batch import (
    BatchController,
    choose_micro_batch,
    micro_batch_sizes,
)
from trainfleet.training.trainer.controllers.rate import RateController, make_rate_controller
from trainfleet.training.trainer.optimizer import learning_rate

__all__ = ["Controllers", "Decision", "StepStats"]


@dataclass(frozen=True)
class StepStats:
    """Measurements of a step, equal on all ranks.

    Attributes:
        step: steps done.
        loss: mean over the global batch.
        grad_norms: over the first half and over the whole batch, for steps that `measures_noise` selects.
        metrics: of the validation after this step, if there was one.
    """

    step: int
    loss: float
    grad_norms: tuple[float, float] | None = None
    metrics: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Decision:
    """A change made by a controller."""

    step: int
    what: str
    old: float
    new: float
    why: str

    def row(self) -> DecisionRow:
        return {
            "kind": "decision",
            "step": self.step,
            "what": self.what,
            "old": self.old,
            "new": self.new,
            "why": self.why,
        }


class Controllers:
    """The learning rate and the batch size of a run, including the changes of enabled controllers."""

    def __init__(self, recipe: Recipe, steps: int) -> None:
        self._recipe, self._steps = recipe, steps
        self._rate: RateController | None = make_rate_controller(recipe.controllers.rate)
        self._batch = BatchController(recipe.controllers.batch, recipe.batch.global_batch)
        self.micro_batch = recipe.batch.micro_batch

    @property
    def global_batch(self) -> int:
        """Samples of the next step over all ranks."""
        return self._batch.size

    def learning_rate(self, position: int) -> float:
        """The learning rate of the step that starts at sample `position`. The schedule depends on samples,
        not
        on the current batch size.
        """
        factor = (self._rate.factor if self._rate is not None else 1.0) * self._batch.rate_factor
        return (
            learning_rate(self._recipe.optimizer, position / self._recipe.batch.global_batch, self._steps)
            * factor
        )

    def measures_noise(self, step: int) -> bool:
        """Whether to measure the gradient's norm over half of the batch in step `step` (from 0)."""
        return self._batch.measures_noise(step)

    def after_step(self, stats: StepStats) -> list[Decision]:
        """Update the controllers with a step; returns their decisions for the next one."""
        decisions = []
        if self._rate is not None:
            before = self._rate.factor
            why = self._rate.observe(stats.step, stats.loss, stats.metrics)
            if why:
                decisions.append(Decision(stats.step, "learning rate factor", before, self._rate.factor, why))
        size = self._batch.size
        why = self._batch.observe(stats.grad_norms)
        if why:
            decisions.append(Decision(stats.step, "global batch", size, self._batch.size, why))
        return decisions

    def choose_micro_batch(self, world_size: int, seconds: Callable[[int], float | None]) -> list[Decision]:
        """Use the fastest micro batch that fits; `seconds` as in `batch.choose_micro_batch`."""
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
        """Restore a checkpoint. A controller that was enabled since then starts fresh."""
        if self._rate is not None and state["rate"] is not None:
            self._rate.load_state(state["rate"])
        self._batch.load_state(state["batch"])
        self.micro_batch = state["micro_batch"]
