"""Every rule, with specs that break it and specs that keep it."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from typing import Any

import pytest

from tests.infra.rule_cases import BASES, CASES, Case
from trainfleet.infra.catalog.machines import catalogue
from trainfleet.infra.cloud_support import all_supports, support
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.validation.finding import Finding
from trainfleet.infra.validation.rules import COMMON_RULES, notices, violations
from trainfleet.kubernetes_support import versions_of
from trainfleet.pydantic_messages import path_text


def changed(base: str, changes: dict[str, Any]) -> PlatformSpec:
    """The base spec with a value put at each path."""
    document: Any = copy.deepcopy(BASES[base])
    for path, value in changes.items():
        place = document
        steps = [int(step[1:]) if step.startswith("[") else step for step in re.findall(r"\[\d+|\w+", path)]
        for step in steps[:-1]:
            place = place.setdefault(step, {}) if isinstance(place, dict) else place[step]
        place[steps[-1]] = value
    return PlatformSpec.model_validate(document)


RULES = (*COMMON_RULES, *(rule for cloud in all_supports() for rule in cloud.rules))
TESTED = (*COMMON_RULES, *support(Cloud.AWS).rules, *support(Cloud.LOCAL).rules)
"""The rules of gcp and azure have their cases in those clouds' tests."""


def findings_of(rule: str, spec: PlatformSpec) -> list[Finding]:
    (found,) = [each for each in TESTED if each.__name__ == rule]
    return list(dict.fromkeys(found(spec)))  # as `violations` does, for the groups of one pool


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}:{case.where}")
def test_a_rule_says_where_a_spec_breaks_it_and_what_would_be_right(case: Case) -> None:
    findings = findings_of(case.rule, changed(case.base, case.bad))
    assert [path_text(finding.where) for finding in findings] == [case.where]
    assert case.says in f"{findings[0].what} -> {findings[0].fix}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}:{case.where}")
def test_a_rule_is_silent_where_a_spec_keeps_it(case: Case) -> None:
    assert findings_of(case.rule, changed(case.base, case.good)) == []


def test_an_exception_from_a_rule_of_your_own_pack_is_accepted_with_a_warning() -> None:
    exception = {"policy": "quux", "resource": "it", "reason": "because of this", "until": "9999-01-01"}
    spec = changed("aws", {"exceptions": [exception]})
    assert findings_of("exceptions_name_policies", spec) == []
    found = [finding for finding in notices(spec) if finding.where == ("exceptions", 0, "policy")]
    assert [finding.what for finding in found] == ["`quux` is not one of Trainfleet's policies"]


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} == {rule.__name__ for rule in TESTED}
    assert len({rule.__name__ for rule in TESTED}) == len(TESTED)
    assert len(set(RULES)) == len(RULES)


def test_a_budget_needs_every_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue has all of Google Cloud's prices today: the test removes one."""
    machines = tuple(
        replace(each, usd_per_hour_on_demand=None) if each.accelerator == "A100" else each
        for each in catalogue()
    )
    monkeypatch.setattr("trainfleet.infra.catalog.machines.catalogue", lambda: machines)
    bought = {"cloud": "gcp", "gpu_pools": [{"name": "a", "accelerator": "A100"}]}
    (finding,) = findings_of("price_is_known", changed("aws", {**bought, "budget": {"monthly_usd": 9}}))
    assert (path_text(finding.where), "which the budget needs" in finding.what) == (
        "gpu_pools[0].capacity",
        True,
    )
    assert findings_of("price_is_known", changed("aws", bought)) == []


def test_every_rule_gives_its_reason() -> None:
    assert [rule.__name__ for rule in RULES if not rule.__doc__] == []


@pytest.mark.parametrize("base", BASES)
def test_the_bases_break_no_rule(base: str) -> None:
    assert list(violations(changed(base, {}))) == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}:{case.where}")
def test_no_rule_raises_on_a_spec_that_breaks_another(case: Case) -> None:
    assert case.where in [path_text(finding.where) for finding in violations(changed(case.base, case.bad))]


def test_the_kubernetes_versions_offered_are_those_with_pinned_add_ons() -> None:
    from trainfleet.infra.aws import addons

    assert list(addons.VERSIONS) == [row.version for row in versions_of("aws")]
