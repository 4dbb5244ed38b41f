"""The report of a rehearsal: one row per step, as a table or as a JSON document."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from trainfleet.errors import Problem

if TYPE_CHECKING:
    from rich.table import Table


@dataclass
class Step:
    """One step: what ran, its result, and whether the result was expected."""

    name: str
    title: str
    resources: int = 0
    changes: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    ok: bool = True
    ran: bool = True
    detail: str = ""
    problems: list[Problem] = field(default_factory=list)


@dataclass
class Report:
    """The report of a whole rehearsal."""

    subject: str
    engine: str
    seed: int
    steps: list[Step] = field(default_factory=list)
    resources: int = 0
    seconds: float = 0.0
    """Wall-clock time; less than the sum of the steps, because some run in parallel."""
    missing_rules: list[str] = field(default_factory=list)
    """Types without an entry in the replacement table; their replacement was not rehearsed."""
    warnings: list[str] = field(default_factory=list)
    """What is unusual or was not rehearsed, without being wrong."""
    kept: str = ""
    network: str = ""
    """How the program's network was limited: `allowed`, `blocked`, or why it could not be blocked."""
    faults: dict[str, int] = field(default_factory=dict)
    """Number of injected faults per kind."""
    made_twice: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """URNs that existed only in the cloud or only in the engine's state after a fault."""

    @property
    def ok(self) -> bool:
        """Whether all steps had the expected result."""
        return bool(self.steps) and all(step.ok for step in self.steps)

    @property
    def problems(self) -> list[Problem]:
        """All problems of all steps."""
        return [problem for step in self.steps for problem in step.problems]

    def as_json(self) -> dict[str, Any]:
        """Return the document for `--json`."""
        return {
            "subject": self.subject,
            "ok": self.ok,
            "engine": self.engine,
            "seed": self.seed,
            "resources": self.resources,
            "seconds": round(self.seconds, 2),
            "steps": [{**asdict(step), "seconds": round(step.seconds, 2)} for step in self.steps],
            "faults": self.faults,
            "made_twice": self.made_twice,
            "lost": self.lost,
            "types_without_replacement_rules": self.missing_rules,
            "warnings": self.warnings,
            "kept": self.kept or None,
            "network": self.network,
        }

    def as_table(self) -> Table:
        """Return the table for the terminal."""
        from rich.table import Table

        table = Table(title=f"Rehearsal of {self.subject} on Pulumi {self.engine}", title_justify="left")
        for column in ("Step", "Resources", "Changes", "Seconds", "As expected"):
            table.add_column(
                column,
                justify="right" if column in ("Resources", "Seconds") else "left",
                no_wrap=column != "Changes",
            )
        for step in self.steps:
            changes = ", ".join(f"{count} {op}" for op, count in sorted(step.changes.items())) or (
                "none" if step.ran and step.resources else ""
            )
            verdict = ("[green]yes[/]" if step.ok else "[bold red]NO[/]") if step.ran else "[dim]not run[/]"
            table.add_row(
                step.title,
                str(step.resources or "") if step.ran else "",
                changes,
                f"{step.seconds:.1f}" if step.ran else "",
                verdict,
            )
        if self.seconds:
            table.caption, table.caption_justify = f"{self.seconds:.1f} s from start to end", "left"
        return table

    def count_fault(self, kind: str, times: int) -> None:
        """Add to the count of one kind of fault."""
        self.faults[kind] = self.faults.get(kind, 0) + times

    def add(self, steps: list[Step], faults: dict[str, int], made_twice: list[str], lost: list[str]) -> None:
        """Add the results of another process."""
        self.steps += steps
        for kind, times in faults.items():
            self.count_fault(kind, times)
        self.made_twice += made_twice
        self.lost += lost

    def notes(self) -> list[str]:
        """Return one line per step with details: what was selected, what failed, what was kept."""
        return [f"{step.title}: {step.detail}" for step in self.steps if step.detail]
