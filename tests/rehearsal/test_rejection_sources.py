"""Every rejection names its source: those of inputs (test_mistakes.py checks all of its rows), and those of
operations that a simulated cloud refuses while a program is applied.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from trainfleet.rehearsal import simulation
from trainfleet.rehearsal.engine.find import Engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.rehearsal.rehearse import RehearsalOptions, rehearse
from trainfleet.rehearsal.simulation.cloud_object import CloudObject
from trainfleet.rehearsal.simulation.refusal import AlreadyExistsError, Refusal, RejectedError
from trainfleet.rehearsal.simulation.state import Cloud
from trainfleet.rehearsal.simulation.stateful_rules import KINDS, rules

FOLDER = Path(next(iter(simulation.__path__)))
VPC, SUBNET, EIP = "aws:ec2/vpc:Vpc", "aws:ec2/subnet:Subnet", "aws:ec2/eip:Eip"


def record(token: str, name: str, **inputs: object) -> CloudObject:
    urn = f"urn:pulumi:one::tiny::{token}::{name}"
    return CloudObject(urn, token, name, str(inputs.pop("unique", "")), dict(inputs), {})


def test_a_refusal_without_a_source_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="needs a source"):
        Refusal("no", "")


def test_every_row_about_what_else_exists_has_a_source() -> None:
    assert all("source" in keys for keys in KINDS.values())
    rows = [row for kinds in rules().values() for each in kinds.values() for row in each]
    assert len(rows) > 100
    assert [row for row in rows if not row["source"]] == []


def test_the_simulation_raises_only_refusals_with_a_source() -> None:
    """`RefusedError` is for a real API server, whose message is all that is known."""
    bare = [
        f"{file.name}:{node.lineno}"
        for file in sorted(FOLDER.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Raise) and "RefusedError" in ast.unparse(node)
    ]
    assert bare == []


@pytest.mark.parametrize(
    ("there", "verb", "made", "quotas", "source"),
    [
        ([record(VPC, "v"), record(SUBNET, "s", vpcId="v")], "delete", record(VPC, "v"), {}, "delete-vpc"),
        (
            [record(VPC, "v", cidrBlock="10.0.0.0/16")],
            "create",
            record(SUBNET, "s", vpcId="v", cidrBlock="10.1.0.0/24"),
            {},
            "docs.aws.amazon.com",
        ),
        ([record(EIP, "a")], "create", record(EIP, "b"), {EIP: 1}, "--quota"),
        (
            [record(f"{VPC}", "v", unique="vpc|v")],
            "create",
            record(VPC, "w", unique="vpc|v"),
            {},
            f"names of {VPC} are unique",
        ),
    ],
    ids=["in use", "ranges", "quota", "name"],
)
def test_what_a_cloud_refuses_ends_with_the_source(
    there: list[CloudObject], verb: str, made: CloudObject, quotas: dict[str, int], source: str
) -> None:
    cloud = Cloud(quotas=quotas)
    for each in there:
        cloud.records[each.key] = each
    with pytest.raises(RejectedError) as raised:
        cloud.create(made) if verb == "create" else cloud.delete(made.token, made.id, made.urn)
    assert source in raised.value.refusal.source
    assert str(raised.value).endswith(f"[{raised.value.refusal.source}]")
    assert isinstance(raised.value, AlreadyExistsError) == ("are unique" in source)


PROGRAM = """
vpc = aws.ec2.Vpc("v", cidr_block="10.0.0.0/16")
aws.ec2.Subnet("s", vpc_id=vpc.id, cidr_block="10.1.0.0/24")
"""


@pytest.mark.deep
def test_the_report_of_a_failed_apply_names_the_source(
    engine: Engine, program: Callable[[str], Path]
) -> None:
    report = rehearse(read_project(program(PROGRAM)), engine, RehearsalOptions(until="apply"))
    assert any("10.1.0.0/24 is not inside" in str(each) for each in report.problems), report.problems
    assert any("docs.aws.amazon.com" in str(each) for each in report.problems), report.problems
