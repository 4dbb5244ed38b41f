"""Rehearses a program: every step from preview to destroy, on the real engine and simulated clouds.

`rehearse(...)` starts the sandbox, the providers, the language host and the engine. It runs the steps in
order and stops at the first failure. It writes nothing outside the sandbox, and Ctrl-C leaves nothing behind.
"""

from __future__ import annotations

import collections
import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from trainfleet.errors import TrainfleetError
from trainfleet.files import write_whole
from trainfleet.rehearsal.engine.find import Engine
from trainfleet.rehearsal.engine.sandbox import Project
from trainfleet.rehearsal.report import Report, Step
from trainfleet.rehearsal.simulation.pulumi_values import masked
from trainfleet.rehearsal.steps.isolated_faults import FaultRequest, differences, fault_process
from trainfleet.rehearsal.steps.session import (
    Rehearsal,
    RehearsalOptions,
    Show,
    network_of,
    rehearsal_session,
)
from trainfleet.rehearsal.steps.steps import STEPS


def rehearse(
    project: Project,
    engine: Engine,
    options: RehearsalOptions | None = None,
    *,
    subject: str = "",
    settings: dict[str, Any] | None = None,
    show: Show | None = None,
    checked: Step | None = None,
) -> Report:
    """Rehearse a program and return the report.

    Args:
        project: the program to rehearse.
        engine: the Pulumi engine.
        options: what to rehearse and which files to write.
        subject: name of the program in the report; the project name by default.
        settings: stack settings to use instead of the project's.
        show: progress callbacks.
        checked: the result of a check that ran earlier; becomes the first row.

    Raises:
        InputError: no writable temporary folder, or a requested file cannot be written.
    """
    options, show = options or RehearsalOptions(), show or Show()
    began = time.monotonic()
    report = Report(subject or project.name, engine.version, options.seed, network=network_of(options))
    if checked is not None:
        report.steps.append(checked)
        show.end(checked)
    with rehearsal_session(project, engine, options, settings=settings, show=show) as rehearsal:
        rehearsal.report = report
        if options.fault == "all" and not options.until:
            _walk_with_isolated_faults(rehearsal, show, FaultRequest(project, engine, options, settings, []))
        else:
            collections.deque(_walk(rehearsal, show, options.until, steps_of(options)), maxlen=0)
        if options.leave and report.ok:
            rehearsal.cloud.leave = True
        report.resources = len(rehearsal.plan)
        report.missing_rules = rehearsal.missing_rules
        report.warnings = sorted(rehearsal.cloud.warnings)  # the engine registers in any order
        if options.resources:
            write_whole(options.resources, resource_lines(rehearsal))
        if options.outputs and rehearsal.outputs:
            write_whole(
                options.outputs,
                json.dumps(rehearsal.outputs.get("platform", rehearsal.outputs), indent=2) + "\n",
            )
        if options.keep:
            rehearsal.cloud.save(rehearsal.runner.sandbox.file("cloud.json"))
            report.kept = str(rehearsal.runner.sandbox.folder)
    report.seconds = time.monotonic() - began + (checked.seconds if checked else 0.0)
    return report


Steps = Sequence[tuple[str, str, Callable[[Rehearsal, Step], None]]]


def steps_of(options: RehearsalOptions) -> Steps:
    """Return the steps of a rehearsal; one on a cluster has two more."""
    if options.cluster is None:
        return STEPS
    from trainfleet.rehearsal.on_cluster.steps import STEPS as ON_CLUSTER

    return ON_CLUSTER


def _walk(rehearsal: Rehearsal, show: Show, until: str, steps: Steps) -> Iterator[Step]:
    """Run the steps in order; yield each one that was run."""
    report = rehearsal.report
    names = [name for name, _, _ in steps]
    for name, title, act in steps[: names.index(until) + 1 if until else None]:
        step = Step(name, title)
        if report.steps and not report.ok:
            step.ran = False
            if name != "update-fault" or rehearsal.fault == "all":
                report.steps.append(step)
            continue
        show.begin(step)
        act(rehearsal, step)
        if step.ran or step.detail:
            report.steps.append(step)
        show.end(step)
        yield step


def _walk_with_isolated_faults(rehearsal: Rehearsal, show: Show, request: FaultRequest) -> None:
    """Run the steps, and in parallel the faults that need their own stack in a second process.

    Both must end with identical resources.
    """
    made: dict[str, str] = {}
    with contextlib.ExitStack() as ending:
        others = None
        for step in _walk(rehearsal, show, "", STEPS):
            if step.name == "preview" and step.ok and rehearsal.plan:
                others = ending.enter_context(
                    fault_process(
                        replace(request, plan=rehearsal.plan), rehearsal.runner.sandbox.file("rounds")
                    )
                )
            elif step.name == "apply" and step.ok:
                made = rehearsal.fingerprint()
        if others is None or not rehearsal.report.ok:
            return
        waiting = Step("rounds", "other faults")
        show.begin(waiting)
        answer = others.wait()
        resumed = next(step for step in rehearsal.report.steps if step.name == "apply")
        if answer.made:
            differences(rehearsal, resumed, made, answer.made)
        rehearsal.report.add(answer.steps, answer.faults, answer.made_twice, answer.lost)
        for step in answer.steps:
            show.end(step)


def resource_lines(rehearsal: Rehearsal) -> str:
    """Return each planned resource as a line of JSON; secrets are masked."""
    lines = [
        {
            "type": planned.token,
            "name": planned.name,
            "urn": planned.urn,
            "inputs": masked((planned.new or {}).get("inputs") or {}),
        }
        for planned in rehearsal.everything
    ]
    return "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines)


__all__ = [
    "Rehearsal",
    "RehearsalOptions",
    "Show",
    "TrainfleetError",
    "rehearsal_session",
    "rehearse",
    "resource_lines",
]
