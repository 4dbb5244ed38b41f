"""Diffs of every stack that a change affects: which stacks those are, and their results as one document."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from trainfleet import yaml_limits
from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.infra.spec.stack_file import PLATFORM_KEY
from trainfleet.rehearsal.diff.bootstrap import Bootstrap, affects, bootstraps, is_of
from trainfleet.rehearsal.diff.diff import DiffOptions, compute, sides
from trainfleet.rehearsal.diff.model import SCHEMA_VERSION, Diff, Verdict
from trainfleet.rehearsal.diff.worktrees import Repository, Revision, of_chart
from trainfleet.rehearsal.engine.find import Engine

CLOUDS = ("aws", "gcp", "azure", "local")
HARMLESS = frozenset(
    {"docs", "tests", "training", "recipes", "examples", "images", "benchmarks", "tools", "packages"}
)
"""Folders that no stack is built from. A file in any other folder affects every stack."""
READ_BY_A_BUILD = (
    *(".py", ".yaml", ".yml", ".toml", ".json", ".lock", ".txt", ".cfg"),
    *(".tpl", ".tmpl", ".j2", ".tgz", ".sh"),
)
"""Ends of files that a program may read, as those of a chart or a script."""


@dataclass(frozen=True)
class Affected:
    """The stacks of a project that a change affects, and why the others are skipped."""

    stacks: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...]
    base: Revision
    head: Revision
    bootstraps: tuple[Bootstrap, ...] = ()
    """The affected stacks of bootstrap projects below the project."""


@dataclass(frozen=True)
class Failed:
    """A stack whose diff could not be computed."""

    stack: str
    error: str


@dataclass(frozen=True)
class Report:
    """The diffs of all affected stacks."""

    diffs: tuple[Diff, ...]
    failed: tuple[Failed, ...]
    skipped: tuple[tuple[str, str], ...]

    @property
    def exit_code(self) -> int:
        """The worst: 1 if a diff failed, else the highest code of a stack."""
        return 1 if self.failed else max((diff.exit_code for diff in self.diffs), default=0)

    @property
    def verdict(self) -> str:
        """The verdict of the worst stack."""
        if self.failed:
            return "error"
        order = list(Verdict)
        return max((diff.verdict for diff in self.diffs), key=order.index, default=Verdict.NONE).value

    def as_json(self) -> dict[str, Any]:
        """Return the `--format json` document."""
        return {
            "schema_version": SCHEMA_VERSION,
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "stacks": [diff.as_json() for diff in self.diffs],
            "failed": [vars(each) for each in self.failed],
            "skipped": [{"stack": stack, "why": why} for stack, why in self.skipped],
        }


def affected(root: Path, options: DiffOptions) -> Affected:
    """Return the stacks that the change between base and head affects.

    A stack's own file affects that stack, a file of one cloud the stacks of that cloud, and every other file
    that a build may read all stacks. The stacks of bootstrap projects below the project are among them.

    Raises:
        InputError: the project has no stacks, or the revisions cannot be used.
    """
    repository = Repository(root)
    base, head = sides(repository, options)
    folder = _settings_folder(root)
    # A stack that only the base has is deleted by the change; its file is among the changed ones.
    changed = _changed(repository, base, head)
    names = {_stack_of(path, folder) for path in changed} | set(stacks_in(root))
    stacks = sorted(name for name in names if name)
    if not stacks:
        fix = "add a Pulumi.STACK.yaml"
        raise InputError("no stacks", [Problem(str(root / folder), "contains no stack settings", fix)])
    in_charts = frozenset(path for path in changed if of_chart(root, path))
    others = bootstraps(repository, (base, head), HARMLESS)
    own = [path for path in changed if not any(is_of(path, each.folder) for each in others)]
    reasons = {
        stack: _reason(own, stack, folder, _cloud(root / folder, stack), in_charts) for stack in stacks
    }
    of_root = [folder, ".", _main(root)]
    below = [path for path in changed if not any(is_of(path, each) for each in of_root)]
    found = [each for each in others if _bootstrap_reason(below, each, others, in_charts)]
    why_not = f"none of the {len(changed)} changed files is read by it"
    skipped = [stack for stack in stacks if not reasons[stack]]
    skipped += [each.stack for each in others if each not in found]
    return Affected(
        tuple(stack for stack in stacks if reasons[stack]),
        tuple((stack, why_not) for stack in skipped),
        base,
        head,
        tuple(found),
    )


def stacks_in(root: Path) -> list[str]:
    """Return the stacks with settings in a project.

    Raises:
        InputError: the folder has no readable Pulumi.yaml.
    """
    folder = _settings_folder(root)
    return sorted(
        _stack_of(str(file.relative_to(root)), folder) for file in (root / folder).glob("Pulumi.?*.y*ml")
    )


def chosen_stack(root: Path, given: str) -> str:
    """Return the given stack, or the only one of the project.

    Raises:
        InputError: none is given, and the project has none or several.
    """
    if given:
        return given
    names = stacks_in(root)
    if len(names) != 1:
        fix = f"one of: {', '.join(names)}; or --all" if names else "add a Pulumi.STACK.yaml"
        raise InputError("which stack?", [Problem(str(root), f"has {len(names)} stacks", fix)])
    return names[0]


def _changed(repository: Repository, base: Revision, head: Revision) -> list[str]:
    """Return the changed files, relative to the project."""
    tracked = repository.git(
        "diff", "--name-only", "--relative", base.commit, *filter(None, [head.commit]), "--", "."
    )
    new = "" if head.commit else repository.git("ls-files", "--others", "--exclude-standard", "--", ".")
    return [line for line in (*tracked.splitlines(), *new.splitlines()) if line]


def _settings_folder(root: Path) -> str:
    return _folder(root, "stackConfigDir")


def _main(root: Path) -> str:
    return _folder(root, "main")


def _folder(root: Path, key: str) -> str:
    try:
        document = yaml_limits.load((root / "Pulumi.yaml").read_text())
    except (OSError, yaml.YAMLError) as error:
        raise InputError(
            "not a Pulumi program", [Problem(str(root), "has no readable Pulumi.yaml")]
        ) from error
    found = document.get(key) if isinstance(document, dict) else None
    return found if isinstance(found, str) else "."


def _stack_of(path: str, folder: str) -> str:
    """Return the stack whose settings file this is; empty if it is none."""
    file = PurePosixPath(path)
    inside = str(file.parent) == str(PurePosixPath(folder))
    is_stack = (
        inside
        and file.name.startswith("Pulumi.")
        and file.suffix in (".yaml", ".yml")
        and file.name.count(".") > 1
    )
    return file.name.removeprefix("Pulumi.").removesuffix(file.suffix) if is_stack else ""


def _cloud(folder: Path, stack: str) -> str:
    try:
        document = yaml_limits.load((folder / f"Pulumi.{stack}.yaml").read_text())
        return str(document["config"][PLATFORM_KEY]["cloud"])
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        return ""


def _reason(changed: Sequence[str], stack: str, folder: str, cloud: str, in_charts: Collection[str]) -> str:
    """Return the first changed file that affects a stack; empty if there is none."""
    for path in changed:
        if owner := _stack_of(path, folder):
            if owner == stack:
                return path
        elif not _is_harmless(path, cloud, in_charts):
            return path
    return ""


def _bootstrap_reason(
    changed: Sequence[str], one: Bootstrap, every: Sequence[Bootstrap], in_charts: Collection[str]
) -> str:
    """Return the first changed file that affects a stack of a bootstrap project; empty if there is none."""
    for path in changed:
        if any(is_of(path, each.folder) for each in every):
            if is_of(path, one.folder) and affects(path, one):
                return path
        elif not _is_harmless(path, one.cloud, in_charts):
            return path
    return ""


def _is_harmless(path: str, cloud: str, in_charts: Collection[str]) -> bool:
    """Return whether no stack of this cloud is built from a file."""
    parts = PurePosixPath(path).parts
    is_read = path.endswith(READ_BY_A_BUILD) or path in in_charts
    if parts[0] in HARMLESS or parts[0].startswith(".") or not is_read:
        return True
    of_a_cloud = parts[0] == "infra" and len(parts) > 2 and parts[1] in CLOUDS
    return of_a_cloud and bool(cloud) and parts[1] != cloud


def compute_all(
    root: Path,
    find_engine: Callable[[], Engine],
    options: DiffOptions,
    done: Callable[[str], None],
    jobs: int = 0,
) -> Report:
    """Compute the diffs of all affected stacks, at most `jobs` at a time (0: half of the CPUs).

    Raises:
        InputError: see `affected`.
    """
    found = affected(root, options)
    todo = [(stack, root, "") for stack in found.stacks]
    todo += [(each.stack, root / each.folder, each.folder) for each in found.bootstraps]
    if not todo:
        return Report((), (), found.skipped)
    engine = find_engine()
    workers = min(len(todo), jobs or max(1, (os.cpu_count() or 2) // 2))
    diffs, failed = list[Diff](), list[Failed]()
    # Each diff runs an engine and providers of its own and handles signals, so it needs a main thread.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = [pool.submit(_one, stack, where, engine, options) for stack, where, _ in todo]
        for (stack, _, folder), each in zip(todo, running, strict=True):
            try:
                result = each.result()
            except KeyboardInterrupt:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            done(stack)
            if isinstance(result, Diff):
                diffs.append(_below(folder, result) if folder else result)
            else:
                failed.append(result)
    return Report(tuple(diffs), tuple(failed), found.skipped)


def _below(folder: str, diff: Diff) -> Diff:
    """Return the diff of a project in a folder of the one that is compared, with paths from the latter."""
    spec = tuple(replace(each, where=f"{folder}/{each.where}") for each in diff.spec)
    return replace(diff, settings_file=f"{folder}/{diff.settings_file}", spec=spec)


_interrupted: list[str] = []
"""In a worker: the stack whose diff was interrupted. Ctrl-C reaches every worker, once."""


def _one(stack: str, root: Path, engine: Engine, options: DiffOptions) -> Diff | Failed:
    if _interrupted:  # the pool gives a worker its next stack early, and cannot cancel it then
        raise KeyboardInterrupt
    try:
        return compute(stack, root, lambda: engine, options)
    except TrainfleetError as error:
        return Failed(stack, str(error))
    except KeyboardInterrupt:
        _interrupted.append(stack)
        raise
