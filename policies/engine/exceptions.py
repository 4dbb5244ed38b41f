"""Policy exceptions from the platform spec: a policy, a resource, a reason and an end date.

They are read from the stack's configuration. After its end date an exception has no effect: the policy
reports violations again, with a note that the exception expired.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

EVERYWHERE = "-everywhere"
"""Suffix of the policy that checks a rule on the whole stack."""


@dataclass(frozen=True)
class Waiver:
    """An exception from one policy for one resource."""

    policy: str
    resource: str
    """A resource's logical name, or `*`."""
    reason: str
    until: date

    def covers(self, policy: str, resource: str) -> bool:
        """Whether the exception applies to this rule and resource."""
        return self.policy in (policy, f"{policy}{EVERYWHERE}") and self.resource in ("*", resource)


def waivers(platform: str | None) -> tuple[Waiver, ...]:
    """Return the exceptions in a `trainfleet:platform` setting (JSON text).

    A malformed setting gives no exceptions: the spec's own validation rejects it before any resource is
    registered.
    """
    try:
        entries = json.loads(platform or "{}").get("exceptions") or []
        return tuple(_waiver(entry) for entry in entries)
    except (ValueError, AttributeError, KeyError, TypeError):
        return ()


def _waiver(entry: dict[str, Any]) -> Waiver:
    # YAML dates arrive as dates or, through JSON, as text that can end in a time.
    return Waiver(
        entry["policy"], entry["resource"], entry["reason"], date.fromisoformat(str(entry["until"])[:10])
    )


def in_force(all_waivers: Sequence[Waiver], policy: str, resource: str, today: date) -> bool:
    """Whether an exception covers this policy and resource today. The end date is included."""
    return any(waiver.covers(policy, resource) and today <= waiver.until for waiver in all_waivers)


def expired(all_waivers: Sequence[Waiver], policy: str, resource: str, today: date) -> Waiver | None:
    """Return an exception that covered this policy and resource but has expired."""
    return next(
        (waiver for waiver in all_waivers if waiver.covers(policy, resource) and today > waiver.until), None
    )
