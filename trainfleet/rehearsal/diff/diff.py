"""Computes a diff: applies the base to a simulated cloud (or loads it from the cache) and previews the head.

`compute` is the entry point. It raises a `TrainfleetError` that names the side at fault.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from trainfleet.dates import as_of, today
from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.infra.catalog.cost import Bill
from trainfleet.infra.spec.load import load_stack
from trainfleet.infra.spec.stack_file import PLATFORM_KEY, StackFile
from trainfleet.rehearsal.diff import cache, compare
from trainfleet.rehearsal.diff.model import Change, Diff, Failing
from trainfleet.rehearsal.diff.settings import bill_of, built_on, for_build, spec_changes, stack_file
from trainfleet.rehearsal.diff.two_sided_run import Applied, Session, Side, session
from trainfleet.rehearsal.diff.worktrees import Repository, Revision, refuse_uncommitted, scratch
from trainfleet.rehearsal.engine.engine_cli import Violation
from trainfleet.rehearsal.engine.find import Engine
from trainfleet.rehearsal.engine.sandbox import Project, read_project
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
    state: Path | None = None
    """The export of the deployed stack, which takes the place of the base."""
    accept_other_stack: bool = False
    """Whether the export may be of another stack or project."""


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
            with session(engine, folder, show.resource) as on:
                result = prepared.run(on, repository.prefix, options, show)
                result.notes[:0] = notes
    before, after = _bills(base_file, head_file, result.notes)
    return Diff(
        stack,
        base,
        head,
        "new" if base_file is None else "deleted" if head_file is None else "there",
        tuple(result.changes),
        before,
        after,
        newly_failing(result.violations_before, result.violations_after),
        result.policies_ran,
        tuple(spec_changes(base_file, head_file)),
        tuple(result.notes),
        time.monotonic() - began,
        result.from_cache,
        result.unchanged,
        options.accept_unknown,
        settings_file=file.shown_as if (file := head_file or base_file) else "",
    )


def _bills(
    base: StackFile | None, head: StackFile | None, notes: list[str]
) -> tuple[Bill | None, Bill | None]:
    """Return the costs of both sides; add why one is not known to the notes."""
    (before, why_not_before), (after, why_not_after) = bill_of(base), bill_of(head)
    notes.extend(f"{side}: {why}" for side, why in (("base", why_not_before), ("head", why_not_after)) if why)
    return before, after


class _Result:
    """The results of the engine."""

    def __init__(self, notes: Iterable[str] = ()) -> None:
        self.changes: list[Change] = []
        self.unchanged = 0
        self.violations_before: list[Violation] = []
        self.violations_after: list[Violation] = []
        self.policies_ran = True
        self.from_cache = False
        self.notes = list(notes)


@dataclass(frozen=True)
class _Prepared:
    """Both checkouts, ready for the engine."""

    stack: str
    base: Revision
    head: Revision
    roots: tuple[Path, Path]
    files: tuple[StackFile | None, StackFile | None]

    def run(self, on: Session, prefix: str, options: DiffOptions, show: Show) -> _Result:
        """Apply the base, preview the head on it, and compare."""
        result = _Result()
        applied: Applied | None = None
        base: Side | None = None
        if self.files[0] is not None:
            base, notes = self._side("base", 0)
            result.notes += notes
            show.begin("applying the base to a simulated cloud")
            applied, result.from_cache = self._applied(on, base, prefix, options)
        if self.files[1] is None:
            result.changes = compare.deletions(applied.resources() if applied else [])
            return result
        head, notes = self._side("head", 1)
        result.notes += notes
        if base is not None:
            _same_project(base.project, head.project)
        show.begin("previewing the head on it")
        outcome, events = on.preview(head, applied.without_protection() if applied else None)
        result.violations_after, result.policies_ran = outcome.violations, head.pack is not None
        result.changes, result.unchanged = compare.changes(events, applied.resources() if applied else [])
        if result.violations_after and applied is not None and base is not None:
            show.begin("checking the base against its policies, because the head violates some")
            result.violations_before = self._violations(on, base, applied, prefix, options)
        return result

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
        return Side(label, revision, project, settings, day), notes

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
        return cache.key(self.base.tree, prefix, self.stack, on.engine.version)


def newly_failing(before: Iterable[Violation], after: Iterable[Violation]) -> tuple[Failing, ...]:
    """Return the policy violations of the head that the base does not have."""
    old, new = _failing(before), _failing(after)
    return tuple(failing for key, failing in sorted(new.items()) if key not in old)


def _failing(violations: Iterable[Violation]) -> dict[tuple[str, str], Failing]:
    found = {}
    for violation in violations:
        name = violation.urn.rsplit("::", 1)[-1] if violation.urn else violation.message.partition(":")[0]
        found[violation.policy, name] = Failing(violation.policy, name, violation.message, violation.level)
    return found


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


def _same_project(base: Project, head: Project) -> None:
    if base.name != head.name:
        raise InputError(
            "the project was renamed",
            [
                Problem(
                    "Pulumi.yaml: name",
                    f"was `{base.name}` and is `{head.name}`: Pulumi keeps a state for each name",
                    f"name: {base.name}",
                )
            ],
        )
