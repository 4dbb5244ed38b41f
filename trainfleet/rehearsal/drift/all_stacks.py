"""Checks one stack, or every stack of a project, for drift."""

from __future__ import annotations

from pathlib import Path

import yaml

from trainfleet.errors import InputError, Interrupted, Problem, TrainfleetError
from trainfleet.rehearsal import accepted
from trainfleet.rehearsal.diff.all_stacks import stacks_in
from trainfleet.rehearsal.drift.assess import assess
from trainfleet.rehearsal.drift.model import DriftReport, DriftReports, NotChecked
from trainfleet.rehearsal.drift.refresh import NotDeployedError, Progress, refresh
from trainfleet.rehearsal.engine.find import Engine
from trainfleet.suggestions import did_you_mean


def drift_of_stack(
    root: Path, stack: str, engine: Engine, *, program: bool = True, progress: Progress = lambda _: None
) -> DriftReport:
    """Refresh a stack and return its drift.

    Raises:
        InputError: rehearsal.toml has mistakes, or nobody knows the stack.
        TrainfleetError: see `refresh`.
    """
    rows = accepted.read(root).drift
    try:
        found = refresh(root, stack, engine, program=program, progress=progress)
    except NotDeployedError as error:
        names = stacks_in(root)
        if stack.rsplit("/", 1)[-1] in names:
            raise
        problem = Problem(stack, "is not in the backend and has no settings", did_you_mean(stack, names))
        raise InputError("unknown stack", [problem]) from error
    command = "pulumi preview --refresh" if program else "pulumi refresh --preview-only"
    source = f"{command} with Pulumi {engine.version}; nothing was saved"
    return assess(found.log, source, accepted=rows, state=found.state, seconds=found.seconds)


def drift_of_all(
    root: Path, engine: Engine, *, program: bool = True, progress: Progress = lambda _: None
) -> DriftReports:
    """Return the drift of every stack that has a settings file; those that are not deployed are skipped.

    Raises:
        InputError: the project has no stacks.
        Interrupted: Ctrl-C.
    """
    names = stacks_in(root)
    if not names:
        raise InputError(
            "no stacks", [Problem(str(root), "has no stack settings", "add a Pulumi.STACK.yaml")]
        )
    reports, failed, skipped = list[DriftReport](), list[NotChecked](), list[NotChecked]()
    for stack in names:
        try:
            reports.append(drift_of_stack(root, stack, engine, program=program, progress=progress))
        except Interrupted:
            raise
        except NotDeployedError as error:
            skipped.append(NotChecked(stack, error.summary))
        except TrainfleetError as error:
            failed.append(NotChecked(stack, "; ".join([error.summary, *map(str, error.problems)])))
    return DriftReports(_name(root), tuple(reports), tuple(failed), tuple(skipped))


def _name(root: Path) -> str:
    document = yaml.safe_load((root / "Pulumi.yaml").read_text())
    return str(document.get("name") or root.name)
