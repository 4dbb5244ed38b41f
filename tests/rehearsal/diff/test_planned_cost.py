"""The cost of the resources that the real engine plans: it agrees with the spec's estimate, and follows the plan
where the spec cannot.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.diff.conftest import Diffs
from tests.rehearsal.diff.repos import PARTS, STACK, Repo
from trainfleet.infra.catalog.cost import Bill, bill
from trainfleet.infra.catalog.planned import bill_of_plan
from trainfleet.infra.spec.load import load_stack
from trainfleet.infra.spec.stack_file import stack_names
from trainfleet.rehearsal.diff.planned_cost import (
    AGREEMENT,
    applied_plan,
    dependencies,
    disagreements,
    previewed_plan,
)
from trainfleet.rehearsal.engine.find import find_engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.rehearsal.rehearse import RehearsalOptions, rehearsal_session

ROOT = Path(__file__).parents[3]


def planned(stack: str, folder: Path) -> Bill:
    with rehearsal_session(read_project(ROOT, stack), find_engine(), RehearsalOptions()) as rehearsal:
        outcome = rehearsal.runner.run("preview", "--save-plan", str(folder / "plan.json"))
        assert outcome.ok, outcome.output[-2000:]
        log = rehearsal.runner.sandbox.file(f"events-{rehearsal.runner.count}.jsonl").read_text()
    steps = [json.loads(line).get("resourcePreEvent") for line in log.splitlines()]
    events = [step["metadata"] for step in steps if step]
    return bill_of_plan(previewed_plan(events, dependencies(folder / "plan.json")))


@pytest.mark.deep
@pytest.mark.parametrize("stack", [name for name in stack_names(ROOT) if name != "local"])
def test_plan_and_spec_agree_on_every_stack(stack: str, tmp_path: Path) -> None:
    plan, spec = planned(stack, tmp_path), bill(load_stack(stack))
    assert plan.min_usd_per_hour == pytest.approx(spec.min_usd_per_hour, rel=AGREEMENT)
    assert plan.max_usd_per_hour == pytest.approx(spec.max_usd_per_hour, rel=AGREEMENT)
    assert plan.budget_usd_per_month == spec.budget_usd_per_month
    assert (plan.not_known, len(plan.unknown)) == ((), len(spec.unknown))
    assert disagreements(plan, spec) == []


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def lines(side: dict[str, Any]) -> dict[str, float]:
    return {part["name"]: part["most"] for part in side["parts"]}


NAT = """    for index in range(9):
        aws.ec2.NatGateway(f"nat-{index}", connectivity_type="private", subnet_id=subnet.id)
"""


@pytest.mark.deep
def test_resources_that_only_the_program_has_change_the_cost(repo: Repo, diff: Diffs) -> None:
    repo.replace(PARTS, '    aws.ec2.Subnet("subnet"', '    subnet = aws.ec2.Subnet("subnet"')
    repo.replace(PARTS, "    aws.ssm.Parameter(", f"{NAT}    aws.ssm.Parameter(")
    done = diff("one", "--worktree", "--json", "--fail-above", "100")
    found = document(done)
    before, after = found["cost"]["before"], found["cost"]["after"]
    assert (before["planned"], after["planned"]) == (True, True)
    assert (lines(before).get("nat", 0), lines(after)["nat"]) == (0, 9)
    more = after["usd_per_month"]["min"] - before["usd_per_month"]["min"]
    assert more == pytest.approx(9 * 0.045 * 730, abs=0.01)
    assert done.returncode == 4
    assert "above the limit of $100" in found["cost"]["over_limit"][0]


def test_a_new_stack_is_priced_before_any_id_is_known(repo: Repo, diff: Diffs) -> None:
    text = (repo.root / STACK).read_text().replace("name: tiny", "name: other")
    repo.write("stacks/Pulumi.two.yaml", text)
    found = document(diff("two", "--worktree", "--json"))
    assert found["cost"]["before"] is None
    assert lines(found["cost"]["after"])["key"] == 1


@pytest.mark.deep
def test_what_is_used_is_priced_on_both_sides(repo: Repo, diff: Diffs) -> None:
    repo.replace(STACK, "team: ml", "team: vision")
    usage = repo.root / "usage.toml"
    usage.write_text("objects_gib = 10000\nlogs_gb = 5\n")
    done = diff("one", "--worktree", "--json", "--usage", str(usage))
    found = document(done)
    for side in ("before", "after"):
        assert lines(found["cost"][side])["objects"] == 10000
        assert found["cost"][side]["unused_usage"] == ["logs_gb"]


def test_a_resource_that_is_retained_or_deleted_is_not_billed_after() -> None:
    resource = {"urn": "urn:pulumi:s::p::t::key", "type": "aws:kms/key:Key", "custom": True, "inputs": {}}
    new = {**resource, "urn": "urn:pulumi:s::p::t::other"}
    events = [
        {"op": "same", "urn": resource["urn"], "new": resource},
        {"op": "create-replacement", "urn": new["urn"], "new": new},
        {"op": "delete-replaced", "urn": new["urn"], "new": None},
        {"op": "delete", "urn": "urn:pulumi:s::p::t::old", "new": None},
    ]
    assert [each.name for each in previewed_plan(events, {}).resources] == ["key", "other"]
    applied = applied_plan([resource, {**new, "delete": True}, {**new, "external": True}])
    assert [each.name for each in applied.resources] == ["key"]


def test_a_recording_prices_unchanged_nodes_as_the_state_does() -> None:
    """The engine announces a resource that stays without its id, and nodes name their template by its id."""
    template = {
        "urn": "urn:pulumi:s::p::t::template", "type": "aws:ec2/launchTemplate:LaunchTemplate", "custom": True,
        "inputs": {"blockDeviceMappings": [{"ebs": {"volumeSize": 100, "volumeType": "gp3"}}]}, "id": "lt-1",
    }  # fmt: skip
    nodes = {
        "urn": "urn:pulumi:s::p::t::nodes", "type": "aws:eks/nodeGroup:NodeGroup", "custom": True, "id": "n-1",
        "inputs": {
            "instanceTypes": ["g6.12xlarge"], "launchTemplate": {"id": "lt-1"},
            "scalingConfig": {"minSize": 1, "maxSize": 2, "desiredSize": 1},
        },
    }  # fmt: skip
    events = [
        {"op": op, "urn": each["urn"], "old": each, "new": {**each, "id": ""}}
        for op, each in (("same", template), ("update", nodes))
    ]
    after = bill_of_plan(previewed_plan(events, {}))
    assert after.unknown == ()
    assert after.parts == bill_of_plan(applied_plan([template, nodes])).parts
