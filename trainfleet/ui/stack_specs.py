"""The stacks of the project in the current folder: each spec, its mistakes, and the estimate of its cost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainfleet.errors import InputError, Problem
from trainfleet.infra.catalog.cost import Bill, bill
from trainfleet.infra.spec.load import load_stack
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.spec.stack_file import project_root, stack_names
from trainfleet.ui.refreshed import Refreshed

READ_EVERY_S = 5.0


@dataclass(frozen=True)
class StackSpec:
    """A stack: its spec and cost, or the mistakes for which there is none."""

    name: str
    text: str
    spec: PlatformSpec | None = None
    cost: Bill | None = None
    problems: tuple[Problem, ...] = ()


class StackSpecs:
    """The stacks of a project; a file is read again if it was written."""

    def __init__(self, root: Path | None) -> None:
        self.root = root
        self._known: dict[str, tuple[tuple[int, int], StackSpec]] = {}
        self._stacks = Refreshed(self._read, dict[str, StackSpec](), READ_EVERY_S)

    def all(self, wait_s: float) -> dict[str, StackSpec]:
        """The stacks by name."""
        return self._stacks.get(wait_s)

    @property
    def reading(self) -> bool:
        """Whether they were not read yet."""
        return self._stacks.at is None

    def _read(self) -> dict[str, StackSpec]:
        if self.root is None:
            return {}
        found = {}
        for name in stack_names(self.root):
            file = self.root / "stacks" / f"Pulumi.{name}.yaml"
            try:
                status = file.stat()
            except OSError:
                continue
            stamp = (status.st_mtime_ns, status.st_size)
            known = self._known.get(name)
            if known is None or known[0] != stamp:
                known = self._known[name] = (stamp, _read_stack(name, file))
            found[name] = known[1]
        return found


def project_here() -> Path | None:
    """The project of the current folder; None if it is not in one."""
    root = project_root()
    return root if Path.cwd().is_relative_to(root) else None


def _read_stack(name: str, file: Path) -> StackSpec:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return StackSpec(name, "", problems=(Problem(str(file), str(error.strerror)),))
    try:
        spec = load_stack(str(file))
        return StackSpec(name, text, spec, bill(spec))
    except InputError as error:
        return StackSpec(name, text, problems=error.problems or (Problem(name, error.summary),))
