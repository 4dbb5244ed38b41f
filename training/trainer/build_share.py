"""Decides whether a thread that builds batches ahead is worth its cost: from the first steps of a loop that
builds its own.
"""

from __future__ import annotations

import statistics

STEPS = 8
"""Batches that the loop builds itself before the decision, besides the first one, which also compiles."""
WORTH = 0.1
"""The share of a step from which a thread builds batches. It is the most that a thread can save on a CPU, and
the thread takes time of the CPUs that compute: up to 10 % more in steps of 11 ms (docs/benchmarks.md).
"""


class BuildShare:
    """Times of a loop that takes batches: how long each was built, and from one to the next."""

    def __init__(self) -> None:
        self._built: list[float] = []
        self._steps: list[float] = []
        self._began: float | None = None

    def add(self, began: float, built: float) -> None:
        """A batch that was asked for at `began`, in seconds of any clock, and took `built` seconds."""
        if self._began is not None:
            self._steps.append(began - self._began)
            self._built.append(built)
        self._began = began

    def share(self) -> float | None:
        """The median share of a step in which its batch is built; None before STEPS steps.

        The first step is left out, and medians leave out pauses such as a validation or a checkpoint.
        """
        if len(self._steps) <= STEPS:
            return None
        return statistics.median(self._built[1:]) / max(statistics.median(self._steps[1:]), 1e-9)
