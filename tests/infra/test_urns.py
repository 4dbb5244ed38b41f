"""The URN of every resource of every stack is the released one: a URN that changes makes the engine recreate
the resource.

After an intended change, which needs an alias or a migration for existing stacks: `python -m
tests.infra.test_urns --update`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pytest

from trainfleet.rehearsal.engine.find import find_engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.rehearsal.rehearse import RehearsalOptions, rehearse

ROOT = Path(__file__).resolve().parents[2]
URNS = Path(__file__).with_name("urns")
STACKS = ("aws-dev", "aws-prod", "gcp-dev", "gcp-prod", "azure-dev", "azure-prod", "local")


def planned(stack: str, folder: Path) -> list[str]:
    """The URNs that a first preview plans, sorted."""
    file = folder / f"{stack}.jsonl"
    report = rehearse(
        read_project(ROOT, stack), find_engine(), RehearsalOptions(until="preview", resources=file)
    )
    assert report.ok, report.problems
    return sorted(json.loads(line)["urn"] for line in file.read_text(encoding="utf-8").splitlines())


def recreated(released: list[str], found: list[str]) -> list[str]:
    """One line for every resource that an existing stack would lose, with its new URN where there is one of
    the same name.
    """
    gone, new = set(released) - set(found), set(found) - set(released)
    names = {urn.rpartition("::")[2]: urn for urn in new}
    return [f"{urn} becomes {names.get(urn.rpartition('::')[2], 'nothing')}" for urn in sorted(gone)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stack", STACKS)
def test_no_resource_of_a_stack_would_be_recreated(stack: str, tmp_path: Path) -> None:
    released = (URNS / f"{stack}.txt").read_text(encoding="utf-8").splitlines()
    found = planned(stack, tmp_path)
    assert recreated(released, found) == []
    assert found == released, "new resources: python -m tests.infra.test_urns --update"


def test_a_renamed_component_is_named_with_what_it_recreates() -> None:
    released = ["urn:pulumi:s::p::trainfleet:aws:Network$aws:ec2/vpc:Vpc::prod-vpc"]
    renamed = ["urn:pulumi:s::p::trainfleet:aws:Vpcs$aws:ec2/vpc:Vpc::prod-vpc"]
    assert recreated(released, renamed) == [f"{released[0]} becomes {renamed[0]}"]


if __name__ == "__main__":
    if sys.argv[1:] != ["--update"]:
        sys.exit("usage: python -m tests.infra.test_urns --update")
    with tempfile.TemporaryDirectory() as work:
        for each in STACKS:
            (URNS / f"{each}.txt").write_text("\n".join(planned(each, Path(work))) + "\n", encoding="utf-8")
