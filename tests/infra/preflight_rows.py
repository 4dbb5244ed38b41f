"""The rows of a preflight, as its tests on the simulated APIs of the clouds read them."""

from __future__ import annotations

from collections.abc import Iterable

from trainfleet.infra.preflight_requests import Answered


def by_topic(rows: Iterable[Answered]) -> dict[str, list[Answered]]:
    """The rows of each topic, in order."""
    topics: dict[str, list[Answered]] = {}
    for row in rows:
        topics.setdefault(row.check.topic, []).append(row)
    return topics


def statuses(rows: Iterable[Answered]) -> list[str]:
    """The statuses that occur, sorted."""
    return sorted({row.check.status for row in rows})
