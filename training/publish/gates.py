"""The gates that a checkpoint passes before it is published, and what was measured for each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainfleet.errors import TrainfleetError


class GateError(TrainfleetError):
    """Raised when a run does not pass its gates; one problem for each that it fails."""

    gates: Sequence[Judged] = ()


@dataclass(frozen=True)
class Judged:
    """A gate, and what was measured for it; `value` is None where the metric has no number."""

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
    def wanted(self) -> str:
        """The gate in words."""
        return " and ".join(
            f"at {word} {limit:g}"
            for word, limit in (("least", self.min), ("most", self.max))
            if limit is not None
        )
