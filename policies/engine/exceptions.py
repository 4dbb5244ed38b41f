"""Exceptions from policies, as written in the spec: this policy, this resource, for this reason, until this
day.

Read from the stack's own configuration, which the engine hands to the pack. Past its day an exception is no
longer one: the policy counts again, and says that the exception has run out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

EVERYWHERE = "-everywhere"
"""Ends the name of a rule's policy for the whole stack."""


@dataclass(frozen=True)
class Waiver:
    policy: str
    resource: str
    """A resource's logical name, or `*`."""
    reason: str
    until: date

    def covers(self, policy: str, resource: str) -> bool:
        """Whether it is about this rule and resource. A rule that also checks the whole stack has a second
        name there.
        """
        return self.policy in (policy, f"{policy}{EVERYWHERE}") and self.resource in ("*", resource)


def waivers(platform: str | None) -> tuple[Waiver, ...]:
    """The exceptions in a `trainfleet:platform` setting (JSON text); none where there is none or it is not a
    platform's.

    A malformed entry is left out here, because the spec itself is refused for it before any resource is
    registered.
    """
    try:
        entries = json.loads(platform or "{}").get("exceptions") or []
        return tuple(_waiver(entry) for entry in entries)
    except (ValueError, AttributeError, KeyError, TypeError):
        return ()


def _waiver(entry: dict[str, Any]) -> Waiver:
    # YAML dates arrive as dates or, by way of JSON, as text with a time behind them.
    return Waiver(
        entry["policy"], entry["resource"], entry["reason"], date.fromisoformat(str(entry["until"])[:10])
    )


def in_force(all_waivers: Sequence[Waiver], policy: str, resource: str, today: date) -> bool:
    return any(waiver.covers(policy, resource) and today <= waiver.until for waiver in all_waivers)


def expired(all_waivers: Sequence[Waiver], policy: str, resource: str, today: date) -> Waiver | None:
    return next(
        (waiver for waiver in all_waivers if waiver.covers(policy, resource) and today > waiver.until), None
    )
