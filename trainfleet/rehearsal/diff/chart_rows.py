"""The rows of a page for the objects of charts: what is lost first, and what is alike in one row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from trainfleet.rehearsal.diff.change import Verb
from trainfleet.rehearsal.diff.data_loss import weight
from trainfleet.rehearsal.diff.helm.comparison import ChartDiff, ObjectChange
from trainfleet.rehearsal.diff.presentation import Group, arrow

Row = tuple[str, str, str]
_ROWS = 8
_NAMES = 6


def chart_rows(charts: Iterable[ChartDiff]) -> Iterator[Row]:
    """Yield chart, object and what happens to it."""
    for chart in charts:
        yield from _rows(chart)


def _rows(chart: ChartDiff) -> Iterator[Row]:
    versions = f"{chart.before or '(none)'} → {chart.after or '(none)'}"
    title = f"{chart.name} {versions if chart.before != chart.after else chart.after}"
    if not chart.differs:
        yield title, "(chart)", "; ".join(("both versions render the same objects", *chart.notes))
        return
    groups: dict[object, list[ObjectChange]] = {}
    for each in chart.objects:
        change = each.change
        # What comes or goes without a loss is one row a kind; everything else has its own.
        alike = change.verb in (Verb.CREATE, Verb.DELETE) and not change.destructive
        key = (change.verb, change.token, each.note, each.applied) if alike else change.urn
        groups.setdefault(key, []).append(each)
    for same in sorted(groups.values(), key=_order):
        yield title, _objects(same), _what(same[0])
    if chart.labels_only:
        more = f"{chart.labels_only} other object{'s' if chart.labels_only > 1 else ''}"
        yield title, more, "only labels of the chart's version change"
    if chart.restarted:
        yield title, _some(chart.restarted), "their pods are replaced"
    if any(chart.images):
        gone, come = (", ".join(each) or "(none)" for each in chart.images)
        yield title, "images", f"{gone} → {come}"
    for note in chart.notes:
        yield title, "(chart)", note


def _order(same: Sequence[ObjectChange]) -> tuple[bool, bool, int, int, str]:
    first = same[0]
    verbs = (Verb.DELETE, Verb.REPLACE, Verb.UPDATE, Verb.CREATE)
    change = first.change
    return (
        not first.applied,
        not change.destructive,
        weight(change.loss),
        verbs.index(change.verb),
        change.urn,
    )


def _objects(same: Sequence[ObjectChange]) -> str:
    kind = same[0].change.token.rsplit(":", 1)[-1]
    count = f" ×{len(same)}" if len(same) > 1 else ""
    return f"{kind}{count} {_some([each.change.name for each in same])}"


def _what(each: ObjectChange) -> str:
    change = each.change
    group = Group(change.type, (change,))
    parts = [f"{group.mark}: {change.verb}" if each.applied and group.mark else change.verb.value]
    if change.forced_by:
        parts[0] += f", forced by {', '.join(change.forced_by)}"
    parts += [each.note] if each.note else []
    parts += [f"{one.path}: {arrow(one)}" for one in group.properties[:_ROWS]]
    if len(group.properties) > _ROWS:
        parts.append(f"and {len(group.properties) - _ROWS} more properties")
    parts += [group.fate] if each.applied and change.destructive and group.fate else []
    return "; ".join(parts)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMES]) + (f" and {len(names) - _NAMES} more" if len(names) > _NAMES else "")
