"""Computes a diff: applies the base to a simulated cloud (or loads it from the cache) and previews the head.

`compute` is the entry point. It raises a `TrainfleetError` that names the side at fault.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

from trainfleet.dates import as_of, today
from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.infra.catalog.cost import Bill, CostLimits
from trainfleet.infra.catalog.planned import Plan
from trainfleet.infra.catalog.usage import Usage
from trainfleet.infra.spec.load import load_stack
from trainfleet.infra.spec.stack_file import PLATFORM_KEY, StackFile
from trainfleet.rehearsal.diff import bootstrap, cache, compare, environments, policy_changes
from trainfleet.rehearsal.diff.access import AccessChange, access_changes, planned_after, planned_before
from trainfleet.rehearsal.diff.change import Change
from trainfleet.rehearsal.diff.chart_policies import failing_in_charts
from trainfleet.rehearsal.diff.charts import chart_sides, compare_charts, folders_of
from trainfleet.rehearsal.diff.environments import Environments
from trainfleet.rehearsal.diff.helm.comparison import ChartDiff
from trainfleet.rehearsal.diff.helm.find import Folders
from trainfleet.rehearsal.diff.model import Diff, Failing
from trainfleet.rehearsal.diff.planned_cost import applied_plan, costs, previewed_plan
from trainfleet.rehearsal.diff.plugin_components import component_notes
from trainfleet.rehearsal.diff.policy_changes import Weakened
from trainfleet.rehearsal.diff.replacement_changes import replacement_changes
from trainfleet.rehearsal.diff.sdk_changes import SdkChange, sdk_changes
from trainfleet.rehearsal.diff.settings import built_on, for_build, spec_changes, stack_file
from trainfleet.rehearsal.diff.two_sided_run import Applied, Session, Side, same_project, session
from trainfleet.rehearsal.diff.violations import newly_failing, with_base
from trainfleet.rehearsal.diff.worktrees import Repository, Revision, refuse_uncommitted, scratch
from trainfleet.rehearsal.engine.engine_cli import Violation
from trainfleet.rehearsal.engine.find import Engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.suggestions import did_you_mean


@dataclass(frozen=True)
class DiffOptions:
    """Options of a diff; empty revisions are chosen by `sides`."""

    base: str = ""
    head: str = ""
    worktree: bool = False
    use_cache: bool = True
    accept_unknown: bool = False
    """Whether updates that may replace count as updates in the verdict."""
    usage: Usage | None = None
    """What is used, on both sides; None: nothing is assumed."""
    limits: CostLimits = field(default_factory=CostLimits)
    environments: str = ""
    """`own`, `same`, or empty: own if the sides lock other provider SDKs and they can be installed."""
    state: Path | None = None
    """The export of the deployed stack, which takes the place of the base."""
    accept_other_stack: bool = False
    """Whether the export may be of another stack or project."""
    charts: bool = False
    """Whether helm may download the charts that are rendered."""


@dataclass(frozen=True)
class Show:
    """Progress callbacks: a phase begins, a resource is done."""

    begin: Callable[[str], None] = lambda _: None
    resource: Callable[[str, int], None] = lambda *_: None


def sides(repository: Repository, options: DiffOptions) -> tuple[Revision, Revision]:
    """Return the base and the head.

    Raises:
        InputError: an unknown revision, uncommitted changes, or nothing to compare with.
    """
    head = head_of(repository, options)
    base = repository.revision(options.base, "--base") if options.base else repository.default_base(head)
    return base, head


def head_of(repository: Repository, options: DiffOptions) -> Revision:
    """Return the head.

    Raises:
        InputError: an unknown revision, or uncommitted changes.
    """
    if options.worktree and options.head not in ("", "."):
        raise InputError(
            "conflicting options",
            [Problem("--head", f"is `{options.head}`, which conflicts with --worktree", "omit one of them")],
        )
    if options.worktree or options.head == ".":
        return repository.working_tree()
    head = repository.revision(options.head or "HEAD", "--head")
    if not options.head:
        refuse_uncommitted(repository)
    return head


def compute(
    stack: str,
    root: Path,
    find_engine: Callable[[], Engine],
    options: DiffOptions | None = None,
    show: Show | None = None,
) -> Diff:
    """Compute the diff of a stack.

    Args:
        stack: name of the stack; a stack on only one side is new or deleted.
        root: the project folder in the user's checkout.
        find_engine: returns the engine; called after the input is validated.
        options: the revisions and how to compare them.
        show: progress callbacks.

    Raises:
        TrainfleetError: a side cannot be found, read or built.
    """
    options, show = options or DiffOptions(), show or Show()
    began = time.monotonic()
    repository = Repository(root)
    base, head = sides(repository, options)
    with scratch() as folder:
        show.begin("checking out both sides")
        base_root = repository.check_out(base, folder / "base")
        head_root = repository.check_out(head, folder / "head")
        base_file = stack_file(base_root, stack, f"the base ({base.short})") if base_root.is_dir() else None
        head_file = stack_file(head_root, stack, f"the head ({head.short})") if head_root.is_dir() else None
        _exists(stack, base_file, head_file, (base_root, head_root))
        notes = check_head(head_file, head)
        prepared = _Prepared(stack, base, head, (base_root, head_root), (base_file, head_file))
        if base.tree and base.tree == head.tree:
            result = _Result(notes=["both sides are the same files"])
        else:
            engine = find_engine()
            if base_file is not None and head_file is not None:
                prepared = prepared.with_environments(repository.prefix, options.environments, show)
            with session(engine, folder, show.resource) as on:
                result = prepared.run(on, repository.prefix, options, show)
                result.notes[:0] = notes
    bills, cost_notes = costs(result.plans, (base_file, head_file), options.usage)
    result.notes += cost_notes
    return prepared.diff(result, bills, options, time.monotonic() - began)


class _Result:
    """The results of the engine."""

    def __init__(self, notes: Iterable[str] = ()) -> None:
        self.changes: list[Change] = []
        self.unchanged = 0
        self.plans: tuple[Plan | None, Plan | None] = (None, None)
        self.violations_before: list[Violation] = []
        self.violations_after: list[Violation] = []
        self.policies_ran = True
        self.from_cache = False
        self.weakened: list[Weakened] = []
        self.access: list[AccessChange] = []
        self.sdk: list[SdkChange] = []
        self.charts: tuple[ChartDiff, ...] = ()
        self.in_charts: tuple[Failing, ...] = ()
        self.notes = list(notes)


@dataclass(frozen=True)
class _Prepared:
    """Both checkouts, ready for the engine."""

    stack: str
    base: Revision
    head: Revision
    roots: tuple[Path, Path]
    files: tuple[StackFile | None, StackFile | None]
    environments: Environments = field(default_factory=Environments)

    def diff(
        self, result: _Result, bills: tuple[Bill | None, Bill | None], options: DiffOptions, seconds: float
    ) -> Diff:
        """Return the diff with these results."""
        return Diff(
            self.stack,
            self.base,
            self.head,
            "new" if self.files[0] is None else "deleted" if self.files[1] is None else "there",
            tuple(result.changes),
            *bills,
            (*newly_failing(result.violations_before, result.violations_after), *result.in_charts),
            result.policies_ran,
            tuple(spec_changes(*self.files)),
            tuple(result.notes),
            seconds,
            result.from_cache,
            result.unchanged,
            weakened=tuple(result.weakened),
            accept_unknown=options.accept_unknown,
            access=tuple(result.access),
            limits=options.limits,
            upgrades=self.environments.upgrades,
            sdk=tuple(result.sdk),
            charts=result.charts,
            settings_file=file.shown_as if (file := self.files[1] or self.files[0]) else "",
            is_bootstrap=bootstrap.is_bootstrap(self.files),
        )

    def with_environments(self, prefix: str, mode: str, show: Show) -> _Prepared:
        """Return the same with the provider SDKs that each side locks.

        Raises:
            InputError: the mode is `own` and an SDK cannot be installed.
        """
        return replace(self, environments=environments.prepare(self.roots, prefix, mode, show.begin))

    def run(self, on: Session, prefix: str, options: DiffOptions, show: Show) -> _Result:
        """Apply the base, preview the head on it, and compare."""
        result = _Result(self.environments.notes)
        applied: Applied | None = None
        base: Side | None = None
        if self.files[0] is not None:
            base, notes = self._side("base", 0)
            result.notes += notes
            show.begin("applying the base to a simulated cloud")
            applied, result.from_cache = self._applied(on, base, prefix, options)
        before = applied_plan(applied.resources()) if applied else None
        if self.files[1] is None:
            result.plans = (before, None)
            result.changes = compare.deletions(applied.resources() if applied else [])
            return result
        head, notes = self._side("head", 1)
        result.notes += notes
        if base is not None:
            same_project(base.project, head.project)
        show.begin("previewing the head on it")
        outcome, events = on.preview(head, applied.without_protection() if applied else None)
        result.plans = (before, previewed_plan(events, on.depends))
        result.violations_after, result.policies_ran = outcome.violations, head.pack is not None
        state = applied.resources() if applied else []
        result.changes, result.unchanged = compare.changes(events, state)
        result.notes += component_notes(events)
        result.sdk = self._sdk_changes(on, [*state, *events])
        replacing, notes = replacement_changes(
            {str(each["type"]) for each in (*state, *events)},
            self.environments.upgrades,
            self.roots,
            result.sdk,
        )
        result.sdk += replacing
        result.notes += notes
        show.begin("rendering the charts that differ")
        places = folders_of(base.project, on.scratch / "base") if base else Folders()
        charts = chart_sides(state, events, places, folders_of(head.project, on.scratch / "head"))
        rendered = compare_charts(*charts, result.changes, state, on.scratch, download=options.charts)
        result.in_charts, notes = failing_in_charts(rendered, head.pack, head.pack_root, head.settings)
        result.charts, granted = rendered.diffs, planned_before(state)
        result.notes += [*rendered.notes, *notes]
        after = [*planned_after(events, granted), *rendered.after]
        result.access = access_changes([*granted, *rendered.before], after)
        if base is not None and applied is not None:
            result.weakened, notes = self._weakened(base, head)
            result.notes += notes
            if base.pack and policy_changes.digest(base.pack) != policy_changes.digest(head.pack):
                show.begin("checking the head against the base's policies, which differ")
                self._checkwith_base(on, replace(head, policies_of=base.project.checkout), applied, result)
        if result.violations_after and applied is not None and base is not None:
            show.begin("checking the base against its policies, because the head violates some")
            result.violations_before = self._violations(on, base, applied, prefix, options)
        return result

    def _sdk_changes(self, on: Session, resources: Iterable[Mapping[str, Any]]) -> list[SdkChange]:
        """Return what differs between the SDKs of the sides for the types in use."""
        base, head = self.environments.base, self.environments.head
        if base == head:
            return []
        names = {package.removeprefix("pulumi-") for package in self.environments.packages}
        tokens = {str(each["type"]) for each in resources if each["type"].partition(":")[0] in names}
        return sdk_changes(tokens, on.sdks(base), on.sdks(head))

    def _checkwith_base(self, on: Session, head: Side, applied: Applied, result: _Result) -> None:
        """Add what only the base's policies report of the head."""
        try:
            outcome, _ = on.preview(head, applied.without_protection())
        except TrainfleetError as error:
            result.notes.append(f"the base's policies could not check the head: {error}")
            return
        result.violations_after = with_base(result.violations_after, outcome.violations)
        result.policies_ran = True

    def _weakened(self, base: Side, head: Side) -> tuple[list[Weakened], list[str]]:
        """Return what is weaker in the head's policies, and a note if a pack cannot be read."""
        files = [file.document if file is not None else {} for file in self.files]
        found = policy_changes.weaker_exceptions(files[0], files[1])
        packs = []
        for side in (base, head):
            try:
                packs.append(policy_changes.read_pack(side.pack, side.pack_root, side.settings))
            except policy_changes.UnreadablePackError as error:
                return found, [f"{side.shown}: its policies cannot be compared: {error}"]
        return [*policy_changes.weakened(*packs), *found], []

    def _side(self, label: str, index: int) -> tuple[Side, list[str]]:
        file, revision = self.files[index], (self.base, self.head)[index]
        assert file is not None
        try:
            project = read_project(self.roots[index], self.stack)
        except InputError as error:
            raise InputError(f"the {label} ({revision.short}): {error.summary}", error.problems) from error
        settings, notes = (
            for_build(file.document, today())
            if label == "base"
            else (for_build(file.document, date.min)[0], [])
        )
        day = built_on(settings, today()) if label == "base" else None
        overlay = (self.environments.base, self.environments.head)[index]
        return Side(label, revision, project, settings, day, overlay), notes

    def _applied(self, on: Session, side: Side, prefix: str, options: DiffOptions) -> tuple[Applied, bool]:
        name = self._key(on, prefix)
        if options.use_cache and (kept := cache.load(name)) is not None:
            return Applied.from_json(kept), True
        with as_of(side.day):
            applied = on.apply(side)
        if options.use_cache:
            cache.save(name, applied.as_json())
        return applied, False

    def _violations(
        self, on: Session, side: Side, applied: Applied, prefix: str, options: DiffOptions
    ) -> list[Violation]:
        if applied.violations is None:
            with as_of(side.day):
                applied.violations = on.violations(side, applied)
            if options.use_cache:
                cache.save(self._key(on, prefix), applied.as_json())
        return applied.violations

    def _key(self, on: Session, prefix: str) -> str:
        overlay = self.environments.base.name if self.environments.base else ""
        return cache.key(self.base.tree, prefix, self.stack, on.engine.version, overlay)


def _exists(stack: str, base: StackFile | None, head: StackFile | None, roots: tuple[Path, Path]) -> None:
    if base is not None or head is not None:
        return
    from trainfleet.infra.spec.stack_file import stack_names

    names = sorted({name for root in roots if root.is_dir() for name in stack_names(root)})
    raise InputError(
        "unknown stack",
        [
            Problem(
                stack, "has no settings file, neither in the base nor in the head", did_you_mean(stack, names)
            )
        ],
    )


def check_head(file: StackFile | None, head: Revision) -> list[str]:
    """Reject a head with invalid settings before the engine starts; report every problem with its line."""
    if file is None or _is_foreign(file):
        return []
    try:
        load_stack(str(file.path), file.path.parent)
    except TrainfleetError as error:
        root = str(file.path)[: -len(file.shown_as)]
        # The check shows a file relative to the current folder or with its full path.
        places = (f"{os.path.relpath(root)}/", root)

        def plain(text: str) -> str:
            for place in places:
                text = text.replace(place, "")
            return text

        problems = [Problem(plain(each.where), plain(each.what), plain(each.fix)) for each in error.problems]
        raise InputError(
            f"the head ({head.short}) cannot be built: {plain(error.summary)}", problems
        ) from error
    return []


def _is_foreign(file: StackFile) -> bool:
    """Return whether a stack is of a Pulumi project without Trainfleet's spec, whose stacks have a folder."""
    return PLATFORM_KEY not in (file.document.get("config") or {}) and file.path.parent.name != "stacks"
