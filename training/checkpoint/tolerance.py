"""Whether a run continues after a save that failed."""

from __future__ import annotations

import time
from collections.abc import Callable

from trainfleet.errors import TrainfleetError
from trainfleet.training.checkpoint.errors import UnavailableStoreError
from trainfleet.training.recipe.schema import SaveTolerance


class FailedSaves:
    """The saves that have failed since the last complete one."""

    def __init__(self, tolerate: SaveTolerance, clock: Callable[[], float] = time.monotonic) -> None:
        self.tolerate, self.clock = tolerate, clock
        self.in_a_row = self.total = 0
        self.complete_at = clock()

    def succeeded(self) -> None:
        """Count a complete checkpoint."""
        self.in_a_row, self.complete_at = 0, self.clock()

    def failed(self, error: TrainfleetError) -> bool:
        """Count a failed save; returns whether it is one too many.

        An error that another attempt cannot cure, such as a missing permission, is always one too many.
        """
        self.in_a_row, self.total = self.in_a_row + 1, self.total + 1
        patient = self.minutes < self.tolerate.minutes or self.in_a_row <= self.tolerate.saves
        return not (patient and isinstance(error, UnavailableStoreError))

    def counts(self) -> dict[str, int]:
        """For the run's rows, if there is anything to count."""
        return {"failed_saves": self.total} if self.total else {}

    @property
    def minutes(self) -> float:
        """Minutes since the last complete checkpoint, or since the start."""
        return (self.clock() - self.complete_at) / 60
