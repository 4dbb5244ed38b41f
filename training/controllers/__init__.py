"""Controllers: learning rate and batch size changed by what the run itself measures. Off unless the recipe switches them on.

Used by the step loop: `Steering` is asked before a step and told after it. Easy to get wrong: a decision must follow from
values that are equal on all ranks, is logged with its reason, and is part of the checkpoint, so that a resumed run decides the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from training.controllers.batch import BatchController
from training.controllers.rate import RateController, make_rate_controller
from training.recipe import Recipe

__all__ = ["Decision", "Live", "Steering"]


@dataclass(frozen=True)
class Live:
    """What a step showed, equal on all ranks.

    Attributes:
        step: steps done.
        loss: mean over the global batch; None where nobody asked for it (`Steering.needs_loss`).
        noise: norms of the gradient over the first half and over the whole batch, for steps that `wants_noise` named.
        figures: the validation's metrics, for a step that was validated.
    """

    step: int
    loss: float | None = None
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
        return {"kind": "decision", "step": self.step, "what": self.what, "old": self.old, "new": self.new, "why": self.why}


class Steering:
    """The controllers of a run: `rate_factor` multiplies the schedule's learning rate, `global_batch` is the next step's."""

    def __init__(self, recipe: Recipe) -> None:
        self._rate: RateController | None = make_rate_controller(recipe.controllers.rate)
        self._batch = BatchController(recipe.controllers.batch, recipe.batch.global_batch)
        self.micro_batch = recipe.batch.micro_batch

    @property
    def needs_loss(self) -> bool:
        """Whether the loss over all ranks is wanted after every step."""
        return self._rate is not None and self._rate.needs_loss

    @property
    def global_batch(self) -> int:
        """Samples of the next step over all ranks."""
        return self._batch.size

    @property
    def rate_factor(self) -> float:
        """What the schedule's learning rate is multiplied by in the next step."""
        return (self._rate.factor if self._rate is not None else 1.0) * self._batch.rate_factor

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

    def state(self) -> dict[str, Any]:
        return {"rate": self._rate.state() if self._rate is not None else None, "batch": self._batch.state(), "micro_batch": self.micro_batch}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; a controller that was switched on since starts afresh."""
        if self._rate is not None and state["rate"] is not None:
            self._rate.load_state(state["rate"])
        self._batch.load_state(state["batch"])
        self.micro_batch = state["micro_batch"]
