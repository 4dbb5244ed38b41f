"""Guards: what to do with a step whose gradient is NaN or Inf, or whose loss spikes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any, Literal

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.training.recipe.schema_control import GuardsConfig

Action = Literal["go", "skip", "roll_back", "stop"]


@dataclass(frozen=True)
class Verdict:
    """What to do with a step's gradient, and why.

    `skip` keeps the weights and continues with the next samples; `roll_back` also restores the newest
    checkpoint's weights; `stop` ends the run.
    """

    action: Action
    why: str = ""


GO = Verdict("go")


class NotANumberError(TrainfleetError):
    """Raised on every rank when a guard ends the run: the gradient is NaN or Inf, or the loss spiked."""

    @classmethod
    def of(cls, step: int, verdict: Verdict, last: str | None) -> NotANumberError:
        """The error for a verdict about a step; `last` is the newest good checkpoint."""
        what = f"the last good checkpoint is {last}" if last else "there is no checkpoint yet"
        fix = "use a lower optimizer.lr or grad_clip, or a longer warm-up"
        return cls(f"stopped at step {step}: {verdict.why}", [Problem("optimizer.lr", what, fix)])


class Guards:
    """Checks every step; its history is part of a checkpoint."""

    def __init__(self, config: GuardsConfig) -> None:
        self.config = config
        self._history: deque[float] = deque(maxlen=config.window)
        self._consecutive = 0

    def check(self, loss: float, grad_norm: float) -> Verdict:
        """Check a step by its mean loss and its gradient's norm before clipping, both equal on all ranks."""
        verdict = self._verdict(loss, grad_norm)
        if verdict.action == "go":
            self._consecutive = 0
            self._history.append(loss)
            return verdict
        self._consecutive += 1
        if verdict.action != "stop" and self._consecutive > self.config.limit:
            limit = f"the {self.config.limit} steps before it were rejected too (guards.limit)"
            return Verdict("stop", f"{verdict.why}; {limit}")
        return verdict

    def state(self) -> dict[str, Any]:
        return {"past": list(self._history), "in_a_row": self._consecutive}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._history = deque(state["past"], maxlen=self.config.window)
        self._consecutive = state["in_a_row"]

    def _verdict(self, loss: float, grad_norm: float) -> Verdict:
        if not (math.isfinite(grad_norm) and math.isfinite(loss)):
            return Verdict(self.config.nan, "the gradient is NaN or Inf")
        if self.config.spike != "off" and len(self._history) >= self.config.window // 2:
            mean, deviation = fmean(self._history), pstdev(self._history)
            limit = mean + self.config.sigmas * max(deviation, 1e-3 * abs(mean))
            if loss > limit:
                past = f"the previous {len(self._history)} steps had {mean:.4f} ± {deviation:.4f}"
                return Verdict(self.config.spike, f"the loss spiked to {loss:.4f}; {past}")
        return GO
