"""Policy exceptions from the platform spec: a policy, a resource, its type, a reason and an end date.

They are read from the stack's configuration. After its end date an exception has no effect: the policy
reports violations again, with a note that the exception expired. An exception for every resource has to name
a type, otherwise it has no effect either.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import Any

from trainfleet.policies.engine.rule import canonical

EVERYWHERE = "-everywhere"
"""Suffix of the policy that checks a rule on the whole stack."""


@dataclass(frozen=True)
class Waiver:
    """An exception from one policy for one resource."""

    policy: str
    resource: str
    """A resource's logical name, or `*` for every resource of the type."""
    reason: str
    until: date
    type: str = ""
    """A resource type without an API version; empty = any."""

    @property
    def too_wide(self) -> bool:
        """Whether it would cover every resource of the stack."""
        return self.resource == "*" and not self.type

    def covers(self, policy: str, resource: str, kind: str) -> bool:
        """Whether the exception is about this rule and this resource of this type."""
        return (
            self.policy in (policy, f"{policy}{EVERYWHERE}")
            and self.resource in ("*", resource)
            and canonical(self.type) in ("", canonical(kind))
        )


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
        entry["policy"],
        entry["resource"],
        entry["reason"],
        date.fromisoformat(str(entry["until"])[:10]),
        entry.get("type") or "",
    )


def in_force(exceptions: Iterable[Waiver], today: date) -> bool:
    """Whether one of the exceptions has an effect today. The end date is included."""
    return any(today <= waiver.until and not waiver.too_wide for waiver in exceptions)


def why_not(exceptions: Iterable[Waiver], today: date) -> str:
    """Return in words why exceptions have no effect; empty if there is none."""
    for waiver in exceptions:
        if waiver.too_wide:
            return "its exception covers every resource, so it has no effect: name the resource or a type"
        if today > waiver.until:
            return f"its exception expired on {waiver.until.isoformat()}"
    return ""
