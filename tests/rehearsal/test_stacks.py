"""Our own stacks go through: every type has replacement rules, every policy holds, every step is as expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainfleet.rehearsal.engine.find import Engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.rehearsal.rehearse import RehearsalOptions, rehearsal_session, rehearse
from trainfleet.rehearsal.simulation.replacement import table
from trainfleet.rehearsal.steps.selection import managed, missing_rules


@pytest.mark.parametrize("stack", ["aws-dev"])
def test_every_type_of_a_stack_has_replacement_rules(engine: Engine, root: Path, stack: str) -> None:
    with rehearsal_session(read_project(root, stack), engine, RehearsalOptions()) as rehearsal:
        outcome = rehearsal.runner.run("preview")
        mistakes = [str(mistake) for found in rehearsal.cloud.mistakes.values() for mistake in found]
    assert outcome.ok, mistakes or outcome.output[-2000:]
    planned = managed(outcome.steps)
    assert planned
    assert missing_rules((step.token for step in planned), table()) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "stack",
    [
        pytest.param("local", marks=pytest.mark.deep),  # `make demo` rehearses these two
        pytest.param("aws-prod", marks=pytest.mark.deep),
        "gcp-prod",
        "azure-prod",
    ],
)
def test_a_stack_goes_through_every_step(engine: Engine, root: Path, stack: str) -> None:
    report = rehearse(
        read_project(root, stack), engine, RehearsalOptions([root / "policies"], seed=7), subject=stack
    )
    assert report.ok, report.problems
    assert report.missing_rules == []
    assert [step.title for step in report.steps if not step.ran and step.name != "unprotect"] == []


@pytest.mark.deep
@pytest.mark.parametrize("stack", ["aws-prod", "gcp-prod", "azure-prod"])
def test_a_stack_recovers_from_every_fault(engine: Engine, root: Path, stack: str) -> None:
    report = rehearse(read_project(root, stack), engine, RehearsalOptions(fault="all"), subject=stack)
    assert report.ok, report.problems
    assert report.faults["create"] == report.resources
    assert set(report.faults) == {"create", "update", "delete", "crash", "throttle", "lag", "hang"}
    assert (report.made_twice, report.lost) == ([], [])
