"""Controllers adjust the learning rate and the batch size by what the run measures. Off by default.

A decision follows from values that are equal on all ranks. It is logged with its reason and part of the
checkpoint, so a resumed run decides the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainfleet.training.recipe.changes import changed_keys
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

FRESH_RATE_KEYS = frozenset(f"controllers.rate.{key}" for key in ("kind", "metric", "mode", "cycle"))
"""A controller of the rate whose recipe has another value starts again: its history does not apply."""


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
        self._origin = (0, 0.0)
        """A sample and its step of the schedule: where the run started, or where its recipe got another
        global batch.
        """

    @property
    def samples(self) -> int:
        """Samples of the whole run."""
        position, step = self._origin
        return position + round((self._steps - step) * self._recipe.batch.global_batch)

    @property
    def global_batch(self) -> int:
        """Samples of the next step over all ranks."""
        return self._batch.size

    def learning_rate(self, position: int) -> float:
        """The learning rate of the step that starts at sample `position`. The schedule depends on samples,
        not on the batch size that a controller has chosen.
        """
        factor = (self._rate.factor if self._rate is not None else 1.0) * self._batch.rate_factor
        origin, first = self._origin
        step = first + (position - origin) / self._recipe.batch.global_batch
        return learning_rate(self._recipe.optimizer, step, self._steps) * factor

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
            "origin": list(self._origin),
        }

    def load_state(
        self, state: Mapping[str, Any], recipe: Mapping[str, Any] | None = None, position: int = 0
    ) -> None:
        """Restore a checkpoint. What the recipe has changed since then takes effect.

        Args:
            state: as `state` returned it.
            recipe: of the checkpoint, dumped; None if it is this one.
            position: samples trained on so far.
        """
        now = self._recipe.model_dump(mode="json")
        changed = changed_keys(recipe, now) if recipe is not None else frozenset()
        if self._rate is not None and state["rate"] is not None and not changed & FRESH_RATE_KEYS:
            self._rate.load_state(state["rate"])
        self._batch.load_state(state["batch"], keep_size="batch.global_batch" not in changed)
        if not changed & {"batch.micro_batch", "controllers.micro_batch"}:
            self.micro_batch = state["micro_batch"]
        first, step = state.get("origin", (0, 0.0))  # runs of 0.1.0 have none
        self._origin = (int(first), float(step))
        if recipe is not None and "batch.global_batch" in changed and self._recipe.steps is not None:
            # `steps` counts steps, of whatever size. With `epochs`, the samples of the run stay the same.
            self._origin = (position, step + (position - first) / recipe["batch"]["global_batch"])
