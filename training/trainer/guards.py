"""Guards: what happens when a gradient is no number, or a step's loss leaps out of its past.

Used by the step loop, which asks before it changes a weight. Easy to get wrong: a verdict must follow from
values that are
equal on all ranks, and a loss that was refused may not enter the past that the next one is judged by.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any, Literal

from trainfleet.training.recipe.schema import GuardsConfig

Action = Literal["go", "skip", "roll_back", "stop"]


@dataclass(frozen=True)
class Verdict:
    """What to do with a step's gradient, and why.

    `skip` leaves the weights as they are and goes on with the next samples; `roll_back` goes on from the
    newest checkpoint's
    weights, with the next samples; `stop` ends the run.
    """

    action: Action
    why: str = ""


GO = Verdict("go")


class Guards:
    """Judges every step; its past is part of a checkpoint."""

    def __init__(self, settings: GuardsConfig) -> None:
        self.settings = settings
        self._past: deque[float] = deque(maxlen=settings.window)
        self._in_a_row = 0

    def judge(self, loss: float, norm: float) -> Verdict:
        """Judge a step by its loss (mean over all ranks) and its gradient's norm before clipping."""
        verdict = self._judged(loss, norm)
        if verdict.action == "go":
            self._in_a_row = 0
            self._past.append(loss)
            return verdict
        self._in_a_row += 1
        if verdict.action != "stop" and self._in_a_row > self.settings.limit:
            return Verdict(
                "stop",
                f"{verdict.why}; {self.settings.limit} steps in a row were refused before it (guards.limit)",
            )
        return verdict

    def state(self) -> dict[str, Any]:
        return {"past": list(self._past), "in_a_row": self._in_a_row}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._past = deque(state["past"], maxlen=self.settings.window)
        self._in_a_row = state["in_a_row"]

    def _judged(self, loss: float, norm: float) -> Verdict:
        if not (math.isfinite(norm) and math.isfinite(loss)):
            return Verdict(self.settings.nan, "the gradient is no finite number")
        if self.settings.spike != "off" and len(self._past) >= self.settings.window // 2:
            usual, spread = fmean(self._past), pstdev(self._past)
            limit = usual + self.settings.sigmas * max(spread, 1e-3 * abs(usual))
            if loss > limit:
                return Verdict(
                    self.settings.spike,
                    f"the loss leapt to {loss:.4f}; the last {len(self._past)} steps had {usual:.4f} ± {spread:.4f}",
                )
        return GO
