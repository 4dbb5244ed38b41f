"""Checks the documents of queues, topics and event rules: redrive policies, filters and event patterns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainfleet.rehearsal.simulation.json_documents.findings import (
    Finding,
    below,
    missing_keys,
    not_an_object,
    unknown_keys,
)
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN
from trainfleet.suggestions import did_you_mean


def redrive(value: Any) -> Iterator[Finding]:
    """Check the redrive policy of a queue."""
    yield from not_an_object(value)
    if isinstance(value, dict):
        yield from unknown_keys("", value, ("deadLetterTargetArn", "maxReceiveCount"))
        yield from missing_keys("", value, ("deadLetterTargetArn", "maxReceiveCount"))


def redrive_allow(value: Any) -> Iterator[Finding]:
    """Check which queues may use a queue for dead letters."""
    if not isinstance(value, dict):
        yield "", "is not a JSON object", ""
        return
    known = ("allowAll", "denyAll", "byQueue")
    yield from unknown_keys("", value, ("redrivePermission", "sourceQueueArns"))
    permission = value.get("redrivePermission")
    if permission not in (*known, UNKNOWN):
        yield (
            "redrivePermission",
            f"{permission!r} is not one of the values" if permission else "missing",
            did_you_mean(str(permission), known),
        )
    if permission == "byQueue" and not value.get("sourceQueueArns"):
        yield "sourceQueueArns", "missing, because redrivePermission is 'byQueue'", ""


def topic_redrive(value: Any) -> Iterator[Finding]:
    """Check the redrive policy of a subscription to a topic."""
    if not isinstance(value, dict):
        yield "", "is not a JSON object", ""
        return
    yield from unknown_keys("", value, ("deadLetterTargetArn",))
    if not value.get("deadLetterTargetArn"):
        yield "deadLetterTargetArn", "missing", "the ARN of a queue"


def filter_policy(value: Any, where: str = "") -> Iterator[Finding]:
    """Check the filter policy of a subscription, or a nested one at `where`."""
    if not isinstance(value, dict):
        yield where, "is not a JSON object", ""
        return
    for key, item in value.items():
        if isinstance(item, dict):
            yield from filter_policy(item, below(where, key))
        elif not isinstance(item, list) and item != UNKNOWN:
            yield below(where, key), f"must be a list, not {item!r}", "a filter lists the values that match"


def event_pattern(value: Any) -> Iterator[Finding]:
    """Check the pattern of the events that a rule matches."""
    yield from not_an_object(value)
    for key, item in value.items() if isinstance(value, dict) else ():
        if not isinstance(item, (list, dict)) and item != UNKNOWN:
            yield key, f"must be a list or an object, not {item!r}", "a pattern lists the values that match"
