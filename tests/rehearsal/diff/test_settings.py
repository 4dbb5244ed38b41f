"""The stack's settings on both sides: what is built from them, which of them differ and where, what they
cost.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import yaml

from tests.rehearsal.diff.repos import PROJECT
from trainfleet.infra.spec.stack_file import StackFile, read_stack_file
from trainfleet.rehearsal.diff.change import SECRET
from trainfleet.rehearsal.diff.settings import STAND_IN, bill_of, for_build, spec_changes, stack_file

TODAY = date(2026, 11, 21)


def platform(**more: Any) -> dict[str, Any]:
    kubernetes = {"access": {"public_ranges": ["203.0.113.0/24"]}}
    where = {"cloud": "aws", "region": "us-east-2", "kubernetes": kubernetes}
    return {"name": "tiny", **where, "owner": "a@example.com", **more}


def file(tmp_path: Path, name: str = "one", extra: dict[str, Any] | None = None, **more: Any) -> StackFile:
    path = tmp_path / f"{name}.yaml"
    path.write_text(
        yaml.safe_dump(
            {"config": {"trainfleet:platform": platform(**more), **(extra or {})}}, sort_keys=False
        )
    )
    return read_stack_file(path)


def test_a_checkouts_stack_is_shown_as_in_the_users_checkout() -> None:
    found = stack_file(PROJECT, "one", "the head")
    assert found is not None
    assert found.shown_as == "stacks/Pulumi.one.yaml"
    assert stack_file(PROJECT, "two", "the head") is None


def test_secrets_inside_a_value_get_a_stand_in_and_whole_ones_are_left_to_the_sandbox() -> None:
    document = {
        "encryptionsalt": "v1:x",
        "config": {"a:b": {"secure": "v1:abc"}, "a:c": {"d": [{"secure": "v1:def"}]}},
    }
    settings, _ = for_build(document, TODAY)
    assert settings == {"config": {"a:b": {"secure": "v1:abc"}, "a:c": {"d": [STAND_IN]}}}


def test_an_exception_of_the_base_that_ran_out_is_left_out_of_it() -> None:
    exceptions = [{"policy": "a", "until": date(2026, 11, 20)}, {"policy": "b", "until": TODAY}]
    settings, notes = for_build({"config": {"trainfleet:platform": platform(exceptions=exceptions)}}, TODAY)
    assert [each["policy"] for each in settings["config"]["trainfleet:platform"]["exceptions"]] == ["b"]
    assert "expired" in notes[0]


def test_pools_are_matched_by_name_and_shown_with_their_line(tmp_path: Path) -> None:
    a, b = {"name": "a", "max_nodes": 1}, {"name": "b", "max_nodes": 2}
    found = spec_changes(
        file(tmp_path, gpu_pools=[a, b]), file(tmp_path, "two", gpu_pools=[b, {**a, "max_nodes": 5}])
    )
    assert [(each.path, each.old, each.new) for each in found] == [("gpu_pools[a].max_nodes", 1, 5)]
    assert found[0].where.endswith("two.yaml:15")


def test_a_setting_that_is_gone_is_shown_where_it_was(tmp_path: Path) -> None:
    found = spec_changes(file(tmp_path, tags={"team": "ml"}), file(tmp_path, "two"))
    assert [(each.path, each.old, each.new) for each in found] == [("tags.team", "ml", None)]
    assert found[0].where.endswith("in the base")


def test_a_secret_that_was_encrypted_again_is_reported_without_its_text(tmp_path: Path) -> None:
    found = spec_changes(
        file(tmp_path, extra={"a:b": {"secure": "v1:abc"}}),
        file(tmp_path, "two", {"a:b": {"secure": "v1:def"}}),
    )
    assert [(each.path, each.old, each.new) for each in found] == [("a:b", SECRET, SECRET)]


def test_a_spec_that_cannot_be_read_has_no_known_cost(tmp_path: Path) -> None:
    bill, why = bill_of(file(tmp_path, surprise=1))
    assert bill is None
    assert "not known" in why
