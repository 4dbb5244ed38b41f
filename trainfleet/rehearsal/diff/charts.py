"""States what a diff does not compare of Helm charts: what a chart renders. It is not downloaded."""

from __future__ import annotations

from collections.abc import Iterable

from trainfleet.rehearsal.diff.change import Change, Verb

CHARTS = ("kubernetes:helm.sh/v3:Release", "kubernetes:helm.sh/v4:Chart")
_SOURCE = ("version", "chart", "repositoryOpts.repo")


def chart_notes(changes: Iterable[Change]) -> list[str]:
    """Return one note that names each chart whose version, source or values change; empty if none does."""
    named = [
        f"{change.name} ({what})"
        for change in sorted(changes, key=lambda each: each.name)
        if change.token in CHARTS and change.verb in (Verb.UPDATE, Verb.REPLACE) and (what := _what(change))
    ]
    if not named:
        return []
    return [
        f"Charts are not rendered. Of {', '.join(named)}, versions and values are compared, and not the"
        " objects and CustomResourceDefinitions in the chart: compare them with"
        " `helm template --include-crds` of both versions."
    ]


def _what(change: Change) -> str:
    found = [
        f"{each.path} {each.old or 'none'} → {each.new or 'none'}"
        for each in change.properties
        if each.path in _SOURCE
    ]
    values = any(each.path.split(".")[0].startswith("value") for each in change.properties)
    return ", ".join([*found, *(["values"] if values else [])])
