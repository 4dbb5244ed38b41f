"""The rules on cases after fixtures of Checkov and Trivy: they agree with the scanner, or a row says why not."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from trainfleet.policies.catalogue import RULES
from trainfleet.policies.engine.rule import Resource, evaluate

CASES: list[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("scanner_cases.toml").read_text(encoding="utf-8")
)["case"]
BY_NAME = {rule.name: rule for rule in RULES}


def verdict(case: dict[str, Any]) -> str:
    resource = Resource(case["type"], "it", case["props"])
    return "fail" if evaluate(BY_NAME[case["rule"]], resource) else "pass"


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{n}-{case['check']}-{case['rule']}" for n, case in enumerate(CASES)]
)
def test_a_rule_agrees_with_the_scanner_or_says_why_not(case: dict[str, Any]) -> None:
    assert case["type"] in BY_NAME[case["rule"]].checks
    assert (verdict(case) == case["verdict"]) is ("differs" not in case)


def test_the_cases_cover_every_cloud_and_both_verdicts() -> None:
    clouds = Counter(case["type"].partition(":")[0] for case in CASES)
    assert len(CASES) >= 40
    assert set(clouds) == {"aws", "gcp", "azure-native", "kubernetes"}
    assert min(clouds.values()) >= 8
    verdicts = Counter(case["verdict"] for case in CASES)
    assert min(verdicts.values()) >= 15
    agreed = sum("differs" not in case for case in CASES)
    assert agreed / len(CASES) >= 0.9
