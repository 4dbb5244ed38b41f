"""The parts of a page that are plain tables, the same in all formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainfleet.rehearsal.diff.chart_rows import chart_rows

if TYPE_CHECKING:
    from trainfleet.rehearsal.diff.model import Diff


@dataclass(frozen=True)
class Section:
    """A table: its title, its heads, and its rows of text."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    loud: bool = False
    """Whether it asks for a reviewer's attention."""


def sections(diff: Diff) -> list[Section]:
    """Return the tables that have rows, in the order of a review."""
    found = [
        Section(
            "Procedure",
            ("when", "what", "why"),
            tuple((step.when, step.what, step.why) for step in diff.procedure),
            loud=True,
        ),
        Section("In charts", ("chart", "object", "what"), tuple(chart_rows(diff.charts)), loud=True),
        Section(
            "Access",
            ("access", "what", "by"),
            tuple((each.change, each.text, ", ".join(each.resources)) for each in diff.access),
        ),
        Section(
            "Weakened policies",
            ("policy", "what", "before", "after"),
            tuple((each.policy, each.what, each.before, each.after) for each in diff.weakened),
            loud=True,
        ),
        Section(
            "Upgrades",
            ("package", "before", "after"),
            tuple((each.package, each.before or "(none)", each.after or "(none)") for each in diff.upgrades),
        ),
        Section(
            "Properties of the types in use",
            ("type", "property", "what"),
            tuple((each.type, each.property or "(type)", each.what) for each in diff.sdk),
        ),
    ]
    return [section for section in found if section.rows]
