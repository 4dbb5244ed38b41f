"""Renders a diff, or those of several stacks, as one HTML page: no scripts, no external resources, light and
dark mode, readable on a phone.
"""

from __future__ import annotations

from typing import Any

from trainfleet.rehearsal.diff.all_stacks import Report
from trainfleet.rehearsal.diff.model import Diff, Verdict
from trainfleet.rehearsal.diff.presentation import (
    DRIFT,
    TITLES,
    arrow,
    cost_rows,
    drift_rows,
    groups,
    short,
    sides,
)
from trainfleet.rehearsal.diff.render import COLOURS, SIGNS, notes_of
from trainfleet.rehearsal.diff.render_all import count
from trainfleet.rehearsal.diff.sections import sections as tables


def as_html(diff: Diff) -> str:
    """Return the page of one stack."""
    return _rendered("diff.html", each=_shown(diff), level=1)


def html_of(report: Report) -> str:
    """Return the page of several stacks: the summary, then a section for each stack, worst first."""
    ordered = sorted(report.diffs, key=lambda diff: -diff.exit_code)
    return _rendered(
        "diffs.html",
        report=report,
        title=count(report),
        colour="red" if report.failed else COLOURS[Verdict(report.verdict)],
        stacks=[_shown(diff) for diff in ordered],
        level=2,
    )


def _shown(diff: Diff) -> dict[str, Any]:
    sections: list[dict[str, Any]] = [
        {"verb": verb.value, "title": title, "sign": SIGNS[verb], "groups": found}
        for verb, title in TITLES.items()
        if (found := groups(diff, verb))
    ]
    return {
        "diff": diff,
        "sides": sides(diff),
        "sections": sections,
        "tables": tables(diff),
        "drift_title": DRIFT,
        "drift": drift_rows(diff),
        "cost": cost_rows(diff),
        "notes": notes_of(diff),
        "colour": COLOURS[diff.verdict],
        "counts": [(SIGNS[verb], len(diff.of(verb)), TITLES[verb].lower(), verb.value) for verb in TITLES],
    }


def _rendered(template: str, **values: Any) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("trainfleet.rehearsal.diff"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"short": lambda value: short(value, 1000), "arrow": lambda each: arrow(each, 600)}
    return environment.get_template(template).render(**values)
