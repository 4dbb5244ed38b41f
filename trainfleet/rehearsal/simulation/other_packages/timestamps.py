"""The package `time`: the day of the rehearsal at 00:00 UTC, so that two rehearsals agree."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from typing import Any

from trainfleet.dates import today
from trainfleet.rehearsal.simulation.other_packages.computed import ComputedModel

_STEPS = {"Days": 1, "Hours": 1 / 24, "Minutes": 1 / 1440, "Seconds": 1 / 86400, "Months": 30, "Years": 365}


class TimeModel(ComputedModel):
    """Timestamps. `Sleep` does not wait."""

    source = "terraform-provider-time internal/provider/resource_time_*.go"

    def computed(self, kind: str, inputs: dict[str, Any], seed: str) -> dict[str, Any]:  # noqa: ARG002 - shared signature
        base = inputs.get("rfc3339") or inputs.get("baseRfc3339")
        start = (
            datetime.fromisoformat(base) if base else datetime.combine(today(), time(), tzinfo=UTC)
        ).astimezone(UTC)
        prefix = {"Offset": "offset", "Rotating": "rotation"}.get(kind, "")
        moved = start + timedelta(
            days=sum(float(inputs.get(prefix + unit) or 0) * days for unit, days in _STEPS.items() if prefix)
        )
        shown = moved if kind == "Offset" else start
        parts = ("year", "month", "day", "hour", "minute", "second")
        return {
            **{part: getattr(shown, part) for part in parts},
            "unix": int(shown.timestamp()),
            "rfc3339": _text(shown),
            "baseRfc3339": _text(start),
            "rotationRfc3339": _text(moved),
        }

    def always_replaces(self, token: str, path: tuple[str, ...]) -> bool:
        return path[0] == "triggers" or (path[0] == "rfc3339" and token.endswith(":Static"))

    def knows_replacements(self, token: str) -> bool:  # noqa: ARG002 - shared signature
        return True


def _text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
