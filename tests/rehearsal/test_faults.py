"""Every kind of fault, on the small program: it hits, it is reported, and a resumed run ends where an
undisturbed one does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from trainfleet.rehearsal.engine.find import Engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.rehearsal.rehearse import RehearsalOptions, rehearse
from trainfleet.rehearsal.report import Report, Step
from trainfleet.rehearsal.simulation.cloud_object import CloudObject
from trainfleet.rehearsal.simulation.fault_injection import (
    TRIES,
    Crash,
    FailOnce,
    Hang,
    InjectedFaultError,
    Lag,
    NotReadyError,
    Throttle,
    ThrottledError,
)
from trainfleet.rehearsal.simulation.state import Cloud
from trainfleet.rehearsal.steps.isolated_faults import ISOLATED_FAULTS

PROGRAMS = Path(__file__).with_name("programs")
ROLE = "aws:iam/role:Role"
CLUSTER = "aws:eks/cluster:Cluster"


def record(name: str, token: str = ROLE, **inputs: object) -> CloudObject:
    return CloudObject(
        f"urn:pulumi:s::p::{token}::{name}",
        token,
        name,
        "",
        dict(inputs),
        {"arn": f"arn:aws:iam::1:role/{name}"},
    )


def test_each_operation_fails_once_and_is_written_down() -> None:
    cloud = Cloud(injector=FailOnce("create", "delete"))
    one = record("one")
    with pytest.raises(InjectedFaultError):
        cloud.create(one)
    cloud.create(one)
    with pytest.raises(InjectedFaultError):
        cloud.delete(one.token, one.id, one.urn)
    cloud.update(one.token, one.id, one.urn, {}, {})
    cloud.delete(one.token, one.id, one.urn)
    assert [(op.verb, op.of) for op in cloud.operations] == [
        ("fail", "create"),
        ("create", ""),
        ("fail", "delete"),
        ("update", ""),
        ("delete", ""),
    ]
    assert cloud.records == {}


def test_a_throttled_create_is_tried_again_and_some_are_given_up() -> None:
    injector = Throttle(seed=1, always=record("always").urn)
    cloud = Cloud(injector=injector)
    for _ in range(TRIES):
        with pytest.raises(ThrottledError):
            cloud.create(record("always"))
    cloud.create(record("always"))
    assert injector.gave_up == {record("always").urn}
    assert {injector.refusals(f"urn-{index}") for index in range(100)} == {0, 1, 2, 3, TRIES}


def test_a_role_is_seen_late_by_its_users_and_in_the_next_run_by_all() -> None:
    cloud = Cloud(injector=Lag())
    cloud.create(record("nodes"))
    cloud.create(record("bystander", CLUSTER, version="1.33"))
    with pytest.raises(InjectedFaultError, match="cannot be found yet"):
        cloud.create(record("cluster", CLUSTER, roleArn="arn:aws:iam::1:role/nodes"))
    cloud.injector.advance_time()
    cloud.create(record("cluster", CLUSTER, roleArn="arn:aws:iam::1:role/nodes"))


def test_what_hangs_exists_all_the_same() -> None:
    cloud = Cloud(injector=Hang(record("slow").urn))
    with pytest.raises(NotReadyError, match="the provider's own limit"):
        cloud.create(record("slow"))
    with pytest.raises(NotReadyError, match="after 60 s"):
        cloud.create(record("limited"), timeout=60)
    cloud.create(record("quick"))
    assert [each.id for each in cloud.records.values()] == ["slow", "limited", "quick"]


def test_nothing_arrives_after_the_engine_died() -> None:
    killed: list[bool] = []
    cloud = Cloud(injector=Crash(record("last").urn, lambda: killed.append(True)))
    cloud.create(record("last"))
    with pytest.raises(InjectedFaultError, match="connection"):
        cloud.create(record("late"))
    assert killed == [True]
    assert [each.id for each in cloud.records.values()] == ["last"]


def test_what_is_synthetic_depends_on_the_resource_and_on_how_often_it_was_made() -> None:
    one, other = Cloud(), Cloud()
    urn = record("a").urn
    assert one.seed(urn) == other.seed(urn) != one.seed("urn::b")
    before = one.seed(urn)
    one.create(record("a"))
    assert one.seed(urn) != before


@pytest.mark.deep
@pytest.mark.parametrize("fault", sorted(ISOLATED_FAULTS))
def test_a_stack_recovers_from_each_kind_of_fault(engine: Engine, fault: str) -> None:
    report = rehearse(read_project(PROGRAMS / "small"), engine, RehearsalOptions(fault=fault, until="no-op"))
    assert report.ok, report.problems
    assert report.faults[fault] >= 1
    assert step(report, "apply-fault").detail
    assert (report.made_twice, report.lost) == ([], [])


@pytest.fixture(scope="module")
def everything(engine: Engine) -> Report:
    """programs/small with `--fault all`."""
    return rehearse(read_project(PROGRAMS / "small"), engine, RehearsalOptions(fault="all"))


def step(report: Report, name: str) -> Step:
    return next(step for step in report.steps if step.name == name)


@pytest.mark.deep
def test_every_create_update_and_delete_fails_once(everything: Report) -> None:
    assert everything.ok, everything.problems
    assert everything.faults["create"] == everything.faults["delete"] == everything.resources
    assert (
        everything.faults["update"] == step(everything, "update-fault").resources > everything.resources // 2
    )
    assert "each of" in step(everything, "destroy").detail
    assert step(everything, "destroy").changes == {"delete": everything.resources}


@pytest.mark.deep
def test_the_other_faults_have_a_row_each_and_end_like_an_undisturbed_apply(everything: Report) -> None:
    rows = {name: step(everything, name) for name in ISOLATED_FAULTS}
    assert all(
        row.ok and row.detail and row.changes["create"] == everything.resources for row in rows.values()
    ), rows
    assert rows["hang"].changes["update"] >= 1
    assert set(ISOLATED_FAULTS) < set(everything.faults)


@pytest.mark.deep
def test_the_document_counts_the_faults_and_names_what_was_lost(everything: Report) -> None:
    document = everything.as_json()
    assert document["faults"]["create"] == everything.resources
    assert document["made_twice"] == document["lost"] == []
    json.dumps(document)


@pytest.mark.deep
def test_a_program_that_makes_another_thing_each_time_is_found_by_comparing(
    engine: Engine, program: Callable[[str], Path]
) -> None:
    folder = program(
        'import time\nvpc = aws.ec2.Vpc("vpc", cidr_block="10.0.0.0/16", tags={"at": str(time.time_ns())},'
        ' opts=pulumi.ResourceOptions(ignore_changes=["tags"]))'
    )
    report = rehearse(read_project(folder), engine, RehearsalOptions(fault="all"))
    assert not report.ok
    assert any("an apply without faults" in str(problem) for problem in report.problems), report.problems
