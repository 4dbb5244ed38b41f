"""Publication gates and their measured values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainfleet.errors import TrainfleetError


class GateError(TrainfleetError):
    """Raised when a run fails gates; one problem per failed gate."""

    gates: Sequence[GateResult] = ()


@dataclass(frozen=True)
class GateResult:
    """A gate and its measured value; None if the metric was not measured."""

    metric: str
    min: float | None
    max: float | None
    value: float | None

    @property
    def passed(self) -> bool:
        value = self.value
        if value is None or math.isnan(value):
            return False
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)

    @property
    def requirement(self) -> str:
        """The gate as text."""
        return " and ".join(
            f"at {word} {limit:g}"
            for word, limit in (("least", self.min), ("most", self.max))
            if limit is not None
        )
