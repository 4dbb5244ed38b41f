"""Compares what Helm charts render in both versions, and states which charts were not rendered and why."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainfleet.rehearsal.diff.change import Change, Verb
from trainfleet.rehearsal.diff.grants.model import Planned
from trainfleet.rehearsal.diff.helm.chart import (
    TOKENS,
    Chart,
    NotRenderedError,
    api_versions,
    charts_of,
    kubernetes_version,
    planned_charts,
    with_texts,
)
from trainfleet.rehearsal.diff.helm.comparison import ChartDiff, compared, rbac
from trainfleet.rehearsal.diff.helm.find import Folders, content_digest, find, local
from trainfleet.rehearsal.diff.helm.template import Rendering, Target, render
from trainfleet.rehearsal.engine.sandbox import Project

Resources = Iterable[Mapping[str, Any]]
_SOURCE = ("version", "chart", "repositoryOpts.repo")
_RELEASE = ("name", "namespace", "skipCrds")


@dataclass(frozen=True)
class ChartSide:
    """The charts of one side, where their files are, and the cluster that they are for."""

    charts: Mapping[str, Chart] = field(default_factory=dict)
    folders: Folders = field(default_factory=Folders)
    target: Target = field(default_factory=Target)


@dataclass(frozen=True)
class BothRenderings:
    """A chart of both sides; None on the side that does not have it."""

    old: Chart | None
    before: Rendering
    new: Chart | None
    after: Rendering


@dataclass(frozen=True)
class ComparedCharts:
    """What differs between the renderings, what was not rendered, and the roles of both sides."""

    diffs: tuple[ChartDiff, ...] = ()
    notes: tuple[str, ...] = ()
    before: tuple[Planned, ...] = ()
    after: tuple[Planned, ...] = ()
    renderings: tuple[BothRenderings, ...] = ()


def chart_sides(
    state: Resources, events: Resources, base: Folders, head: Folders
) -> tuple[ChartSide, ChartSide]:
    """Return the charts of a state, and those that a preview on it leaves."""
    state, events = list(state), list(events)
    planned = [each["new"] | {"type": each["type"]} for each in events if each.get("new")]
    old = charts_of(state)
    new = with_texts(planned_charts(events), old.values())
    return (
        ChartSide(old, base, Target(kubernetes_version(state), tuple(api_versions(state)))),
        ChartSide(new, head, Target(kubernetes_version(planned), tuple(api_versions(planned)))),
    )


def folders_of(project: Project, checkout: Path) -> Folders:
    """Return where the charts of a project in a checkout are."""
    return Folders(project.root, checkout, project.main if project.main.is_dir() else project.main.parent)


def compare_charts(
    base: ChartSide,
    head: ChartSide,
    changes: Iterable[Change],
    state: Resources,
    scratch: Path,
    *,
    download: bool,
) -> ComparedCharts:
    """Render the charts that differ, and compare their objects.

    Args:
        base: the charts before.
        head: the charts after.
        changes: the changes of the resources, of which the charts are some.
        state: the resources before, whose generated identifiers are shown by their names.
        scratch: a folder that the caller removes.
        download: whether helm may download charts.
    """
    by_urn = {change.urn: change for change in changes}
    state = list(state)
    diffs, before, after = list[ChartDiff](), list[Planned](), list[Planned]()
    renderings = list[BothRenderings]()
    missing: dict[tuple[str, str], list[str]] = {}
    work = Path(tempfile.mkdtemp(dir=scratch, prefix="charts-"))
    for urn in sorted({*base.charts, *head.charts}):
        old, new, change = base.charts.get(urn), head.charts.get(urn), by_urn.get(urn)
        what = _what(change) if change else ""
        if not what and not _other_files(old, base.folders, new, head.folders):
            continue
        try:
            one, two = (
                _rendered(chart, side, work, download=download) if chart else Rendering({})
                for chart, side in ((old, base), (new, head))
            )
        except NotRenderedError as error:
            missing.setdefault((error.why, error.fix), []).append(
                f"{urn.rsplit('::', 1)[-1]} ({what or 'its files'})"
            )
            continue
        replaced = change is not None and change.verb is Verb.REPLACE
        diffs.append(compared(old, new, one, two, state, replaced=replaced))
        renderings.append(BothRenderings(old, one, new, two))
        before += rbac(old, one) if old else []
        after += rbac(new, two) if new else []
    notes = [_not_rendered(names, *why) for why, names in missing.items()]
    if any(each.differs for each in diffs):
        notes.append(_rendered_for(head.target.kubernetes))
    return ComparedCharts(tuple(diffs), tuple(notes), tuple(before), tuple(after), tuple(renderings))


def chart_notes(changes: Iterable[Change], why: str) -> list[str]:
    """Return the note that names each chart that changes, where none can be rendered; empty if none does."""
    ordered = sorted(changes, key=lambda each: each.name)
    named = [f"{change.name} ({what})" for change in ordered if (what := _what(change))]
    return [_not_rendered(named, why)] if named else []


def _rendered(chart: Chart, side: ChartSide, scratch: Path, *, download: bool) -> Rendering:
    source = find(chart, side.folders, download=download, scratch=scratch)
    return render(chart, source, side.folders.program, side.target, scratch)


def _other_files(old: Chart | None, base: Folders, new: Chart | None, head: Folders) -> bool:
    """Whether the files of a local chart differ, which its inputs do not show."""
    if old is None or new is None or old.is_remote or new.is_remote:
        return False
    one, two = local(old, base), local(new, head)
    return one is not None and two is not None and content_digest(one) != content_digest(two)


def _not_rendered(names: list[str], why: str, fix: str = "") -> str:
    which = "it" if len(names) == 1 else "them"
    return (
        f"Not rendered: {', '.join(names)}: {why}{f'; {fix}' if fix else ''}. Of {which}, version, source and"
        " values are compared, and not the objects and CustomResourceDefinitions in the chart."
    )


def _rendered_for(version: str) -> str:
    if version:
        return f"Charts are rendered for Kubernetes {version}."
    return "Charts are rendered for the Kubernetes version that helm was built for: the stack has no cluster."


def _what(change: Change) -> str:
    """Return what changes of a chart that decides what it renders; empty if nothing does."""
    if change.token not in TOKENS:
        return ""
    if change.verb in (Verb.CREATE, Verb.DELETE):
        return "new" if change.verb is Verb.CREATE else "deleted"
    found = [
        f"{each.path} {each.old or 'none'} → {each.new or 'none'}"
        for each in change.properties
        if each.path in _SOURCE
    ]
    values = any(each.path.split(".")[0].startswith("value") for each in change.properties)
    others = [name for name in _RELEASE if any(each.path == name for each in change.properties)]
    return ", ".join([*found, *(["values"] if values else []), *others])
