"""What the steps of a rehearsal share: the stack's engine, cloud and program, what is planned, and how a step books what it saw.

`steps.py` and `breakage.py` are functions over a `Rehearsal`; `rehearse.py` makes one.
"""

from __future__ import annotations

import collections
import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rehearsal import faults, plan
from rehearsal.clouds.replace import Rule
from rehearsal.clouds.state import Cloud
from rehearsal.clouds.wire import digested
from rehearsal.commands import Outcome, Planned, Runner, pending_of, resources_of
from rehearsal.language import Programs
from rehearsal.report import Report, Step
from rehearsal.sandbox import Project
from trainfleet.errors import Problem

APPLY = ("up", "--yes", "--skip-preview", "--suppress-outputs")
DESTROY = ("destroy", "--yes", "--skip-preview")


@dataclass
class Rehearsal:
    """Everything the steps share."""

    project: Project
    runner: Runner
    cloud: Cloud
    programs: Programs
    rules: dict[str, Rule]
    policy_packs: Sequence[Path]
    fault: str
    seed: int
    report: Report = field(default_factory=lambda: Report("", "", 0))
    plan: list[Planned] = field(default_factory=list)
    """What the first preview wants to make in clouds, in order."""
    everything: list[Planned] = field(default_factory=list)
    """The same with components and providers."""
    missing_rules: list[str] = field(default_factory=list)
    outputs: dict[str, Any] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)

    half_made: set[str] = field(default_factory=set)
    """What exists and did not become ready in time: a resumed apply puts it right by an update."""

    def run(self, step: Step, *arguments: str, checkpoints: bool = False) -> Outcome:
        """Run a command and book its time and changes on the step; with `checkpoints` the state is written after each resource."""
        if self.programs.failure_file:
            self.programs.failure_file.unlink(missing_ok=True)
        self.cloud.mistakes.clear()
        outcome = self.runner.run(*arguments, checkpoints=checkpoints)
        step.seconds += outcome.seconds
        return outcome

    def failed(self, step: Step, outcome: Outcome) -> None:
        """Book a command that ended badly, with the reasons."""
        step.ok = False
        step.problems += faults.problems(outcome, self.cloud, self.programs.failure_file or Path())

    def unexpected(self, step: Step, what: str, urn: str = "", fix: str = "") -> None:
        """Book something that should not have happened."""
        step.ok = False
        step.problems.append(Problem(faults.resource_of(urn) if urn else step.title, what, fix))

    def resources(self) -> list[dict[str, Any]]:
        """Return what the engine's state holds."""
        return resources_of(self.runner.sandbox.state)

    def real(self) -> list[dict[str, Any]]:
        """Return what the engine's state holds of things that clouds made."""
        return [resource for resource in self.resources() if resource.get("custom") and plan.is_real(resource["type"])]

    def pending(self) -> list[dict[str, Any]]:
        """Return the resources whose create the engine began and never heard of again."""
        return pending_of(self.runner.sandbox.state)

    def state_matches_cloud(self, step: Step, *, kept: Collection[str] = ()) -> bool:
        """Book what exists in the cloud and is not in the engine's state, or the other way round.

        `kept` may leave the state and stay in the cloud: what the program keeps when it is destroyed (retain_on_delete).
        """
        known = {(resource["type"], resource["id"]): resource["urn"] for resource in self.real() if resource.get("id")}
        for key, record in self.cloud.records.items():
            if key not in known and record.urn not in kept:
                self.report.lost.append(record.urn)
                self.unexpected(step, "exists in the cloud and is not in the engine's state", record.urn)
        for key, urn in known.items():
            if key not in self.cloud.records:
                self.report.lost.append(urn)
                self.unexpected(step, "is in the engine's state and does not exist in the cloud", urn)
        return step.ok

    def nothing_made_twice(self, step: Step) -> None:
        """Book what was made more than once; for a stack in which nothing was replaced yet."""
        made = collections.Counter(op.urn for op in self.cloud.operations if op.verb == "create")
        for urn, times in made.items():
            if times > 1:
                self.report.made_twice.append(urn)
                self.unexpected(step, f"was made {times} times", urn)

    def fingerprint(self) -> dict[str, str]:
        """Return a digest of everything that exists, by URN: two rehearsals that end alike have the same."""
        return {
            record.urn: hashlib.sha256(
                json.dumps([record.id, digested(record.inputs), digested(record.outputs)], sort_keys=True).encode()
            ).hexdigest()
            for record in self.cloud.records.values()
        }

    def packs(self) -> list[str]:
        """Return the flags that attach the policy packs."""
        return [argument for pack in self.policy_packs for argument in ("--policy-pack", str(pack))]

    def only(self, outcome: Outcome) -> dict[str, str]:
        """Return the operations on things that clouds make."""
        made = {step.urn for step in outcome.steps if plan.is_real(step.token)}
        return {urn: op for urn, op in outcome.ops().items() if urn in made}


def counted(ops: Iterable[str]) -> dict[str, int]:
    """Return how often each operation is there."""
    return dict(collections.Counter(ops))
