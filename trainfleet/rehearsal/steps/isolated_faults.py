"""`--fault all`: runs the faults that need their own stack in a second, parallel process.

Each round applies, injects, resumes and previews. It must end with exactly the resources of an apply without
faults. The second process (`main`) reads a pickled `FaultRequest` on stdin and writes a `FaultResult` to
stdout.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.rehearsal.engine.engine_cli import Planned
from trainfleet.rehearsal.engine.find import Engine
from trainfleet.rehearsal.engine.process_pool import sharing
from trainfleet.rehearsal.engine.sandbox import Project
from trainfleet.rehearsal.report import Report, Step
from trainfleet.rehearsal.steps import fault_scenarios, steps
from trainfleet.rehearsal.steps.session import APPLY, Rehearsal, rehearsal_session
from trainfleet.toolchain import kill_tree, spawn

ISOLATED_FAULTS = {
    "crash": "engine killed, resources imported",
    "throttle": "throttled, resumed",
    "lag": "visible late, resumed",
    "hang": "timed out, resumed",
}
WAIT = 10.0
"""Seconds that the second process has for its cleanup after SIGTERM."""


@dataclass(frozen=True)
class FaultRequest:
    """The input of the second process."""

    project: Project
    engine: Engine
    options: Any
    settings: dict[str, Any] | None
    plan: list[Planned]


@dataclass
class FaultResult:
    """The output of the second process: a row per round, and the fingerprint of an apply without faults."""

    steps: list[Step] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    made_twice: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    made: dict[str, str] = field(default_factory=dict)


def perform(request: FaultRequest) -> FaultResult:
    """Apply a stack without faults, then one stack per kind of fault. Stop at the first round that fails."""
    with sharing():
        return _perform(request)


def _perform(request: FaultRequest) -> FaultResult:
    answer = FaultResult()
    with _session(request, "one") as r:
        step = Step("apply-clean", "apply, undisturbed", resources=len(request.plan))
        outcome = r.run(step, *APPLY)
        if not outcome.ok:
            r.failed(step, outcome)
            answer.steps.append(step)
            return answer
        answer.made = r.fingerprint()
    for fault, title in ISOLATED_FAULTS.items():
        step = Step(fault, title, resources=len(request.plan))
        answer.steps.append(step)
        with _session(request, fault) as r:
            _inject_one(r, step, answer.made)
            answer.faults |= r.report.faults
            answer.made_twice += r.report.made_twice
            answer.lost += r.report.lost
        if not step.ok:
            break
    return answer


def _inject_one(r: Rehearsal, step: Step, made: dict[str, str]) -> None:
    for act in (fault_scenarios.apply_with_fault, steps.resume, steps.no_op):
        row = Step(step.name, step.title)
        act(r, row)
        step.seconds += row.seconds
        step.problems += row.problems
        step.ok = step.ok and row.ok
        if act is fault_scenarios.apply_with_fault:
            step.detail, step.changes = row.detail, row.changes
        elif act is steps.resume:
            step.changes = {
                op: step.changes.get(op, 0) + row.changes.get(op, 0) for op in {**step.changes, **row.changes}
            }
        if not step.ok:
            return
    differences(r, step, r.fingerprint(), made)


def differences(r: Rehearsal, step: Step, here: dict[str, str], made: dict[str, str]) -> None:
    """Record every resource that differs from an apply without faults; both arguments are digests by URN."""
    for urn in sorted(here.keys() | made.keys()):
        if here.get(urn) != made.get(urn):
            what = (
                "differs from"
                if urn in here and urn in made
                else "is missing, but exists after"
                if urn in made
                else "would not exist after"
            )
            r.unexpected(step, f"{what} an apply without faults", urn)


@contextlib.contextmanager
def _session(request: FaultRequest, fault: str) -> Iterator[Rehearsal]:
    with rehearsal_session(
        request.project,
        request.engine,
        replace(request.options, fault=fault, policy_packs=(), keep=None),
        settings=request.settings,
    ) as r:
        r.report, r.plan = (
            Report(request.project.name, request.engine.version, request.options.seed),
            request.plan,
        )
        yield r


class FaultProcess:
    """A handle on the second process."""

    def __init__(self, request: FaultRequest, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.answers = folder / "answer.pickle"
        self.requests = folder / "order.pickle"
        self.log = folder / "rounds.txt"
        self.requests.write_bytes(pickle.dumps(request))
        with (
            self.requests.open("rb") as requests,
            self.answers.open("wb") as answers,
            self.log.open("wb") as log,
        ):
            self.child = spawn(
                [
                    sys.executable,
                    "-c",
                    (
                        "import trainfleet.rehearsal.steps.isolated_faults, sys;"
                        " sys.exit(trainfleet.rehearsal.steps.isolated_faults.main())"
                    ),
                ],
                stdin=requests,
                stdout=answers,
                stderr=log,
                env={**os.environ, "TMPDIR": str(folder)},
                start_new_session=True,
            )

    def wait(self) -> FaultResult:
        """Wait for the process and return its result.

        Raises:
            TrainfleetError: the process ended without a result.
        """
        if self.child.wait() != 0:
            raise TrainfleetError(
                "the rounds of faults ended without a result",
                [Problem("trainfleet.rehearsal.steps.isolated_faults", self.log.read_text()[-800:])],
            )
        answer = pickle.loads(self.answers.read_bytes())
        assert isinstance(answer, FaultResult)
        return answer

    def end(self) -> None:
        """Send SIGTERM so that the process cleans up; kill it if it has not ended after WAIT seconds."""
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(WAIT)
        kill_tree(self.child)


@contextlib.contextmanager
def fault_process(request: FaultRequest, folder: Path) -> Iterator[FaultProcess]:
    """Run the rounds in a second process that does not outlive the block."""
    child = FaultProcess(request, folder)
    try:
        yield child
    finally:
        child.end()


def main() -> int:
    """Entry point of the second process."""
    try:
        answer = perform(pickle.load(sys.stdin.buffer))
    except KeyboardInterrupt:
        return 130
    sys.stdout.buffer.write(pickle.dumps(answer))
    sys.stdout.buffer.flush()
    return 0
