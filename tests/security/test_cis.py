"""The tables of CIS controls name policies that exist, and settings that production stacks really have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tools.security.page import MET, benchmarks, controls
from trainfleet.policies.catalogue import RULES

ROOT = Path(__file__).parents[2]
PLANNED = json.loads((ROOT / "tests" / "policies" / "planned.json").read_text())
"""The first planned resource of each type of the production stacks (tests/policies/gather.py)."""
POLICIES = {rule.name for rule in RULES}
ABSENT = object()


def named(row: dict[str, Any]) -> str:
    return f"{row['benchmark']}-{row['id']}"


def value_at(props: Any, path: str) -> Any:
    for step in path.split("."):
        if not isinstance(props, dict) or step not in props:
            return ABSENT
        props = props[step]
    return props


@pytest.mark.parametrize("row", [row for row in controls() if "resource" in row], ids=named)
def test_a_setting_is_that_of_a_production_stack(row: dict[str, Any]) -> None:
    found = value_at(PLANNED[row["resource"]]["props"], row["property"])
    assert found == (ABSENT if row.get("absent") else row["value"])


def test_every_row_is_complete_and_names_existing_policies() -> None:
    for row in controls():
        assert row["benchmark"] in benchmarks(), named(row)
        assert row["met"] in MET, named(row)
        assert set(row.get("policies", ())) <= POLICIES, named(row)
        if row["met"] == "policy":
            assert row["policies"], named(row)
        if row["met"] == "setting":
            assert "resource" in row, named(row)
        if row["met"] in ("no", "partly", "cloud"):
            assert row["note"], named(row)
        for file in re.findall(r"infra/[\w/]+\.py", row.get("note", "")):
            assert (ROOT / file).is_file(), named(row)
    assert len({named(row) for row in controls()}) == len(controls())


def test_a_policy_named_for_a_setting_is_about_its_resource() -> None:
    by_name = {rule.name: rule for rule in RULES}
    wrong = [
        named(row)
        for row in controls()
        if "resource" in row and row["met"] == "policy"
        if not any(
            row["resource"].split("#")[0] in by_name[name].resource_types() for name in row["policies"]
        )
    ]
    assert wrong == []
