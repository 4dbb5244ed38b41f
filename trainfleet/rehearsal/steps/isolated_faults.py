"""`--fault all`: the faults that need a stack of their own, each on a fresh one, in a second process beside
the rehearsal.

A round applies, breaks, resumes, previews, and must end with exactly the things that an undisturbed apply
makes. The second
process (`main`) reads what to rehearse on stdin, pickled by this very program, and writes the rows on stdout.
Easy to get
wrong: it has to end with its parent, and its sandboxes lie in the parent's, so that they go with it.
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
from trainfleet.rehearsal.steps.session import APPLY, Rehearsal, staged
from trainfleet.toolchain import kill_tree, spawn

ROUNDS = {
    "crash": "engine killed, things adopted",
    "throttle": "throttled, resumed",
    "lag": "seen late, resumed",
    "hang": "timed out, resumed",
}
WAIT = 10.0
"""Seconds that the second process has for cleaning up when it is told to end."""


@dataclass(frozen=True)
class Order:
    """What the second process is to do."""

    project: Project
    engine: Engine
    wishes: Any
    settings: dict[str, Any] | None
    plan: list[Planned]


@dataclass
class Answer:
    """What came of it: a row for each round, and what an undisturbed apply makes."""

    steps: list[Step] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    made_twice: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    made: dict[str, str] = field(default_factory=dict)


def carry_out(order: Order) -> Answer:
    """Make an undisturbed stack and then one for each kind of fault; stops at the first round that ends
    otherwise than expected.
    """
    with sharing():
        return _carry_out(order)


def _carry_out(order: Order) -> Answer:
    answer = Answer()
    with _stage(order, "one") as r:
        step = Step("apply-clean", "apply, undisturbed", resources=len(order.plan))
        outcome = r.run(step, *APPLY)
        if not outcome.ok:
            r.failed(step, outcome)
            answer.steps.append(step)
            return answer
        answer.made = r.fingerprint()
    for fault, title in ROUNDS.items():
        step = Step(fault, title, resources=len(order.plan))
        answer.steps.append(step)
        with _stage(order, fault) as r:
            _round(r, step, answer.made)
            answer.faults |= r.report.faults
            answer.made_twice += r.report.made_twice
            answer.lost += r.report.lost
        if not step.ok:
            break
    return answer


def _round(r: Rehearsal, step: Step, made: dict[str, str]) -> None:
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
    """Book what is not as an undisturbed apply makes it; both are digests by URN."""
    for urn in sorted(here.keys() | made.keys()):
        if here.get(urn) != made.get(urn):
            what = (
                "differs from"
                if urn in here and urn in made
                else "is missing, unlike after"
                if urn in made
                else "would not be there after"
            )
            r.unexpected(step, f"{what} an apply without faults", urn)


@contextlib.contextmanager
def _stage(order: Order, fault: str) -> Iterator[Rehearsal]:
    with staged(
        order.project,
        order.engine,
        replace(order.wishes, fault=fault, policy_packs=(), keep=None),
        settings=order.settings,
    ) as r:
        r.report, r.plan = Report(order.project.name, order.engine.version, order.wishes.seed), order.plan
        yield r


class Beside:
    """The second process, seen from the first."""

    def __init__(self, order: Order, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.answers = folder / "answer.pickle"
        self.orders = folder / "order.pickle"
        self.said = folder / "rounds.txt"
        self.orders.write_bytes(pickle.dumps(order))
        with (
            self.orders.open("rb") as orders,
            self.answers.open("wb") as answers,
            self.said.open("wb") as said,
        ):
            self.child = spawn(
                [
                    sys.executable,
                    "-c",
                    "import trainfleet.rehearsal.steps.isolated_faults, sys; sys.exit(trainfleet.rehearsal.steps.isolated_faults.main())",
                ],
                stdin=orders,
                stdout=answers,
                stderr=said,
                env={**os.environ, "TMPDIR": str(folder)},
                start_new_session=True,
            )

    def wait(self) -> Answer:
        """Return the answer when it is there.

        Raises:
            TrainfleetError: the process ended without one.
        """
        if self.child.wait() != 0:
            raise TrainfleetError(
                "the rounds of faults ended without a result",
                [Problem("trainfleet.rehearsal.steps.isolated_faults", self.said.read_text()[-800:])],
            )
        answer = pickle.loads(self.answers.read_bytes())
        assert isinstance(answer, Answer)
        return answer

    def end(self) -> None:
        """End the process, which then removes what it made; at once if it does not listen."""
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(WAIT)
        kill_tree(self.child)


@contextlib.contextmanager
def beside(order: Order, folder: Path) -> Iterator[Beside]:
    """Run the rounds in a second process, which ends with the block."""
    child = Beside(order, folder)
    try:
        yield child
    finally:
        child.end()


def main() -> int:
    """The second process."""
    try:
        answer = carry_out(pickle.load(sys.stdin.buffer))
    except KeyboardInterrupt:
        return 130
    sys.stdout.buffer.write(pickle.dumps(answer))
    sys.stdout.buffer.flush()
    return 0
