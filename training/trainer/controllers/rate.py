"""Controllers of the learning rate: reduction on a plateau, warm restarts, and back-off after a loss spike.

A controller multiplies the schedule's rate by its factor. Warm restarts follow Loshchilov and Hutter
(arXiv:1608.03983), except that a cycle without improvement lowers the next peak.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import fmean, pstdev
from typing import Any, Protocol

from trainfleet.training.recipe.schema_control import RateControl


class RateController(Protocol):
    """A controller of the learning rate."""

    factor: float

    def observe(self, step: int, loss: float, metrics: Mapping[str, float] | None) -> str:
        """Add the measurements of a step; returns the reason if a decision changed the factor, else an empty
        text.
        """

    def state(self) -> dict[str, Any]: ...

    def load_state(self, state: Mapping[str, Any]) -> None: ...


class _AttributeState:
    """A controller whose attributes are its state."""

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


class Plateau(_AttributeState):
    """Multiplies the rate by `factor` after `patience` consecutive validations that did not improve the best
    value by `threshold`.
    """

    def __init__(self, settings: RateControl) -> None:
        super().__init__(settings)
        self.best = math.inf
        self.without = 0

    def observe(self, step: int, loss: float, metrics: Mapping[str, float] | None) -> str:  # noqa: ARG002 - siblings use them
        if not metrics or self.settings.metric not in metrics:
            return ""
        value = metrics[self.settings.metric] * (1 if self.settings.mode == "min" else -1)
        if value < self.best - self.settings.threshold * abs(value):
            self.best, self.without = value, 0
            return ""
        self.without += 1
        lowest = self.settings.floor
        if self.without < self.settings.patience or self.factor <= lowest:
            return ""
        self.factor, self.without = max(lowest, self.factor * self.settings.factor), 0
        best = abs(self.best) if self.settings.mode == "min" else -self.best
        return (
            f"{self.settings.metric} did not improve on {best:.4f} for {self.settings.patience} validations"
        )


class Restarts(_AttributeState):
    """Cosine decay from a peak over `cycle` steps, then a restart; each cycle is `stretch` times as long as
    the
    previous one.
    """

    def __init__(self, settings: RateControl) -> None:
        super().__init__(settings)
        self.peak = 1.0
        self.length = settings.cycle
        self.place = 0
        self.best = math.inf
        self.best_before = math.inf

    def observe(self, step: int, loss: float, metrics: Mapping[str, float] | None) -> str:  # noqa: ARG002 - siblings use them
        if metrics and self.settings.metric in metrics:
            self.best = min(
                self.best, metrics[self.settings.metric] * (1 if self.settings.mode == "min" else -1)
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
            "" if better else f"; {self.settings.metric} did not improve, so the peak is lower"
        )
        self.length, self.place, self.best_before = (
            round(self.length * self.settings.stretch),
            0,
            min(self.best, self.best_before),
        )
        self.factor = self.peak
        return why


class BackOff(_AttributeState):
    """Multiplies the rate by `factor` when a step's loss is far above the last `window` losses, and recovers
    over `recover` steps.
    """

    def __init__(self, settings: RateControl) -> None:
        super().__init__(settings)
        self.past: deque[float] = deque(maxlen=settings.window)

    def observe(self, step: int, loss: float, metrics: Mapping[str, float] | None) -> str:  # noqa: ARG002 - siblings use them
        why = ""
        if len(self.past) >= self.settings.window // 2:
            mean, deviation = fmean(self.past), pstdev(self.past)
            if not loss <= mean + self.settings.sigmas * max(deviation, 1e-3 * abs(mean)):
                past = f"the previous {len(self.past)} steps had {mean:.4f} ± {deviation:.4f}"
                why = f"the loss spiked to {loss:.4f}; {past}"
        if why:
            self.factor = max(self.settings.floor, self.factor * self.settings.factor)
            self.past.clear()  # losses after a spike are compared with each other
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
    """The controller that the recipe enables."""
    return _KINDS[settings.kind](settings) if settings.kind != "off" else None
