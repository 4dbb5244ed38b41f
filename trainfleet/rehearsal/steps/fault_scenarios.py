"""Fault scenarios: how each kind of fault is injected and what recovery from it must look like.

`apply_with_fault` is a step that depends on `--fault`; `updates_with_faults` and `destroy_with_faults` run
for `--fault all`. Independent failures share one run (`--continue-on-error`) and are counted separately.
After each run, the cloud and the engine's state must agree.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection
from typing import Any

from trainfleet.rehearsal.engine.engine_cli import Outcome
from trainfleet.rehearsal.report import Step
from trainfleet.rehearsal.simulation.fault_injection import (
    PRINCIPALS,
    Crash,
    FailOnce,
    FaultInjector,
    Hang,
    Lag,
    Throttle,
)
from trainfleet.rehearsal.steps import diagnostics, selection
from trainfleet.rehearsal.steps.session import APPLY, DESTROY, Rehearsal

MAX_RUNS = 400
CONTINUE = "--continue-on-error"


def apply_with_fault(r: Rehearsal, step: Step) -> None:
    """Apply while the selected fault is injected; the next step resumes the apply."""
    if not r.plan:
        step.ran, step.detail = False, "nothing to create"
        return
    step.resources = len(r.plan)
    FAULTS[r.fault](r, step)
    r.cloud.injector = FaultInjector()
    step.changes = {"create": sum(op.verb == "create" for op in r.cloud.operations)}


def _one(r: Rehearsal, step: Step) -> None:
    """One create in the middle of the plan fails."""
    urn = selection.fault_target(r.plan, r.seed)
    r.cloud.fail_create(urn, "injected fault: the cloud rejects this create once")
    outcome = r.run(step, *APPLY)
    step.detail = f"the create of {diagnostics.resource_of(urn)} failed"
    if outcome.ok:
        r.unexpected(step, "the apply succeeded although the create of this resource failed", urn)
    elif not any(op.verb == "fail" and op.urn == urn for op in r.cloud.operations):
        r.failed(step, outcome)
    else:
        r.report.count_fault("create", 1)
        r.state_matches_cloud(step)


def _every_create(r: Rehearsal, step: Step) -> None:
    """Each create fails once, which takes as many runs as the longest dependency chain."""
    injector = FailOnce("create")
    runs = _until_all_injected(r, step, injector, {planned.urn for planned in r.plan}, APPLY)
    step.detail = f"each of {len(injector.injected['create'])} creates failed once, in {runs} applies"


def updates_with_faults(r: Rehearsal, step: Step) -> None:
    """Update every updatable resource: each update fails once, then succeeds, and affects nothing else."""
    found = selection.updatable(r.resources(), r.rules, r.seed) if r.fault == "all" else []
    # The values must differ from those of the `update` step.
    choices = [dataclasses.replace(choice, value=f"{choice.value}-again") for choice in found]
    if not choices:
        step.ran = False
        return
    done_before = len(r.cloud.operations)
    chosen = {choice.urn for choice in choices}
    injector = FailOnce("update", only=chosen)
    r.programs.changes += [choice.as_change() for choice in choices]
    runs = _until_all_injected(r, step, injector, chosen, APPLY)
    last = r.run(step, *APPLY) if step.ok else None
    operations = r.cloud.operations[done_before:]
    updated = {op.urn for op in operations if op.verb == "update"}
    step.resources, step.changes = len(chosen), {"update": len(updated)}
    step.detail = f"each of {len(injector.injected['update'])} updates failed once, in {runs} applies"
    if last is not None and not last.ok:
        r.failed(step, last)
    if not step.ok:
        return
    followers = {urn for choice in choices for urn in selection.dependents(r.resources(), choice.urn)}
    for op in operations:
        if op.verb in ("create", "delete") or (op.verb == "update" and op.urn not in chosen | followers):
            r.unexpected(step, f"should not be touched, but: {op.verb}", op.urn)
    for urn in sorted(chosen - updated):
        r.unexpected(step, "was changed but never updated", urn)
    r.state_matches_cloud(step)


def destroy_with_faults(r: Rehearsal, step: Step) -> Outcome:
    """Destroy while each delete fails once; return an outcome with the deletes of all runs."""
    kept = {
        resource["urn"]
        for resource in r.resources()
        if resource.get("retainOnDelete") or resource.get("deletedWith")
    }
    injector = FailOnce("delete")
    there = {resource["urn"] for resource in r.real()}
    steps = list[Outcome]()
    # Each run stops after the deletes in progress. With --continue-on-error, engine 3.200 takes minutes per
    # run on a stack of 300 resources, because after a failed delete it searches everything that might still
    # depend on it.
    runs = _until_all_injected(
        r,
        step,
        injector,
        there - kept,
        (*DESTROY, "--parallel", "64"),
        on_outcome=steps.append,
        kept=kept,
        continue_on_error=False,
    )
    last = r.run(step, *DESTROY)
    last.steps = [
        planned for outcome in steps for planned in outcome.steps if planned.urn not in outcome.failed
    ] + last.steps
    step.detail = f"each of {len(injector.injected['delete'])} deletes failed once, in {runs} runs"
    return last


def _until_all_injected(
    r: Rehearsal,
    step: Step,
    injector: FailOnce,
    targets: set[str],
    command: tuple[str, ...],
    *,
    on_outcome: Callable[[Outcome], None] | None = None,
    kept: Collection[str] = (),
    continue_on_error: bool = True,
) -> int:
    """Run a command until each target has failed once; return the number of runs.

    Args:
        r: the rehearsal.
        step: the row to fill.
        injector: fails the first operation on each resource.
        targets: URNs of the resources that must fail.
        command: engine command and flags.
        on_outcome: called with the outcome of each run.
        kept: URNs that a destroy leaves in the cloud.
        continue_on_error: whether a run continues with independent resources after a failure.
    """
    (verb,) = injector.verbs
    injected = injector.injected[verb]
    r.cloud.injector = injector
    runs = 0
    outcome = Outcome("")
    while runs < MAX_RUNS and targets - injected:
        before = len(injected)
        outcome = r.run(step, *command, *([CONTINUE] if continue_on_error else []))
        runs += 1
        if on_outcome:
            on_outcome(outcome)
        if outcome.ok or len(injected) == before or not r.state_matches_cloud(step, kept=kept):
            break
    r.cloud.injector = FaultInjector()
    r.report.count_fault(verb, len(injected))
    if step.ok and (left := sorted(targets - injected)):
        (
            r.failed(step, outcome)
            if not outcome.ok
            else r.unexpected(step, f"its {verb} was never attempted", left[0])
        )
    return runs


def _crash(r: Rehearsal, step: Step) -> None:
    """Kill the engine just after a create, remove its lock, and import what the cloud has into the state."""
    urn = selection.fault_target(r.plan, r.seed)
    r.cloud.injector = Crash(urn, r.runner.kill)
    outcome = r.run(step, *APPLY, checkpoints=True)
    r.programs.kill()
    r.cloud.injector = FaultInjector()
    if outcome.ok or r.cloud.of_urn(urn) is None:
        r.failed(step, outcome)
        return
    r.report.count_fault("crash", 1)
    cancelled = r.runner.run("cancel", "--yes", r.runner.sandbox.stack, events=False)
    step.seconds += cancelled.seconds
    if not cancelled.ok:
        r.failed(step, cancelled)
        return
    pending = r.pending()
    found = [operation for operation in pending if r.cloud.of_urn(operation["urn"])]
    if urn not in {operation["urn"] for operation in found}:
        r.unexpected(
            step, "was created when the engine died, but the state has no pending operation for it", urn
        )
        return
    step.detail = (
        f"engine killed while it created {diagnostics.resource_of(urn)}; {len(pending)} operations pending,"
        f" {len(found)} of them done in the cloud and imported into the state"
    )
    _adopt(r, step, found)


def _adopt(r: Rehearsal, step: Step, found: list[dict[str, Any]]) -> None:
    """Clear the pending creates, then import those that exist.

    `refresh --import-pending-creates` cannot be used: engine 3.200 marks them as importing, imports nothing
    and drops them.
    """
    names: dict[str, str] = {}
    targets = []
    for operation in found:
        record = r.cloud.of_urn(operation["urn"])
        assert record is not None
        entry = {"type": operation["type"], "name": operation["urn"].rsplit("::", 1)[-1], "id": record.id}
        for role, urn in (
            ("parent", operation.get("parent", "")),
            ("provider", str(operation.get("provider", "")).rsplit("::", 1)[0]),
        ):
            if urn and "pulumi:pulumi:Stack" not in urn.rsplit("::", 2)[-2]:
                entry[role] = names.setdefault(urn, f"{role}-{len(names)}")
        targets.append(entry)
    file = r.runner.sandbox.file("import.json")
    file.write_text(
        json.dumps({"nameTable": {name: urn for urn, name in names.items()}, "resources": targets})
    )
    quiet = ("--yes", "--skip-preview")
    for command in (
        ("refresh", *quiet, "--clear-pending-creates"),
        ("import", *quiet, "--file", str(file), "--generate-code=false", "--protect=false"),
    ):
        outcome = r.run(step, *command)
        if not outcome.ok:
            r.failed(step, outcome)
            return
    r.state_matches_cloud(step)


def _throttle(r: Rehearsal, step: Step) -> None:
    """Throttle creates: the provider retries some and gives up on others, which the resumed apply creates."""
    injector = Throttle(r.seed, selection.fault_target(r.plan, r.seed))
    r.cloud.injector = injector
    if _apply_while_injecting(r, step, lambda: len(injector.gave_up)):
        r.report.count_fault("throttle", len(injector.gave_up))
        step.detail = (
            f"{injector.absorbed} creates succeeded after throttling, {len(injector.gave_up)} failed and"
            " succeeded in a later apply"
        )


def _lag(r: Rehearsal, step: Step) -> None:
    """New resources are invisible to their users at first; a resumed apply finds them."""
    if not any(planned.token in PRINCIPALS for planned in r.plan):
        step.detail = "nothing to delay: no role, service account or identity"
    injector = Lag()
    r.cloud.injector = injector
    if _apply_while_injecting(r, step, lambda: len(injector.injected)) and injector.injected:
        r.report.count_fault("lag", len(injector.injected))
        step.detail = (
            f"{len(injector.injected)} creates did not find a new role or identity, and succeeded in a later"
            " apply"
        )


def _hang(r: Rehearsal, step: Step) -> None:
    """A create exceeds its timeout but succeeds; a resumed apply waits for it and does not repeat it."""
    injector = Hang(selection.fault_target(r.plan, r.seed))
    r.cloud.injector = injector
    if _apply_while_injecting(r, step, lambda: len(injector.injected), leave=1):
        r.not_ready = {resource["urn"] for resource in r.resources() if resource.get("initErrors")}
        r.report.count_fault("hang", len(injector.injected))
        step.detail = (
            f"{len(injector.injected)} creates timed out; the resumed apply repairs {len(r.not_ready)}"
        )


def _apply_while_injecting(r: Rehearsal, step: Step, injected: Callable[[], int], *, leave: int = 0) -> bool:
    """Apply until it succeeds or nothing more is injected.

    With `leave`, run only once, so that the resumed apply has something to do.
    """
    for _ in range(1 if leave else MAX_RUNS):
        before = injected()
        r.cloud.injector.advance_time()
        outcome = r.run(step, *APPLY, CONTINUE)
        if outcome.ok:
            break
        if injected() == before:
            r.failed(step, outcome)
            break
        if not r.state_matches_cloud(step):
            break
    return step.ok


FAULTS: dict[str, Callable[[Rehearsal, Step], None]] = {
    "one": _one,
    "every": _every_create,
    "all": _every_create,
    "crash": _crash,
    "throttle": _throttle,
    "lag": _lag,
    "hang": _hang,
}
"""The values of `--fault` and what each does to the first apply."""
