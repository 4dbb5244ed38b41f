"""The bootstrap stacks of a project: Pulumi projects below it whose settings are `trainfleet:bootstrap`.

They declare who may plan and apply the project's stacks. No workflow applies them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import yaml

from trainfleet import yaml_limits
from trainfleet.infra.bootstrap.schema import BOOTSTRAP_KEY
from trainfleet.infra.spec.stack_file import StackFile
from trainfleet.rehearsal.diff.access import AccessChange
from trainfleet.rehearsal.diff.worktrees import Repository, Revision

PROGRAM = "__main__.py"
WIDER = ("gained", "unlimited", "unresolved")
"""The changes of access that have to be approved in a bootstrap stack."""


class Bootstrap(NamedTuple):
    """A stack of a bootstrap project, and the project's folder below the project that is compared."""

    folder: str
    stack: str
    cloud: str

    @property
    def shown(self) -> str:
        """The arguments of `trainfleet diff` for this stack alone."""
        return f"{self.folder} --stack {self.stack}"

    @property
    def settings(self) -> str:
        """The settings file, relative to the project that is compared."""
        return f"{self.folder}/Pulumi.{self.stack}.yaml"


def is_bootstrap(files: Iterable[StackFile | None]) -> bool:
    """Return whether the settings of a side are those of a bootstrap."""
    return any(BOOTSTRAP_KEY in (file.document.get("config") or {}) for file in files if file is not None)


def widens(access: Iterable[AccessChange]) -> bool:
    """Return whether somebody gains access, or whether that is unknown before the apply."""
    return any(each.change in WIDER for each in access)


def bootstrap_notes(access: Iterable[AccessChange]) -> list[str]:
    """Return what the summary of a bootstrap stack's diff says besides that of every stack."""
    wider = {name for each in access if each.change in WIDER for name in each.resources}
    gained = [f"MORE ACCESS: {', '.join(sorted(wider))}"] if widens(access) else []
    return [*gained, "an administrator applies it, no workflow does"]


def bootstraps(
    repository: Repository, revisions: Sequence[Revision], harmless: frozenset[str]
) -> list[Bootstrap]:
    """Return the bootstrap stacks that one of the revisions has.

    Args:
        repository: that of the project.
        revisions: the base and the head.
        harmless: top-level folders that no stack is built from.
    """
    found = dict[str, Bootstrap]()
    for revision in revisions:
        files = _files(repository, revision)
        for path in map(PurePosixPath, files):
            name = path.name.removeprefix("Pulumi.").removesuffix(".yaml")
            inside = len(path.parts) > 1 and path.parts[0] not in harmless and path.parts[0][0] != "."
            if not inside or path.name != f"Pulumi.{name}.yaml" or not name:
                continue
            if f"{path.parent}/Pulumi.yaml" not in files:
                continue
            if (cloud := _cloud(repository, revision, str(path))) is not None:
                found[str(path)] = Bootstrap(str(path.parent), name, cloud)
    return sorted(found.values())


def affects(path: str, one: Bootstrap) -> bool:
    """Return whether a file of the project's folder affects this stack of it: not the settings of another."""
    name = PurePosixPath(path).name
    return path == one.settings or name in ("Pulumi.yaml", PROGRAM)


def is_of(path: str, folder: str) -> bool:
    """Return whether only the program of a project reads a file: its settings or its entry point."""
    file = PurePosixPath(path)
    return str(file.parent) == str(PurePosixPath(folder)) and (
        file.name == PROGRAM or file.match("Pulumi.yaml") or file.match("Pulumi.?*.y*ml")
    )


def _files(repository: Repository, revision: Revision) -> set[str]:
    """Return the files of the project, relative to it."""
    listed = (
        repository.git("ls-tree", "-r", "--name-only", "-z", revision.commit)
        if revision.commit
        else repository.git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    )
    return set(filter(None, listed.split("\0")))


def _cloud(repository: Repository, revision: Revision, path: str) -> str | None:
    """Return the cloud of a bootstrap's settings; None if the file is something else."""
    try:
        text = (
            repository.git("show", f"{revision.commit}:./{path}")
            if revision.commit
            else (repository.root / path).read_text()
        )
        settings: Any = yaml_limits.load(text)["config"][BOOTSTRAP_KEY]
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError):
        return None
    return str(settings.get("cloud", "")) if isinstance(settings, dict) else ""
