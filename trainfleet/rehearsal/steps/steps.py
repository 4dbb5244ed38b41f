"""The steps of a rehearsal in order: what each runs and what it expects.

Each step is a function that takes a `Rehearsal` and fills a row (`Step`). A failed expectation sets `ok` to
False and adds a problem that names the resource.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from trainfleet.rehearsal.engine.engine_cli import Outcome
from trainfleet.rehearsal.report import Step
from trainfleet.rehearsal.simulation.pulumi_values import plain
from trainfleet.rehearsal.simulation.stateful_rules import is_name_kept
from trainfleet.rehearsal.steps import fault_scenarios, selection
from trainfleet.rehearsal.steps.session import APPLY, DESTROY, Rehearsal, counted


def preview(r: Rehearsal, step: Step) -> None:
    """Preview the empty stack: every operation is a create, and all inputs pass Check."""
    outcome = r.run(step, "preview")
    r.everything = [planned for planned in outcome.steps if planned.new is not None]
    r.plan = selection.managed(outcome.steps)
    step.resources, step.changes = len(r.plan), outcome.count() and {"create": len(r.plan)}
    if not outcome.ok:
        r.failed(step, outcome)
        return
    r.missing_rules = selection.missing_rules((planned.token for planned in r.plan), r.rules)
    if r.missing_rules:
        step.detail = (
            f"{len(r.missing_rules)} type{'s' * (len(r.missing_rules) > 1)} without replacement rules"
        )
    if others := {op for op in r.only(outcome).values() if op != "create"}:
        r.unexpected(step, f"an empty stack should only create; this would {', '.join(sorted(others))}")
    if not r.plan:
        step.detail = "the program creates nothing"


def policies(r: Rehearsal, step: Step) -> None:
    """Preview again with the policy packs."""
    if not r.policy_packs:
        step.ran, step.detail = False, "no policy pack"
        return
    outcome = r.run(step, "preview", *r.packs())
    step.resources = len(r.plan)
    advisory = len({violation.policy for violation in outcome.violations if violation.level == "advisory"})
    step.detail = f"{advisory} advisory" if advisory else ""
    if not outcome.ok:
        r.failed(step, outcome)


def resume(r: Rehearsal, step: Step) -> None:
    """Resume the apply: only missing resources may be created. Policies check the real values."""
    if not r.plan:
        step.ran = False
        return
    before = {record.urn for record in r.cloud.records.values()}
    outcome = r.run(step, *APPLY, *r.packs())
    done = r.only(outcome)
    step.resources, step.changes = len(r.plan), outcome.count() and counted(done.values())
    if not outcome.ok:
        r.failed(step, outcome)
        return
    step.detail = f"only the {len(done)} that were missing" if before else ""
    missing = {planned.urn for planned in r.plan} - before
    for urn, op in done.items():
        if op != ("update" if urn in r.not_ready else "create") or (urn in before and urn not in r.not_ready):
            r.unexpected(step, f"should not be touched by a resumed apply, but: {op}", urn)
    for urn in sorted(missing - set(done)):
        r.unexpected(step, "was planned but not created", urn)
    r.no_duplicates(step)
    _read_outputs(r)


def _read_outputs(r: Rehearsal) -> None:
    shown = r.runner.run(
        "stack", "output", "--json", "--show-secrets", "--stack", r.runner.sandbox.stack, events=False
    )
    if shown.ok:
        r.outputs = json.loads(shown.output or "{}")


def no_op(r: Rehearsal, step: Step) -> None:
    """Preview right after the apply: no changes are expected."""
    outcome = r.run(step, "preview", "--diff")
    step.resources, step.changes = len(r.real()), counted(r.only(outcome).values())
    if not outcome.ok:
        r.failed(step, outcome)
    for planned in outcome.steps:
        if planned.urn in r.only(outcome) and step.ok is not None:
            keys = ", ".join(planned.keys) or "unknown properties"
            r.unexpected(step, f"a second run would {planned.op} it, because of {keys}", planned.urn)


def refresh(r: Rehearsal, step: Step) -> None:
    """Refresh an unchanged stack: no drift is expected."""
    outcome = r.run(step, "refresh", "--yes", "--skip-preview")
    step.resources = len(r.real())
    step.changes = {op: count for op, count in outcome.changes.items() if op != "same"}
    if not outcome.ok:
        r.failed(step, outcome)
    elif step.changes:
        r.unexpected(step, f"refresh finds changes where nothing changed: {step.changes}")


def update(r: Rehearsal, step: Step) -> None:
    """Change a label of one resource: only that resource is updated, in place."""
    choice = _first(selection.updatable(r.resources(), r.rules, r.seed), r)
    if choice is None:
        step.ran, step.detail = False, "no resource with labels, tags or a description"
        return
    outcome = _change(r, step, choice)
    step.detail = choice.shown
    if outcome.ok and r.only(outcome) != {choice.urn: "update"}:
        for urn, op in r.only(outcome).items():
            if urn != choice.urn or op != "update":
                r.unexpected(step, f"a change of {choice.shown} should update it alone, but: {op}", urn)
        if not r.only(outcome):
            r.unexpected(
                step, "the change had no effect: is the property ignored (ignore_changes)?", choice.urn
            )


def replacement(r: Rehearsal, step: Step) -> None:
    """Change an immutable property: the resource is replaced, and only its dependents follow."""
    choice = _first(selection.replaceable(r.resources(), r.rules, r.seed), r)
    if choice is None:
        step.ran, step.detail = False, "no resource whose replacement is known"
        return
    before = r.cloud.of_urn(choice.urn)
    followers = selection.dependents(r.resources(), choice.urn)
    outcome = _change(r, step, choice)
    step.detail = choice.shown
    if not outcome.ok:
        return
    ops = r.only(outcome)
    if ops.get(choice.urn) != "replace":
        r.unexpected(
            step,
            f"a change of {'.'.join(choice.path)} should replace it, but: {ops.get(choice.urn, 'nothing')}",
            choice.urn,
        )
    for urn in set(ops) - followers - {choice.urn}:
        r.unexpected(step, f"does not depend on {choice.name}, but: {ops[urn]}", urn)
    if followed := len(set(ops) & followers):
        step.detail += f", {followed} followed"
    after = r.cloud.of_urn(choice.urn)
    if before is not None and after is not None and before.id != after.id:
        _no_trace_of(r, step, before.id, choice.urn)


def _no_trace_of(r: Rehearsal, step: Step, resource_id: str, urn: str) -> None:
    """Check that no other resource refers to the replaced one; its own new name may contain the old one."""
    if not re.search(r"[0-9a-f]{7}", resource_id):  # an ordinary word that unrelated text may contain
        return
    for record in list(r.cloud.records.values()):
        if record.urn != urn and re.search(
            rf"(?<![\w-]){re.escape(resource_id)}(?![\w-])", json.dumps(plain(record.inputs))
        ):
            r.unexpected(step, f"still refers to {resource_id}, which was replaced", record.urn)


def drift(r: Rehearsal, step: Step) -> None:
    """Edit a resource behind the engine's back: refresh detects it, and the next apply repairs it."""
    choice = _first(
        [each for each in selection.updatable(r.resources(), r.rules, r.seed + 1) if len(each.path) > 1], r
    )
    if choice is None:
        step.ran, step.detail = False, "no resource with labels or tags"
        return

    def edit(values: dict[str, Any]) -> None:
        for part in choice.path[:-1]:
            values = values.setdefault(part, {})
        values["edited-by-hand"] = "yes"

    r.cloud.drift(choice.urn, edit)
    step.resources, step.detail = 1, choice.name

    def still() -> str:
        record = r.cloud.of_urn(choice.urn)
        return (
            "still has the manual change"
            if record is not None and "edited-by-hand" in json.dumps(record.inputs)
            else ""
        )

    found_and_put_right(r, step, choice.urn, still)


def found_and_put_right(r: Rehearsal, step: Step, urn: str, still: Callable[[], str]) -> None:
    """Check that refresh detects exactly one change and that the next apply reverts only that.

    `still` returns what is wrong after the apply, or an empty string.
    """
    found = r.run(step, "refresh", "--yes", "--skip-preview")
    if not found.ok:
        r.failed(step, found)
        return
    if {op: count for op, count in found.changes.items() if op != "same"} != {"update": 1}:
        r.unexpected(step, f"refresh should find only this change, but found {found.changes}", urn)
        return
    repaired = r.run(step, *APPLY)
    step.changes = counted(r.only(repaired).values())
    if not repaired.ok:
        r.failed(step, repaired)
    elif r.only(repaired) != {urn: "update"}:
        r.unexpected(
            step, f"the next apply should repair it and change nothing else, but: {r.only(repaired)}", urn
        )
    elif wrong := still():
        r.unexpected(step, wrong, urn)


def unprotect(r: Rehearsal, step: Step) -> None:
    """Remove the protection of protected resources, which a destroy refuses to delete."""
    protected = [resource["urn"] for resource in r.resources() if resource.get("protect")]
    step.resources = len(protected)
    if not protected:
        step.ran = False
        return
    names = sorted(urn.rsplit("::", 1)[-1] for urn in protected)
    step.detail = f"protected, so a destroy refuses until lifted: {', '.join(names)}"
    outcome = r.runner.run(
        "state", "unprotect", "--all", "--yes", "--stack", r.runner.sandbox.stack, events=False
    )
    step.seconds += outcome.seconds
    if not outcome.ok:
        r.failed(step, outcome)


def destroy(r: Rehearsal, step: Step) -> None:
    """Destroy the stack: only resources with retain_on_delete may remain."""
    retained = {resource["urn"] for resource in r.resources() if resource.get("retainOnDelete")}
    step.resources = len(r.real())
    outcome = fault_scenarios.destroy_with_faults(r, step) if r.fault == "all" else r.run(step, *DESTROY)
    step.changes = counted("keep" if urn in retained else op for urn, op in r.only(outcome).items())
    if not outcome.ok:
        r.failed(step, outcome)
        return
    for resource in r.resources():
        r.unexpected(step, "is left in the engine's state", resource["urn"])
    left = [record.urn for record in r.cloud.records.values()]
    for urn in left:
        if urn not in retained:
            r.unexpected(step, "still exists in the cloud", urn)
    if kept := sorted({urn.rsplit("::", 1)[-1] for urn in left if urn in retained}):
        step.detail = f"kept by retain_on_delete: {', '.join(kept)}"


def apply_again(r: Rehearsal, step: Step) -> None:
    """Apply once more: the cloud may keep names of what the destroy deleted. Runs only if it keeps some, and
    if nothing is retained, which has to be imported first.
    """
    keeping = [record for record in r.cloud.deleted if is_name_kept(record)]
    if not keeping or r.cloud.records:
        step.ran = False
        return
    r.programs.changes.clear()  # as written, without the names that earlier steps set
    outcome = r.run(step, *APPLY)
    step.resources, step.changes = len(r.plan), outcome.count() and counted(r.only(outcome).values())
    step.detail = f"the cloud keeps the names of {len({record.urn for record in keeping})} deleted resources"
    if not outcome.ok:
        r.failed(step, outcome)


def _change(r: Rehearsal, step: Step, choice: selection.Choice) -> Outcome:
    r.programs.changes.append(choice.as_change())
    r.touched.add(choice.urn)
    outcome = r.run(step, *APPLY)
    step.resources, step.changes = 1, counted(r.only(outcome).values())
    if not outcome.ok:
        r.failed(step, outcome)
    return outcome


def _first(choices: list[selection.Choice], r: Rehearsal) -> selection.Choice | None:
    fresh = [choice for choice in choices if choice.urn not in r.touched]
    return next(iter(fresh or choices), None)


STEPS: tuple[tuple[str, str, Callable[[Rehearsal, Step], None]], ...] = (
    ("preview", "preview", preview),
    ("policies", "policies", policies),
    ("apply-fault", "apply, interrupted", fault_scenarios.apply_with_fault),
    ("apply", "apply, resumed", resume),
    ("no-op", "no-op", no_op),
    ("refresh", "refresh", refresh),
    ("update", "update in place", update),
    ("update-fault", "every update fails once", fault_scenarios.updates_with_faults),
    ("replace", "replacement", replacement),
    ("drift", "drift found and repaired", drift),
    ("unprotect", "protection lifted", unprotect),
    ("destroy", "destroy", destroy),
    ("again", "applied again", apply_again),
)
