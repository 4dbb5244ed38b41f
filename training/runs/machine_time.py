"""For how long launches waited in a queue, held machines, and trained on them; and what that cost.

Waiting in a queue costs nothing. Machines that are held without training are idle: while images are pulled,
Ray starts, a checkpoint is restored, or after the last step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from trainfleet.training.runs.reader import real_launches

MONTH = "%Y-%m"


@dataclass(frozen=True)
class MachineTime:
    """The machine time of one launch, or of several.

    Attributes:
        since: when the machines were held first; None if unknown.
        queued_s: seconds in a queue; None if nobody saw the admission.
        held_s: seconds for which machines were held.
        trained_s: seconds in steps, validations and checkpoints; None for a run of an older version.
        usd_per_hour: the price of all its machines; None if unknown.
        launch: the launch, as in run.json.
    """

    since: datetime | None
    queued_s: float | None
    held_s: float
    trained_s: float | None
    usd_per_hour: float | None
    launch: Mapping[str, Any]

    @property
    def idle_s(self) -> float | None:
        """Seconds for which machines were held without training."""
        return None if self.trained_s is None else max(0.0, self.held_s - self.trained_s)

    @property
    def usd(self) -> float | None:
        """The price of the held machines."""
        return None if self.usd_per_hour is None else self.held_s / 3600 * self.usd_per_hour

    @property
    def idle_usd(self) -> float | None:
        """The part of it that trained nothing."""
        idle = self.idle_s
        return None if idle is None or self.usd_per_hour is None else idle / 3600 * self.usd_per_hour

    def by_month(self) -> dict[str, MachineTime]:
        """Its parts in each month (UTC, such as `2026-11`), in proportion to the time held; `` if unknown."""
        if self.since is None:
            return {"": self}
        since, end = self.since, self.since + timedelta(seconds=self.held_s)
        parts: dict[str, MachineTime] = {}
        begin = since
        while begin < end or not parts:
            month = begin.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
            after = (month + timedelta(days=32)).replace(day=1)
            share = (min(after, end) - begin).total_seconds() / self.held_s if self.held_s else 1.0
            first = not parts
            parts[begin.strftime(MONTH)] = replace(
                self,
                since=begin,
                queued_s=self.queued_s if first else 0.0,
                held_s=self.held_s * share,
                trained_s=None if self.trained_s is None else self.trained_s * share,
            )
            begin = after
        return parts


def machine_times(record: Mapping[str, Any], last: Mapping[str, Any] | None = None) -> list[MachineTime]:
    """The machine time of each launch that held machines or waited for them, oldest first.

    Args:
        record: run.json.
        last: its last launch, if another machine stored it.
    """
    launches = real_launches(record)
    if last and last.get("at") not in [each.get("at") for each in launches]:
        launches.append(dict(last))
    found = record.get("starts")
    starts = [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []
    if not launches:  # it was started without a launcher
        if not starts:
            return []
        launches = [{"at": starts[0].get("at")}]
    firsts = [int(_number(each, "starts_before") or 0) for each in launches]
    if starts and firsts[0] > 0:  # of launches that are not known: the ranks' run.json has none of them
        launches.insert(0, {"at": starts[0].get("at")})
        firsts.insert(0, 0)
    return [
        _of(launch, starts[first:until])
        for launch, first, until in zip(launches, firsts, [*firsts[1:], len(starts)], strict=True)
    ]


def _of(launch: Mapping[str, Any], starts: Sequence[Mapping[str, Any]]) -> MachineTime:
    """Held as the launcher saw it, if it followed the run to its end; else as the ranks counted it."""
    queued, seconds = _number(launch, "admitted_seconds"), _number(launch, "seconds")
    admitted = queued
    if queued is not None:
        queued += _number(launch, "requeued_seconds") or 0.0
    held = sum(_number(each, "held_seconds") or 0.0 for each in starts)
    if queued is not None and seconds is not None:
        held = max(held, seconds - queued)
    known = [_number(each, "trained_seconds") for each in starts]
    prices = [price for each in starts if (price := _number(each, "usd_per_hour")) is not None]
    began = _time(launch.get("at"))
    if admitted is None or began is None:  # nobody saw how long it waited for machines
        began = (_time(starts[0].get("at")) if starts else None) or began
    return MachineTime(
        since=began + timedelta(seconds=admitted or 0.0) if began else None,
        queued_s=queued,
        held_s=held,
        trained_s=None if None in known else sum(each for each in known if each is not None),
        usd_per_hour=prices[-1] if prices else None,
        launch=launch,
    )


def timeline(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """When each launch began, was admitted, made its first step and ended, as ISO times; None if unknown."""

    def after(launch: Mapping[str, Any], key: str) -> str | None:
        began, seconds = _time(launch.get("at")), _number(launch, key)
        if began is None or seconds is None:
            return None
        return (began + timedelta(seconds=seconds)).isoformat(timespec="seconds")

    return [
        {
            "launched": launch.get("at"),
            "admitted": after(launch, "admitted_seconds"),
            "first_step": after(launch, "first_step_seconds"),
            "ended": after(launch, "seconds"),
        }
        for launch in real_launches(record)
    ]


def totals(times: Sequence[MachineTime]) -> dict[str, Any]:
    """Several launches in figures. A sum covers those launches for which it is known; `unpriced_hours` are
    the held hours without a price.
    """
    return {
        "queued_seconds": round(sum(each.queued_s or 0.0 for each in times), 3),
        "held_seconds": round(sum(each.held_s for each in times), 3),
        "idle_seconds": round(sum(each.idle_s or 0.0 for each in times), 3),
        "usd": _sum([each.usd for each in times]),
        "idle_usd": _sum([each.idle_usd for each in times]),
        "unpriced_hours": round(sum(each.held_s for each in times if each.usd is None) / 3600, 4),
    }


def _sum(values: Sequence[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return round(sum(known), 4) if known else None


def _number(row: Mapping[str, Any], key: str) -> float | None:
    value = row.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return None
    return float(value)


def _time(value: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
