"""Renders a recorded preview of a real stack as a diff: no engine, no project and no account needed."""

from __future__ import annotations

import time
from pathlib import Path

from trainfleet.errors import InputError, Problem
from trainfleet.infra.catalog.cost import Bill, CostLimits
from trainfleet.infra.catalog.planned import bill_of_plan
from trainfleet.infra.catalog.usage import Usage
from trainfleet.rehearsal.diff import compare, event_log
from trainfleet.rehearsal.diff.charts import chart_notes
from trainfleet.rehearsal.diff.drift import drift_of
from trainfleet.rehearsal.diff.event_log import EventLog
from trainfleet.rehearsal.diff.model import Diff, Failing
from trainfleet.rehearsal.diff.plan_file import check_same_preview, read_plan
from trainfleet.rehearsal.diff.planned_cost import Dependencies, applied_plan, dependencies, previewed_plan
from trainfleet.rehearsal.diff.worktrees import Revision


def diff_of(
    file: Path,
    stack: str = "",
    *,
    accept_unknown: bool = False,
    plan: Path | None = None,
    usage: Usage | None = None,
    limits: CostLimits | None = None,
) -> Diff:
    """Return the diff that a recording describes.

    Args:
        file: an event log or a digest, see `event_log`.
        stack: the stack that it has to be of; empty: any.
        accept_unknown: whether an incomplete recording counts as a whole one.
        plan: the plan that the same preview saved; its digest is shown, and costs follow its dependencies.
        usage: what is used, on both sides of the cost.
        limits: what the stack may cost.

    Raises:
        InputError: the file is not a recording, or of another stack, or the plan is of another preview.
    """
    began = time.monotonic()
    log = event_log.read(file)
    if stack and log.stack and stack != log.stack:
        what = f"is of the stack `{log.stack}`, not `{stack}`"
        fix = f"trainfleet diff --events {file}"
        raise InputError("the preview is of another stack", [Problem(str(file), what, fix)])
    saved = read_plan(plan) if plan else None
    if saved:
        check_same_preview(saved, log.steps, file)
    changes, unchanged = compare.changes(log.steps, log.before, real_preview=True)
    failing = tuple(
        Failing(each.policy, each.urn.rsplit("::", 1)[-1], each.message, each.level)
        for each in log.violations
    )
    before, after = _bills(log, dependencies(saved.path) if saved else {}, usage)
    notes = [f"Plan: {saved.path.name}, SHA-256 {saved.sha256}"] if saved else []
    notes += chart_notes(changes, "a recording does not contain them")
    return Diff(
        stack=log.stack or stack or "(no resources)",
        base=Revision("deployed state", "", ""),
        head=Revision(file.name, "", "", f"project {log.project}" if log.project else ""),
        stack_is="there",
        changes=tuple(changes),
        before=before,
        after=after,
        newly_failing=failing,
        policies_ran=bool(failing) or any("policyAnalyzeSummaryEvent" in event for event in log.events),
        notes=(*notes, *_notes(log, priced=after is not None)),
        seconds=time.monotonic() - began,
        unchanged=unchanged,
        accept_unknown=accept_unknown,
        limits=limits or CostLimits(),
        incomplete=tuple(log.incomplete),
        drift=tuple(drift_of(log.events)),
        plan_sha256=saved.sha256 if saved else "",
    )


def _notes(log: EventLog, priced: bool) -> list[str]:
    notes = [*log.notes, "Computed by the real providers. A recording has no settings."]
    if priced and log.form == "digest" and not any(step["op"] == "same" for step in log.steps):
        notes.append(
            "The document has no unchanged resources (--show-sames): their cost is not in the totals of"
            " either side."
        )
    if log.violations:
        notes.append("A recording has no base: all policy violations are listed, not only new ones.")
    if imported := sum(step["op"] in ("import", "import-replacement") for step in log.steps):
        notes.append(f"{imported} existing resources are imported into the stack.")
    return notes


def _bills(log: EventLog, depends: Dependencies, usage: Usage | None) -> tuple[Bill | None, Bill | None]:
    """Return the costs before and after; None if the recording is incomplete, or nothing has a price."""
    if log.incomplete:
        return None, None
    # A digest may leave out what the step says of itself.
    steps = [
        {**step, "new": {**step["new"], "urn": step["urn"], "type": step["type"]}}
        if step.get("new")
        else step
        for step in log.steps
    ]
    types = {step["urn"]: step["type"] for step in log.steps}
    before = bill_of_plan(applied_plan({**each, "type": types[each["urn"]]} for each in log.before), usage)
    after = bill_of_plan(previewed_plan(steps, depends), usage)
    return (before, after) if before.parts or after.parts else (None, None)
