"""The shared state of a rehearsal: engine, cloud, program and plan, and how steps record their results.

`rehearsal_session` creates a `Rehearsal`. The functions in `steps.py` and `fault_scenarios.py` take one;
`rehearse.py` and `isolated_faults.py` run them in order.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.rehearsal import accepted
from trainfleet.rehearsal.engine import isolation, language
from trainfleet.rehearsal.engine.engine_cli import Outcome, Planned, Runner, pending_of, resources_of
from trainfleet.rehearsal.engine.environment import Access
from trainfleet.rehearsal.engine.find import Engine
from trainfleet.rehearsal.engine.language import Programs
from trainfleet.rehearsal.engine.other_stacks import write_stack
from trainfleet.rehearsal.engine.sandbox import Project, read_project, sandbox
from trainfleet.rehearsal.report import Report, Step
from trainfleet.rehearsal.simulation import provider
from trainfleet.rehearsal.simulation.pulumi_values import digested
from trainfleet.rehearsal.simulation.replacement import Rule, table
from trainfleet.rehearsal.simulation.state import Cloud
from trainfleet.rehearsal.simulation.waits import Waits
from trainfleet.rehearsal.steps import diagnostics
from trainfleet.rehearsal.steps import selection as plan

if TYPE_CHECKING:
    from trainfleet.rehearsal.on_cluster.cluster_target import Target

APPLY = ("up", "--yes", "--skip-preview", "--suppress-outputs")
DESTROY = ("destroy", "--yes", "--skip-preview")


@dataclass(frozen=True)
class RehearsalOptions:
    """The options of a rehearsal."""

    policy_packs: Sequence[Path] = ()
    fault: str = "one"
    seed: int = 0
    keep: Path | None = None
    resources: Path | None = None
    outputs: Path | None = None
    until: str = ""
    """The last step to run; empty: run all steps."""
    quotas: dict[str, int] = field(default_factory=dict)
    """Simulated quota per type."""
    applied_from: str = ""
    """Where the program is applied from (laptop, ci or runner); empty: any route exists."""
    cluster: Target | None = None
    """The real cluster for Kubernetes objects; None: simulate them."""
    callers: tuple[Path, ...] = ()
    """The programs that are waiting for the outputs of this one."""
    access: Access = field(default_factory=Access)
    """What the program may reach."""
    leave: bool = False
    """Whether to leave the objects on the cluster after a successful rehearsal."""


@dataclass(frozen=True)
class Show:
    """Progress callbacks: a step begins, a resource is done, a step ends."""

    begin: Callable[[Step], None] = lambda _: None
    resource: Callable[[str, int], None] = lambda *_: None
    end: Callable[[Step], None] = lambda _: None


@dataclass
class Rehearsal:
    """The state that all steps share."""

    project: Project
    runner: Runner
    cloud: Cloud
    programs: Programs
    rules: Mapping[str, Rule]
    policy_packs: Sequence[Path]
    fault: str
    seed: int
    report: Report = field(default_factory=lambda: Report("", "", 0))
    plan: list[Planned] = field(default_factory=list)
    """The cloud resources that the first preview plans, in order."""
    everything: list[Planned] = field(default_factory=list)
    """The plan with components and providers."""
    missing_rules: list[str] = field(default_factory=list)
    outputs: dict[str, Any] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)

    not_ready: set[str] = field(default_factory=set)
    """Resources that exist but did not become ready in time; a resumed apply updates them."""

    def run(self, step: Step, *arguments: str, checkpoints: bool = False) -> Outcome:
        """Run a command and record its duration and changes on the step.

        With `checkpoints`, the engine writes the state after each resource.
        """
        if self.programs.failure_file:
            self.programs.failure_file.unlink(missing_ok=True)
        self.cloud.mistakes.clear()
        outcome = self.runner.run(*arguments, checkpoints=checkpoints)
        step.seconds += outcome.seconds
        if self.cloud.missing:  # the program ran on plausible results, to find all that is missing
            outcome.code = outcome.code or 1
        return outcome

    def failed(self, step: Step, outcome: Outcome) -> None:
        """Record a failed command and its reasons."""
        step.ok = False
        step.problems += diagnostics.problems(outcome, self.cloud, self.programs.failure_file or Path())

    def unexpected(self, step: Step, what: str, urn: str = "", fix: str = "") -> None:
        """Record an unexpected result."""
        step.ok = False
        step.problems.append(Problem(diagnostics.resource_of(urn) if urn else step.title, what, fix))

    def resources(self) -> list[dict[str, Any]]:
        """Return the resources in the engine's state."""
        return resources_of(self.runner.sandbox.state)

    def real(self) -> list[dict[str, Any]]:
        """Return the cloud resources in the engine's state."""
        return [
            resource
            for resource in self.resources()
            if resource.get("custom") and not resource.get("external") and plan.is_real(resource["type"])
        ]

    def pending(self) -> list[dict[str, Any]]:
        """Return the resources whose create was started and never confirmed."""
        return pending_of(self.runner.sandbox.state)

    def state_matches_cloud(self, step: Step, *, kept: Collection[str] = ()) -> bool:
        """Record every resource that exists only in the cloud or only in the engine's state.

        `kept`: URNs that may exist only in the cloud, because the program retains them (retain_on_delete).
        """
        # A resource deleted before its replacement exists stays in the state, marked as pendingReplacement.
        made = [
            resource
            for resource in self.real()
            if resource.get("id") and not resource.get("pendingReplacement")
        ]
        known = {(resource["type"], resource["id"]): resource["urn"] for resource in made}
        meant = collections.Counter((resource["type"], resource["id"]) for resource in made)
        there = collections.Counter((record.token, record.id) for record in self.cloud.records.values())
        for record in self.cloud.records.values():
            key = record.token, record.id
            # The same object in two clusters has one ID. While the first cluster is being replaced, the state
            # contains both.
            if (key not in known or (record.place and there[key] > meant[key])) and record.urn not in kept:
                self.report.lost.append(record.urn)
                self.unexpected(step, "exists in the cloud but not in the engine's state", record.urn)
        for key, urn in known.items():
            if key not in there:
                self.report.lost.append(urn)
                self.unexpected(step, "is in the engine's state but not in the cloud", urn)
        return step.ok

    def no_duplicates(self, step: Step) -> None:
        """Record every resource that was created more than once. Only valid before the first replacement."""
        made = collections.Counter(op.urn for op in self.cloud.operations if op.verb == "create")
        for urn, times in made.items():
            if times > 1:
                self.report.made_twice.append(urn)
                self.unexpected(step, f"was created {times} times", urn)

    def fingerprint(self) -> dict[str, str]:
        """Return a digest of everything that exists, by URN; equal for rehearsals with equal results."""
        return {
            record.urn: (
                hashlib.sha256(
                    json.dumps(
                        [record.id, digested(record.inputs), digested(record.outputs)], sort_keys=True
                    ).encode()
                ).hexdigest()
            )
            for record in self.cloud.records.values()
        }

    def packs(self) -> list[str]:
        """Return the flags that enable the policy packs."""
        return [argument for pack in self.policy_packs for argument in ("--policy-pack", str(pack))]

    def only(self, outcome: Outcome) -> dict[str, str]:
        """Return the operations on cloud resources."""
        made = {step.urn for step in outcome.steps if plan.is_real(step.token)}
        return {urn: op for urn, op in outcome.ops().items() if urn in made}


def counted(ops: Iterable[str]) -> dict[str, int]:
    """Return the number of occurrences of each operation."""
    return dict(collections.Counter(ops))


@contextlib.contextmanager
def rehearsal_session(
    project: Project,
    engine: Engine,
    options: RehearsalOptions,
    *,
    settings: dict[str, Any] | None = None,
    show: Show | None = None,
) -> Iterator[Rehearsal]:
    """Start a sandbox with an empty stack, simulated providers and a language host; clean up on exit."""
    access = options.access
    programs = language.Programs(python=sys.executable, root=project.root, network=access.network)
    with (
        sigterm_as_interrupt(),
        sandbox(project, settings, keep=options.keep, access=access) as box,
        _cloud(options) as cloud,
        provider.serve(cloud) as providers,
        language.serve(programs) as languages,
    ):
        programs.environment, programs.secret_keys = box.environment, box.secret_keys
        programs.failure_file, programs.output = box.file("failure.json"), box.file("program.txt")
        programs.waits, programs.references = box.file("waits.txt"), box.file(language.REFERENCES)
        cloud.accepted = accepted.read(project.root)
        cloud.waits = Waits(programs.waits)
        if options.cluster is not None:
            box.environment["KUBECONFIG"] = str(options.cluster.write_kubeconfig(box.file("kubeconfig")))
        environment = {"PULUMI_DEBUG_PROVIDERS": providers, "PULUMI_DEBUG_LANGUAGES": languages}
        runner = Runner(engine.path, box, environment, (show or Show()).resource)
        runner.init()
        for row in cloud.accepted.stacks:
            given = row.outputs if row.outputs is not None else _outputs_of(row, engine, options, project)
            write_stack(box.folder / "state", row.name, project.name, given)
        yield Rehearsal(
            project, runner, cloud, programs, table(), options.policy_packs, options.fault, options.seed
        )


def _outputs_of(
    row: accepted.StackOutputs, engine: Engine, options: RehearsalOptions, project: Project
) -> dict[str, Any]:
    """Apply the program that has a stack to a simulated cloud of its own, and return its outputs.

    Raises:
        InputError: it refers back to this program.
        TrainfleetError: it cannot be applied.
    """
    assert row.program is not None
    callers = (*options.callers, project.root)
    if row.program in callers:
        raise InputError(
            "stacks refer to each other in a circle",
            [Problem(accepted.FILE, " -> ".join(str(each) for each in (*callers, row.program)))],
        )
    other = RehearsalOptions(access=options.access, callers=callers)
    with rehearsal_session(read_project(row.program, row.stack), engine, other) as r:
        step = Step("apply", f"apply of {row.name}")
        outcome = r.run(step, *APPLY)
        if not outcome.ok:
            r.failed(step, outcome)
            raise TrainfleetError(f"the program of stack {row.name} cannot be applied", step.problems)
        shown = r.runner.run(
            "stack", "output", "--json", "--show-secrets", "--stack", r.runner.sandbox.stack, events=False
        )
        return dict(json.loads(shown.output or "{}"))


def network_of(options: RehearsalOptions) -> str:
    """Return how the program's network is limited: `allowed`, `blocked`, or why it cannot be blocked."""
    if options.access.network:
        return "allowed"
    reason = isolation.unsupported()
    return f"not blocked: {reason}" if reason else "blocked"


def _cloud(options: RehearsalOptions) -> contextlib.AbstractContextManager[Cloud]:
    if options.cluster is None:
        return contextlib.nullcontext(Cloud(quotas=options.quotas, applied_from=options.applied_from))
    from trainfleet.rehearsal.on_cluster.cloud import on

    return on(options.cluster, options.quotas)


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that a command cleans up."""

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
