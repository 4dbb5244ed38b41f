"""When a launcher ends a run that does not keep its limits by itself, such as one that hangs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainfleet.training.launch.base import Launcher
from trainfleet.training.launch.options import RemoteOptions
from trainfleet.training.launch.request import Target
from trainfleet.training.launch.run_record import Reported
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.limits import LATE_S, seconds_left, used_by


class Deadline:
    """How long a launch may hold its machines: what its limits leave, the wait for machines, and LATE_S."""

    def __init__(
        self, launcher: Launcher[Any], recipe: Recipe, target: Target, starts: Sequence[Mapping[str, Any]]
    ) -> None:
        options, limits = target.request.options, recipe.limits
        self._seconds: float | None = None
        if (limits.max_hours is None and limits.max_usd is None) or (options and options.follows_only):
            return
        left = seconds_left(limits, launcher.usd_per_hour(recipe, target), used_by(starts))
        if left is not None:
            within = options.within_s if isinstance(options, RemoteOptions) else 0.0
            self._seconds = left + within + LATE_S

    def passed(self, reported: Reported, seconds: float) -> bool:
        """Whether the run has held its machines for too long, `seconds` after the launch. The time in a queue
        does not count.
        """
        if self._seconds is None or reported.admitted_s is None:
            return False
        return seconds - reported.admitted_s - reported.requeued_until(seconds) > self._seconds
