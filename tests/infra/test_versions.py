"""The Kubernetes version of a spec over time: accepted, warned about, rejected."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from trainfleet.errors import Problem
from trainfleet.infra.spec.load import parse_spec
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.validation.finding import Finding
from trainfleet.infra.validation.rules import notices, violations
from trainfleet.infra.validation.versions import WHERE
from trainfleet.kubernetes_support import SERVICES

SPECS: dict[str, dict[str, Any]] = {
    "aws": {"region": "us-east-2"},
    "gcp": {"region": "us-central1", "account": "my-project-123456"},
    "azure": {"region": "eastus", "account": "11111111-2222-3333-4444-555555555555"},
}


def checked(
    cloud: str, version: str, day: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Finding], list[Finding]]:
    """The mistakes and the warnings about the version on a day."""
    monkeypatch.setenv("TRAINFLEET_DATE", day)
    document = {"name": "demo", "cloud": cloud, "owner": "a@example.com", **SPECS[cloud]}
    spec = PlatformSpec.model_validate({**document, "kubernetes": {"version": version}})
    return _about(violations(spec)), _about(notices(spec))


def _about(found: Iterable[Finding]) -> list[Finding]:
    return [each for each in found if each.where == WHERE]


@pytest.mark.parametrize(
    ("cloud", "version", "day", "mistakes", "warnings"),
    [
        ("aws", "1.35", "2026-11-22", 0, 0),
        ("aws", "1.36", "2026-11-22", 0, 0),
        ("gcp", "1.36", "2026-11-22", 0, 0),
        ("azure", "1.36", "2026-11-22", 0, 0),
        ("aws", "1.34", "2026-09-02", 0, 0),
        ("aws", "1.34", "2026-09-03", 0, 1),
        ("aws", "1.34", "2026-12-01", 0, 1),
        ("aws", "1.34", "2026-12-02", 1, 0),
        ("gcp", "1.34", "2026-11-22", 0, 1),
        ("azure", "1.34", "2026-11-30", 1, 0),
        ("azure", "1.36", "2026-01-01", 1, 0),
        ("aws", "1.36", "2028-01-01", 1, 0),
    ],
)
def test_a_version_is_warned_about_before_support_ends_and_rejected_after(
    cloud: str, version: str, day: str, mistakes: int, warnings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = checked(cloud, version, day, monkeypatch)
    assert [len(each) for each in found] == [mistakes, warnings]


@pytest.mark.parametrize(
    ("cloud", "day", "says"),
    [
        ("aws", "2026-11-22", "ends on 2026-12-02; EKS then upgrades the control plane on its own"),
        ("gcp", "2026-11-22", "ends on about 2026-12-31"),
        ("aws", "2026-12-02", "EKS's standard support of Kubernetes 1.34 ended on 2026-12-02"),
        ("azure", "2026-11-30", "AKS's standard support of Kubernetes 1.34 ended on 2026-11-30"),
    ],
)
def test_a_message_names_the_day_and_the_next_version(
    cloud: str, day: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistakes, warnings = checked(cloud, "1.34", day, monkeypatch)
    (finding,) = [*mistakes, *warnings]
    assert says in finding.what
    assert "1.35" in finding.fix


def test_the_loader_reports_the_warning_and_reads_the_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINFLEET_DATE", "2026-12-01")
    document = {"name": "demo", "cloud": "aws", "owner": "a@example.com", **SPECS["aws"]}
    warnings: list[Problem] = []
    access = {"public_ranges": ["203.0.113.0/24"]}
    spec = parse_spec({**document, "kubernetes": {"version": "1.34", "access": access}}, warn=warnings.append)
    assert spec.kubernetes.version == "1.34"
    assert [each.where for each in warnings] == ["kubernetes.version"]


def test_every_cloud_with_a_calendar_is_tried() -> None:
    assert set(SPECS) == set(SERVICES)
