"""Controllers of the learning rate: down on a plateau, warm restarts, and a step back after a spike of the
loss.

Used by `Steering`. A controller holds one factor, by which the schedule's rate is multiplied. Warm restarts
follow Loshchilov and
Hutter (arXiv:1608.03983), except that a cycle which has not improved the metric lowers the next one's peak.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import fmean, pstdev
from typing import Any, Protocol

from trainfleet.training.recipe.schema import RateControl


class RateController(Protocol):
    """One way to steer the learning rate."""

    factor: float

    def observe(self, step: int, loss: float, figures: Mapping[str, float] | None) -> str:
        """Learn from a step; where the factor was changed by a decision, returns why."""

    def state(self) -> dict[str, Any]: ...

    def load_state(self, state: Mapping[str, Any]) -> None: ...


class _Kept:
    """What controllers share: their numbers are their state."""

    def __init__(self, settings: RateControl) -> None:
        self.settings = settings
        self.factor = 1.0

    def state(self) -> dict[str, Any]:
        return {
            name: list(value) if isinstance(value, deque) else value
            for name, value in vars(self).items()
            if name != "settings"
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            old = getattr(self, name)
            setattr(self, name, deque(value, maxlen=old.maxlen) if isinstance(old, deque) else value)


class Plateau(_Kept):
    """Multiplies the rate by `factor` when `patience` validations in a row were no better than the best by
    `threshold`.
    """

    def __init__(self, settings: RateControl) -> None:
        super().__init__(settings)
        self.best = math.inf
        self.without = 0

    def observe(self, step: int, loss: float, figures: Mapping[str, float] | None) -> str:  # noqa: ARG002 - siblings use them
        if not figures or self.settings.metric not in figures:
            return ""
        value = figures[self.settings.metric] * (1 if self.settings.mode == "min" else -1)
        if value < self.best - self.settings.threshold * abs(value):
            self.best, self.without = value, 0
            return ""
        self.without += 1
        lowest = self.settings.floor
        if self.without < self.settings.patience or self.factor <= lowest:
            return ""
        self.factor, self.without = max(lowest, self.factor * self.settings.factor), 0
        best = abs(self.best) if self.settings.mode == "min" else -self.best
        return f"{self.settings.metric} is no better than {best:.4f} for {self.settings.patience} validations"


class Restarts(_Kept):
    """Half a cosine down from a peak over `cycle` steps, then up again; each cycle is `stretch` times as long
    as the one before.
    """

    def __init__(self, settings: RateControl) -> None:
        super().__init__(settings)
        self.peak = 1.0
        self.length = settings.cycle
        self.place = 0
        self.best = math.inf
        self.best_before = math.inf

    def observe(self, step: int, loss: float, figures: Mapping[str, float] | None) -> str:  # noqa: ARG002 - siblings use them
        if figures and self.settings.metric in figures:
            self.best = min(
                self.best, figures[self.settings.metric] * (1 if self.settings.mode == "min" else -1)
            )
        self.place += 1
        if self.place < self.length:
            low = self.settings.floor
            self.factor = self.peak * (
                low + (1 - low) * 0.5 * (1 + math.cos(math.pi * self.place / self.length))
            )
            return ""
        better = self.best < self.best_before or math.isinf(self.best)
        self.peak *= 1.0 if better else self.settings.factor
        why = f"a cycle of {self.length} steps ended" + (
            "" if better else f"; {self.settings.metric} is no better than before it, so the peak is lower"
        )
        self.length, self.place, self.best_before = (
            round(self.length * self.settings.stretch),
            0,
            min(self.best, self.best_before),
        )
        self.factor = self.peak
        return why


class BackOff(_Kept):
    """Multiplies the rate by `factor` when a step's loss leaps out of the last `window` ones, and lets it
    grow back over `recover` steps.
    """

    def __init__(self, settings: RateControl) -> None:
        super().__init__(settings)
        self.past: deque[float] = deque(maxlen=settings.window)

    def observe(self, step: int, loss: float, figures: Mapping[str, float] | None) -> str:  # noqa: ARG002 - siblings use them
        why = ""
        if len(self.past) >= self.settings.window // 2:
            usual, spread = fmean(self.past), pstdev(self.past)
            if not loss <= usual + self.settings.sigmas * max(spread, 1e-3 * abs(usual)):
                why = f"the loss leapt to {loss:.4f}; the last {len(self.past)} steps had {usual:.4f} ± {spread:.4f}"
        if why:
            self.factor = max(self.settings.floor, self.factor * self.settings.factor)
            self.past.clear()  # what comes after a leap is judged by itself
        else:
            if math.isfinite(loss):
                self.past.append(loss)
            self.factor = min(1.0, self.factor * (1 / self.settings.factor) ** (1 / self.settings.recover))
        return why


_KINDS: dict[str, type[Plateau] | type[Restarts] | type[BackOff]] = {
    "plateau": Plateau,
    "restarts": Restarts,
    "backoff": BackOff,
}


def make_rate_controller(settings: RateControl) -> RateController | None:
    """The controller that the recipe switches on."""
    return _KINDS[settings.kind](settings) if settings.kind != "off" else None
