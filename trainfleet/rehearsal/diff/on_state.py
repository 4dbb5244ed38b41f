"""Computes a diff against what is deployed: restores a stack's export and previews the head on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from trainfleet.errors import InputError, Problem
from trainfleet.infra.catalog.planned import Plan, bill_of_plan
from trainfleet.rehearsal.diff import compare, exports
from trainfleet.rehearsal.diff.access import AccessChange, access_changes, planned_after, planned_before
from trainfleet.rehearsal.diff.change import Change
from trainfleet.rehearsal.diff.chart_policies import failing_in_charts
from trainfleet.rehearsal.diff.charts import chart_sides, compare_charts, folders_of
from trainfleet.rehearsal.diff.diff import DiffOptions, Show, check_head, head_of
from trainfleet.rehearsal.diff.exports import Export
from trainfleet.rehearsal.diff.helm.comparison import ChartDiff
from trainfleet.rehearsal.diff.helm.find import Folders
from trainfleet.rehearsal.diff.model import Diff, Failing
from trainfleet.rehearsal.diff.planned_cost import applied_plan, previewed_plan
from trainfleet.rehearsal.diff.plugin_components import component_notes
from trainfleet.rehearsal.diff.settings import STAND_IN, for_build, stack_file
from trainfleet.rehearsal.diff.two_sided_run import Session, Side, session
from trainfleet.rehearsal.diff.violations import newly_failing
from trainfleet.rehearsal.diff.worktrees import Repository, Revision, scratch
from trainfleet.rehearsal.engine.engine_cli import Violation
from trainfleet.rehearsal.engine.find import Engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.rehearsal.simulation.deployed import deployed


def compute_on_state(
    stack: str,
    root: Path,
    find_engine: Callable[[], Engine],
    options: DiffOptions,
    show: Show | None = None,
) -> Diff:
    """Compute the diff between the export `options.state` and the head.

    Args:
        stack: name of the stack; a stack without a settings file in the head is deleted.
        root: the project folder in the user's checkout.
        find_engine: returns the engine; called after the input is validated.
        options: the head and the export.
        show: progress callbacks.

    Raises:
        TrainfleetError: the export cannot be used, or the head cannot be built.
    """
    assert options.state is not None
    show = show or Show()
    began = time.monotonic()
    export = exports.read(options.state)
    repository = Repository(root)
    head = head_of(repository, options)
    with scratch() as folder:
        show.begin("checking out the head")
        head_root = repository.check_out(head, folder / "head")
        file = stack_file(head_root, stack, f"the head ({head.short})") if head_root.is_dir() else None
        notes = check_head(file, head)
        if file is None:
            _check_owner(export, export.project, stack, accept=options.accept_other_stack)
            found, ran = HeadPreview(compare.deletions(export.resources)), True
        else:
            project = read_project(head_root, stack)
            export = _check_owner(export, project.name, stack, accept=options.accept_other_stack)
            side = Side("head", head, project, for_build(file.document, date.min)[0])
            with session(find_engine(), folder, show.resource) as on:
                found = _preview(on, side, export, show, charts=options.charts)
            ran = side.pack is not None
    return Diff(
        stack,
        Revision(f"deployed, {options.state.name}", "", ""),
        head,
        "there" if file is not None else "deleted",
        tuple(found.changes),
        bill_of_plan(applied_plan(export.resources if file is None else export.compared), options.usage),
        None if found.plan is None else bill_of_plan(found.plan, options.usage),
        found.failing,
        ran,
        notes=(*notes, *found.notes, *export.notes(), "An export has no spec: settings are not compared."),
        seconds=time.monotonic() - began,
        unchanged=found.unchanged,
        access=found.access,
        charts=found.charts,
        limits=options.limits,
        accept_unknown=options.accept_unknown,
        settings_file=file.shown_as if file is not None else "",
    )


def _check_owner(export: Export, project: str, stack: str, *, accept: bool) -> Export:
    """Return the export as one of this project and stack.

    Raises:
        InputError: it is of another one, and nobody accepts that; names what differs.
    """
    pairs = (("project", export.project, project), ("stack", export.stack, stack))
    wrong = [
        Problem(
            f"{export.file}: {what}", f"is `{theirs}`, not `{ours}`", "--accept-other-stack compares anyway"
        )
        for what, theirs, ours in pairs
        if theirs != ours
    ]
    if wrong and not accept:
        raise InputError("the export is of another stack", wrong)
    return exports.renamed(export, project, stack) if wrong else export


@dataclass(frozen=True)
class HeadPreview:
    """What the preview on an export found; `plan` None: the stack is deleted."""

    changes: list[Change]
    unchanged: int = 0
    failing: tuple[Failing, ...] = ()
    notes: tuple[str, ...] = ()
    plan: Plan | None = None
    access: tuple[AccessChange, ...] = ()
    charts: tuple[ChartDiff, ...] = ()


def _preview(on: Session, side: Side, export: Export, show: Show, *, charts: bool) -> HeadPreview:
    show.begin("restoring what is deployed")
    applied, secret_keys = on.restore(side, export.document)
    stand_ins = [STAND_IN, *(f"rehearsal-{key.replace(':', '-')}" for key in secret_keys)]
    on.cloud.deployed = deployed(export.resources, stand_ins)
    on.cloud.remember(export.resources)
    show.begin("previewing the head on it")
    outcome, events = on.preview(side, applied.without_protection())
    changes, unchanged = compare.changes(events, applied.resources(), real_ids=True)
    failing, others = _violations(outcome.violations, changes)
    notes = (f"{others} policy violations of unchanged resources are not listed.",) if others else ()
    state, head = applied.resources(), folders_of(side.project, on.scratch / "head")
    sides = chart_sides(state, events, Folders(), head)
    rendered = compare_charts(*sides, changes, state, on.scratch, download=charts)
    in_charts, chart_notes = failing_in_charts(rendered, side.pack, side.pack_root, side.settings)
    granted = planned_before(state)
    after = [*planned_after(events, granted), *rendered.after]
    access = tuple(access_changes([*granted, *rendered.before], after))
    return HeadPreview(
        changes,
        unchanged,
        (*failing, *in_charts),
        (*notes, *component_notes(events), *rendered.notes, *chart_notes),
        previewed_plan(events, on.depends),
        access,
        rendered.diffs,
    )


def _violations(found: Iterable[Violation], changes: Iterable[Change]) -> tuple[tuple[Failing, ...], int]:
    """Return the violations of what changes or of the whole stack, and the number of the others."""
    changed = {change.urn for change in changes}
    found = list(found)
    ours = [
        each for each in found if not each.urn or each.urn in changed or "pulumi:pulumi:Stack" in each.urn
    ]
    return newly_failing((), ours), len(found) - len(ours)
