"""The plan's costs of a stack: of a recorded preview, of an export, and of a rehearsed preview."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainfleet.cost import plan
from trainfleet.errors import InputError
from trainfleet.infra.catalog.planned import bill_of_plan

Trainfleet = Callable[..., "subprocess.CompletedProcess[str]"]
URN = "urn:pulumi:aws-prod::trainfleet::aws:ec2/instance:Instance::head"
HEAD = {
    "urn": URN,
    "type": "aws:ec2/instance:Instance",
    "custom": True,
    "id": "i-1",
    "inputs": {"instanceType": "g5.xlarge"},
    "outputs": {},
}


def preview(folder: Path, *, whole: bool = True) -> Path:
    step = {"op": "create", "urn": URN, "type": HEAD["type"], "old": None, "new": HEAD}
    events: list[Any] = [{"resourcePreEvent": {"metadata": step}}]
    events += [{"summaryEvent": {"resourceChanges": {"create": 1}}}] if whole else []
    file = folder / "preview.jsonl"
    file.write_text("".join(json.dumps({"sequence": 0, **event}) + "\n" for event in events))
    return file


def export(folder: Path) -> Path:
    file = folder / "export.json"
    file.write_text(json.dumps({"version": 3, "deployment": {"manifest": {}, "resources": [HEAD]}}))
    return file


def test_a_preview_and_an_export_of_the_same_resources_cost_the_same(tmp_path: Path) -> None:
    recorded = bill_of_plan(plan.of_recording(preview(tmp_path), "aws-prod"))
    deployed = bill_of_plan(plan.of_export(export(tmp_path), "aws-prod"))
    assert recorded.parts == deployed.parts
    assert recorded.min_usd_per_hour == pytest.approx(1.006, rel=0.05)


def test_another_stack_and_half_a_preview_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is of `aws-prod`, not `aws-dev`"):
        plan.of_recording(preview(tmp_path), "aws-dev")
    with pytest.raises(InputError, match="is of `aws-prod`, not `aws-dev`"):
        plan.of_export(export(tmp_path), "aws-dev")
    with pytest.raises(InputError, match="has no summary"):
        plan.of_recording(preview(tmp_path, whole=False), "aws-prod")


def test_the_plan_is_shown_next_to_the_estimate(trainfleet: Trainfleet, tmp_path: Path) -> None:
    usage = tmp_path / "usage.toml"
    usage.write_text("internet_gb = 500\n")
    done = trainfleet("cost", "aws-prod", "--events", str(preview(tmp_path)), "--usage", str(usage), "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["plan"]["parts"][0]["name"] == "head"
    assert document["plan_from"] == "preview, preview.jsonl"
    assert any("the spec's estimate is" in note for note in document["notes"]), "one machine is not aws-prod"
    both = trainfleet("cost", "aws-prod", "--plan", "--events", str(preview(tmp_path)))
    assert both.returncode == 2
    assert "one plan is priced" in both.stderr


@pytest.mark.deep
def test_the_rehearsed_plan_agrees_with_the_estimate(trainfleet: Trainfleet) -> None:
    done = trainfleet("cost", "aws-dev", "--plan", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["plan"]["planned"] is True
    assert document["notes"] == []
