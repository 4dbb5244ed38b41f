"""Roles: how long an apply waits for a new one."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from trainfleet.infra.azure.permissions import seconds_left

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("assigned", "seconds"),
    [
        ([], 0),
        (["2026-11-01T08:00:00Z"], 0),
        (["", "some day"], 0),
        (["2026-11-23T12:00:00.1234567Z"], 600),
        (["2026-11-01T08:00:00Z", "2026-11-23T11:56:00.0Z"], 360),
    ],
)
def test_an_apply_waits_for_the_role_that_it_assigned_last(assigned: list[str], seconds: int) -> None:
    assert seconds_left(assigned, NOW) == seconds
