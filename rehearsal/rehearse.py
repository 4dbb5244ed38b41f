"""Rehearses a program: every step from the first preview to the last delete, on the real engine over simulated clouds.

`rehearse(...)` sets the stage (sandbox, providers, language host, engine) and walks through `steps.py`, stopping at
the first step that is not as expected. Nothing outside the sandbox is written; Ctrl-C leaves nothing behind.
"""

from __future__ import annotations

import collections
import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rehearsal import language
from rehearsal.clouds import provider
from rehearsal.clouds.replace import table
from rehearsal.clouds.state import Cloud
from rehearsal.clouds.wire import masked
from rehearsal.commands import Runner
from rehearsal.engine import Engine
from rehearsal.report import Report, Step
from rehearsal.rounds import Order, beside, differences
from rehearsal.sandbox import Project, sandbox
from rehearsal.stage import Rehearsal
from rehearsal.steps import STEPS
from trainfleet.errors import TrainfleetError
from trainfleet.files import write_whole

DONE_SECONDS_AFTER_INTERRUPT = 5


@dataclass(frozen=True)
class Wishes:
    """What the user asked for beside the program itself."""

    policy_packs: Sequence[Path] = ()
    fault: str = "one"
    seed: int = 0
    keep: Path | None = None
    resources: Path | None = None
    outputs: Path | None = None
    until: str = ""
    """The last step to take; empty for all of them."""
    quotas: dict[str, int] = field(default_factory=dict)
    """How many of a type the cloud grants."""


@dataclass(frozen=True)
class Show:
    """Where progress goes: a step begins, a resource is done, a step ends."""

    begin: Callable[[Step], None] = lambda _: None
    resource: Callable[[str, int], None] = lambda *_: None
    end: Callable[[Step], None] = lambda _: None


def rehearse(
    project: Project,
    engine: Engine,
    wishes: Wishes | None = None,
    *,
    subject: str = "",
    settings: dict[str, Any] | None = None,
    show: Show | None = None,
    checked: Step | None = None,
) -> Report:
    """Rehearse a program and return what came of it. `checked` is the check that its reader made before: the first row.

    Raises:
        InputError: nowhere to write, or a wished file cannot be written.
    """
    wishes, show = wishes or Wishes(), show or Show()
    report = Report(subject or project.name, engine.version, wishes.seed)
    if checked is not None:
        report.steps.append(checked)
        show.end(checked)
    with staged(project, engine, wishes, settings=settings, show=show) as rehearsal:
        rehearsal.report = report
        if wishes.fault == "all" and not wishes.until:
            _with_rounds(rehearsal, show, Order(project, engine, wishes, settings, []))
        else:
            collections.deque(_walk(rehearsal, show, wishes.until), maxlen=0)
        report.resources = len(rehearsal.plan)
        report.missing_rules = rehearsal.missing_rules
        if wishes.resources:
            write_whole(wishes.resources, resource_lines(rehearsal))
        if wishes.outputs and rehearsal.outputs:
            write_whole(wishes.outputs, json.dumps(rehearsal.outputs.get("platform", rehearsal.outputs), indent=2) + "\n")
        if wishes.keep:
            rehearsal.cloud.save(rehearsal.runner.sandbox.file("cloud.json"))
            report.kept = str(rehearsal.runner.sandbox.folder)
    return report


@contextlib.contextmanager
def staged(
    project: Project, engine: Engine, wishes: Wishes, *, settings: dict[str, Any] | None = None, show: Show | None = None
) -> Iterator[Rehearsal]:
    """Set the stage: a sandbox with an empty stack, simulated providers and a language host, all gone at the end."""
    cloud, programs = Cloud(quotas=wishes.quotas), language.Programs(python=sys.executable, root=project.root)
    with (
        sigterm_as_interrupt(),
        sandbox(project, settings, keep=wishes.keep) as box,
        provider.serve(cloud) as providers,
        language.serve(programs) as languages,
    ):
        programs.environment, programs.secret_keys = box.environment, box.secret_keys
        programs.failure_file, programs.output = box.file("failure.json"), box.file("program.txt")
        environment = {"PULUMI_DEBUG_PROVIDERS": providers, "PULUMI_DEBUG_LANGUAGES": languages}
        runner = Runner(engine.path, box, environment, (show or Show()).resource)
        runner.init()
        yield Rehearsal(project, runner, cloud, programs, table(), wishes.policy_packs, wishes.fault, wishes.seed)


def _walk(rehearsal: Rehearsal, show: Show, until: str) -> Iterator[Step]:
    """Take one step after another; yields each that was taken."""
    report = rehearsal.report
    names = [name for name, _, _ in STEPS]
    for name, title, act in STEPS[: names.index(until) + 1 if until else None]:
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


def _with_rounds(rehearsal: Rehearsal, show: Show, order: Order) -> None:
    """Walk, with the faults that need a stack of their own in a second process beside; everything has to end with the same things."""
    made: dict[str, str] = {}
    with contextlib.ExitStack() as ending:
        others = None
        for step in _walk(rehearsal, show, ""):
            if step.name == "preview" and step.ok and rehearsal.plan:
                others = ending.enter_context(beside(replace(order, plan=rehearsal.plan), rehearsal.runner.sandbox.file("rounds")))
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
    """Return every planned resource as a line of JSON; secrets are masked."""
    lines = [
        {"type": planned.token, "name": planned.name, "urn": planned.urn, "inputs": masked((planned.new or {}).get("inputs") or {})}
        for planned in rehearsal.everything
    ]
    return "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines)


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does, so that it cleans up."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


__all__ = ["Rehearsal", "Show", "TrainfleetError", "Wishes", "rehearse", "resource_lines", "staged"]
