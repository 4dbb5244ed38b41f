"""The planned resources of a stack: of a recorded preview, of an export, or of a rehearsed preview."""

from __future__ import annotations

from pathlib import Path

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.infra.catalog.planned import Plan
from trainfleet.rehearsal.diff import event_log, exports
from trainfleet.rehearsal.diff.planned_cost import applied_plan, dependencies, previewed_plan


def of_recording(file: Path, stack: str) -> Plan:
    """Return the resources after a recorded preview.

    Raises:
        InputError: the file is not a recording, is of another stack, or is incomplete.
    """
    log = event_log.read(file)
    if log.stack and log.stack != stack:
        raise InputError(
            "the preview is of another stack", [Problem(str(file), f"is of `{log.stack}`, not `{stack}`")]
        )
    if log.incomplete:
        raise InputError("the preview is incomplete", [Problem(str(file), why) for why in log.incomplete])
    return previewed_plan(log.steps, {})


def of_export(file: Path, stack: str) -> Plan:
    """Return the resources of a stack's export.

    Raises:
        InputError: the file is not an export, or of another stack.
    """
    export = exports.read(file)
    if export.stack != stack:
        raise InputError(
            "the export is of another stack", [Problem(str(file), f"is of `{export.stack}`, not `{stack}`")]
        )
    return applied_plan(export.resources)


def rehearsed(root: Path, stack: str) -> Plan:
    """Preview a stack on an empty simulated cloud and return its resources.

    Raises:
        TrainfleetError: the program cannot be previewed.
    """
    from trainfleet.rehearsal.engine.find import find_engine
    from trainfleet.rehearsal.engine.sandbox import read_project
    from trainfleet.rehearsal.steps import diagnostics
    from trainfleet.rehearsal.steps.session import RehearsalOptions, rehearsal_session

    with rehearsal_session(read_project(root, stack), find_engine(), RehearsalOptions()) as r:
        plan = r.runner.sandbox.file("plan.json")
        outcome = r.runner.run("preview", "--save-plan", str(plan))
        if not outcome.ok or r.cloud.missing:
            problems = diagnostics.problems(outcome, r.cloud, r.programs.failure_file or Path())
            raise TrainfleetError(f"{stack} cannot be previewed", problems)
        log = event_log.read(r.runner.sandbox.file(f"events-{r.runner.count}.jsonl"))
        return previewed_plan(log.steps, dependencies(plan))
