"""What a run has used of the time and money that its recipe allows, over all of its starts. Rank 0 only."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.training.recipe.schema import Limits

LATE_S = 900.0
"""How long a run may continue beyond a limit until its launcher, or Kubernetes, ends it."""
WARN_SHARE = 0.8
"""The share of a limit at which a run warns."""


@dataclass(frozen=True)
class Used:
    """Hours for which a run held its machines, and their price.

    Attributes:
        hours: over all starts, without the time in a queue and the time between starts.
        usd: the same times the price of the machines; None if no start had a price.
    """

    hours: float
    usd: float | None

    def reached(self, limits: Limits) -> list[Problem]:
        """The limits that are used up."""
        found = []
        if limits.max_hours is not None and self.hours >= limits.max_hours:
            what = f"the run has used {self.hours:.3g} of {limits.max_hours:g} hours"
            found.append(Problem("limits.max_hours", what, "a higher limit resumes it"))
        if limits.max_usd is not None and self.usd is not None and self.usd >= limits.max_usd:
            what = f"the run has used ${self.usd:,.2f} of ${limits.max_usd:,.2f}"
            found.append(Problem("limits.max_usd", what, "a higher limit resumes it"))
        return found


def used_by(starts: Sequence[Mapping[str, Any]]) -> Used:
    """What the starts in run.json have used."""
    hours = sum(float(each.get("held_seconds", 0.0)) for each in starts) / 3600
    priced = [each for each in starts if each.get("usd_per_hour") is not None]
    usd = sum(each.get("held_seconds", 0.0) / 3600 * each["usd_per_hour"] for each in priced)
    return Used(hours, usd if priced else None)


def require_something_left(limits: Limits, starts: Sequence[Mapping[str, Any]]) -> None:
    """Check that a run may continue.

    Raises:
        InputError: it has reached a limit of its recipe.
    """
    if problems := used_by(starts).reached(limits):
        raise InputError("the run has reached its limit; its checkpoints are kept", problems)


def seconds_left(limits: Limits, usd_per_hour: float | None, used: Used) -> float | None:
    """For how long machines of this price may still be held; None: without a limit."""
    hours = [] if limits.max_hours is None else [limits.max_hours - used.hours]
    if limits.max_usd is not None and usd_per_hour:
        hours.append((limits.max_usd - (used.usd or 0.0)) / usd_per_hour)
    return min(hours) * 3600 if hours else None


@dataclass
class Meter:
    """Measures the current start.

    Attributes:
        limits: of the recipe.
        usd_per_hour: the price of all machines of the run; None if it is not known.
        began: since when they are held, by time.monotonic.
        before: the starts before this one, as in run.json.
        trained_s: seconds in steps, with their validations and checkpoints.
    """

    limits: Limits
    usd_per_hour: float | None
    began: float
    before: Sequence[Mapping[str, Any]] = ()
    warned: list[str] = field(default_factory=list)
    """Limits that were reported as nearly reached."""
    trained_s: float = 0.0

    def start(self) -> dict[str, Any]:
        """The fields of this start in run.json."""
        price = {} if self.usd_per_hour is None else {"usd_per_hour": self.usd_per_hour}
        held = round(time.monotonic() - self.began, 3)
        return {"held_seconds": held, "trained_seconds": round(self.trained_s, 3), **price}

    def used(self) -> Used:
        """Of all starts, with this one."""
        return used_by([*self.before, self.start()])

    def row(self) -> dict[str, float]:
        """The fields of a row of metrics."""
        usd = self.used().usd
        return {} if usd is None else {"usd": round(usd, 4)}

    def nearly_reached(self) -> list[str]:
        """A sentence for each limit of which WARN_SHARE is used, once per start."""
        used, limits = self.used(), self.limits
        shares = {
            "max_hours": used.hours / limits.max_hours if limits.max_hours else 0.0,
            "max_usd": (used.usd or 0.0) / limits.max_usd if limits.max_usd else 0.0,
        }
        found = [name for name, share in shares.items() if share >= WARN_SHARE and name not in self.warned]
        self.warned += found
        values = {"max_hours": limits.max_hours, "max_usd": limits.max_usd}
        return [f"{WARN_SHARE:.0%} of limits.{name}={values[name]:g} is used" for name in found]

    def reached(self) -> list[Problem]:
        """The limits that are used up; none most of the time."""
        unlimited = self.limits.max_hours is None and self.limits.max_usd is None
        return [] if unlimited else self.used().reached(self.limits)
