"""The support calendar of Kubernetes versions, and the day by which it is checked."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from trainfleet.dates import VARIABLE, as_of, set_today, today
from trainfleet.errors import InputError
from trainfleet.infra.aws import addons
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.kubernetes.values.operators import AUTOSCALERS
from trainfleet.infra.spec.schema import Kubernetes
from trainfleet.kubernetes_support import (
    NOTICE,
    SERVICES,
    calendar,
    last_day,
    supported_versions,
    versions_of,
)

NOVEMBER = date(2026, 11, 22)


def test_every_row_names_a_cloud_and_a_source_and_ends_after_it_began() -> None:
    for row in calendar():
        assert row.cloud in list(Cloud), row
        assert row.source, row
        assert row.offered < row.ends, row


@pytest.mark.parametrize("cloud", SERVICES)
def test_newer_versions_come_and_go_later(cloud: str) -> None:
    rows = versions_of(cloud)
    assert [row.offered for row in rows] == sorted(row.offered for row in rows)
    assert [row.ends for row in rows] == sorted(row.ends for row in rows)
    assert len({row.version for row in rows}) == len(rows)


@pytest.mark.parametrize("cloud", SERVICES)
def test_the_default_version_is_supported_on_every_cloud_without_a_warning(cloud: str) -> None:
    (row,) = [row for row in versions_of(cloud) if row.version == Kubernetes().version]
    assert row.supported(NOVEMBER)
    assert not row.ends_soon(NOVEMBER)


def test_every_version_of_eks_has_pinned_add_ons_and_an_autoscaler() -> None:
    versions = {row.version for row in versions_of("aws")}
    assert versions == set(addons.VERSIONS) == set(AUTOSCALERS)


def test_hyperpod_always_accepts_a_version_that_eks_supports() -> None:
    ends = max(row.ends for row in versions_of("aws") if row.hyperpod)
    day = NOVEMBER
    while day < ends:
        assert [row for row in supported_versions("aws", day) if row.hyperpod], day
        day += timedelta(days=1)


def test_support_ends_on_the_day_and_is_warned_about_ninety_days_before() -> None:
    (row,) = [row for row in versions_of("aws") if row.version == "1.35"]
    assert [row.supported(row.ends + timedelta(days=days)) for days in (-1, 0)] == [True, False]
    assert [row.ends_soon(row.ends - NOTICE - timedelta(days=days)) for days in (1, 0)] == [False, True]


def test_the_last_day_is_known_only_of_a_version_that_has_ended() -> None:
    assert last_day("aws", "1.34", date(2026, 12, 24)) == date(2026, 12, 1)
    assert last_day("aws", "1.34", date(2026, 12, 1)) is None
    assert last_day("aws", "1.11", date(2026, 12, 24)) is None


def test_the_day_is_that_of_the_variable_for_as_long_as_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    assert today() == date.today()
    monkeypatch.setenv(VARIABLE, "2026-12-31")
    with as_of(date(2027, 1, 1)):
        assert today() == date(2027, 1, 1)
    with as_of(None):
        assert today() == date(2026, 12, 31)


def test_a_day_that_is_none_is_rejected_by_name() -> None:
    with pytest.raises(InputError) as caught:
        set_today("tomorrow")
    assert "--date: `tomorrow` is not a day" in str(caught.value.problems[0])
