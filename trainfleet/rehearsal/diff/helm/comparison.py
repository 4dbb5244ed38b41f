"""Compares what both versions of a chart render, with the rules that hold for plain Kubernetes resources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainfleet.rehearsal.diff import compare
from trainfleet.rehearsal.diff.change import Change, Verb
from trainfleet.rehearsal.diff.data_loss import Loss
from trainfleet.rehearsal.diff.grants.model import Planned
from trainfleet.rehearsal.diff.helm.chart import Chart
from trainfleet.rehearsal.diff.helm.template import Key, Rendered, Rendering
from trainfleet.rehearsal.simulation.property_paths import Path as Path_
from trainfleet.rehearsal.simulation.property_paths import join_path, split_path
from trainfleet.rehearsal.simulation.replacement import Effect, effects, in_terms_of_new

VERSION_LABELS = ("helm.sh/chart", "app.kubernetes.io/version", "chart")
"""Labels that every object of a chart has and that change with each version of it."""
IN_CRDS = "in crds/, which Helm installs once and never changes: it is not applied"
SKIPPED = "in crds/, which this release skips: whatever else installs the definition has to follow"
STAYS = "in crds/, which Helm never deletes: it stays in the cluster"
HOOK = "a hook, which Helm recreates"
_HOOK = Loss(("nothing",), HOOK, loud=False)
REFUSED = "Helm's upgrade fails"
_DEFINITION = "CustomResourceDefinition"
_ROLLED = ("Deployment", "StatefulSet", "DaemonSet")
_PATCHED = {
    "ConfigMap": (("data",), ("binaryData",)),
    "Job": (("spec", "parallelism"),),
    "Secret": (("data",), ("stringData",)),
    "StatefulSet": (("spec", "revisionHistoryLimit"),),
}
"""What the Kubernetes provider replaces an object for, and what Helm changes in place: the API server allows
it, except for a ConfigMap or Secret that is `immutable`.
"""


@dataclass(frozen=True)
class ObjectChange:
    """A rendered object that changes."""

    change: Change
    note: str = ""
    """What Helm does with it that Pulumi would not do with a plain resource."""
    applied: bool = True
    """Whether the upgrade does it. What is in the `crds` folder of a release is compared and not applied."""


@dataclass(frozen=True)
class ChartDiff:
    """What both versions of one chart render, compared."""

    urn: str
    token: str
    name: str
    before: str
    """Version, or source without one; empty if the chart is new."""
    after: str
    objects: tuple[ObjectChange, ...] = ()
    labels_only: int = 0
    """Objects of which only the labels of the chart's version change."""
    restarted: tuple[str, ...] = ()
    """Deployments, StatefulSets and DaemonSets whose pods are replaced."""
    images: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """Images that only the old and only the new version uses."""
    notes: tuple[str, ...] = ()
    """What was left out of the comparison."""

    @property
    def changes(self) -> tuple[Change, ...]:
        """What the apply does to objects."""
        return tuple(each.change for each in self.objects if each.applied)

    @property
    def differs(self) -> bool:
        """Whether anything is to be shown."""
        return bool(self.objects or self.labels_only)


def compared(
    old: Chart | None,
    new: Chart | None,
    before: Rendering,
    after: Rendering,
    state: Iterable[Mapping[str, Any]],
    *,
    replaced: bool = False,
) -> ChartDiff:
    """Return how two renderings differ.

    Args:
        old: the chart of the base; None if it is new.
        new: the chart of the head; None if it is deleted.
        before: what the old one renders; nothing if there is none.
        after: what the new one renders.
        state: the resources of the base, whose generated identifiers are shown by their names.
        replaced: whether the release itself is replaced: every object is deleted and created.
    """
    chart = new or old
    assert chart is not None
    pairs = {
        object_urn(chart, key): _Pair(
            chart,
            before.objects.get(key),
            after.objects.get(key),
            is_new=old is None,
            replaced=replaced,
        )
        for key in sorted({*before.objects, *after.objects})
    }
    events = {urn: event for urn, pair in pairs.items() if (event := pair.event(urn)) is not None}
    labels_only = {urn for urn, event in events.items() if _only_labels(event)}
    changes, _ = compare.changes((events[urn] for urn in events if urn not in labels_only), state)
    return ChartDiff(
        chart.urn,
        chart.token,
        chart.name,
        before.version,
        after.version,
        tuple(pairs[change.urn].explained(change) for change in changes),
        len(labels_only),
        tuple(pairs[urn].shown for urn, event in events.items() if pairs[urn].rolls(event)),
        _images(before, after),
        tuple(_notes(old, new, before, after)),
    )


@dataclass(frozen=True)
class _Pair:
    """An object of a chart on both sides."""

    chart: Chart
    old: Rendered | None
    new: Rendered | None
    is_new: bool
    """Whether the whole chart is new."""
    replaced: bool

    @property
    def each(self) -> Rendered:
        found = self.new or self.old
        assert found is not None
        return found

    @property
    def shown(self) -> str:
        return f"{self.each.key[1]} {object_name(self.chart, self.each.key)}"

    @property
    def left_templates(self) -> bool:
        """Whether a definition moved from the templates to the `crds` folder: Helm deletes it."""
        moved = self.old is not None and self.new is not None and self.new.from_crds
        return moved and self.chart.is_release and not (self.old is not None and self.old.from_crds)

    def event(self, urn: str) -> dict[str, Any] | None:
        """Return the pair as the event of an engine; None if nothing differs."""
        old, new = self.old, None if self.left_templates else self.new
        event: dict[str, Any] = {"urn": urn, "type": self.each.token}
        if old is None or new is None:
            op = "create" if old is None else "delete"
            return event | {
                "op": op,
                "old": _state(old.body if old else None),
                "new": _state(new.body if new else None),
            }
        one, two = aligned(in_terms_of_new(new.token, old.body, new.body), new.body)
        event |= {"old": _state(one), "new": _state(two)}
        differing = effects(new.token, one, two)
        if not differing and not self.replaced:
            return None
        details = {
            join_path(path): {"diffKind": "update-replace" if self._replaces(path, effect) else "update"}
            for path, effect in differing.items()
        }
        forced = self.replaced or any(each["diffKind"] == "update-replace" for each in details.values())
        return event | {"op": "replace" if forced else "update", "detailedDiff": details}

    def _replaces(self, path: Path_, effect: Effect) -> bool:
        patched = _PATCHED.get(self.each.key[1], ()) if self.chart.is_release else ()
        in_place = any(path[: len(each)] == each for each in patched) and not self._immutable
        return effect is Effect.REPLACE and not in_place

    @property
    def _immutable(self) -> bool:
        return self.old is not None and self.old.body.get("immutable") is True

    def explained(self, change: Change) -> ObjectChange:
        """Return the change of the object with what Helm makes of it."""
        change = replace(
            change,
            properties=tuple(
                each for each in change.properties if each.forces or not _is_version_label(each.path)
            ),
            kept=change.verb is Verb.DELETE and self.old is not None and self.old.keep,
        )
        if not self.chart.is_release:
            return ObjectChange(change)
        change = replace(change, may_replace=(), at_stake=None)
        if self.each.hook:
            verb = Verb.UPDATE if change.verb is Verb.REPLACE else change.verb
            return ObjectChange(replace(change, verb=verb, loss=_HOOK, forced_by=()), HOOK)
        if self.each.from_crds and not self.left_templates and (self.chart.skip_crds or not self.is_new):
            skipped = SKIPPED if self.chart.skip_crds else IN_CRDS
            return ObjectChange(change, STAYS if change.verb is Verb.DELETE else skipped, applied=False)
        return ObjectChange(change, self._of_helm(change))

    def _of_helm(self, change: Change) -> str:
        """Return what Helm does in another way than Pulumi; empty if nothing."""
        if self.left_templates:
            return "moved to crds/: Helm deletes it, and does not create it again"
        if self.old is not None and self.new is not None and self.old.from_crds and not self.new.from_crds:
            return f"{REFUSED}: moved from crds/, and Helm does not adopt what it does not own"
        if change.verb is Verb.REPLACE and not self.replaced:
            what = ", ".join(change.forced_by)
            return f"{REFUSED}: the API server does not change {what}; delete the object first"
        return ""

    def rolls(self, event: Mapping[str, Any]) -> bool:
        """Whether an update replaces the pods of the object."""
        paths = map(split_path, event.get("detailedDiff") or ())
        template = any(path[:2] == ("spec", "template") for path in paths)
        return event["op"] == "update" and template and self.each.key[1] in _ROLLED


def _state(body: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if body is None else {"inputs": dict(body)}


def aligned(old: Any, new: Any) -> tuple[Any, Any]:
    """Return both values with the items of lists that have names, such as containers, at the same index.

    An item that only the old list has is after the new ones, where the new list has None.
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        pairs = {key: aligned(old.get(key), new.get(key)) for key in {*old, *new}}
        return {key: pairs[key][0] for key in old}, {key: pairs[key][1] for key in new}
    if not (_named(old) and _named(new)):
        return old, new
    before, after = ({item["name"]: item for item in side} for side in (old, new))
    order = [*after, *(name for name in before if name not in after)]
    both = [aligned(before.get(name), after.get(name)) for name in order]
    return [pair[0] for pair in both], [pair[1] for pair in both]


def _named(value: Any) -> bool:
    """Whether a list has items with names of their own."""
    names = [
        item["name"]
        for item in (value if isinstance(value, list) else ())
        if isinstance(item, Mapping) and isinstance(item.get("name"), str)
    ]
    return bool(names) and len(names) == len(value) == len(set(names))


def object_urn(chart: Chart, key: Key) -> str:
    """Return the URN under which an object of a chart is shown."""
    group, kind, _, _ = key
    return f"{chart.urn}#{group}/{kind}::{object_name(chart, key)}"


def object_name(chart: Chart, key: Key) -> str:
    """Return the name of an object, with its namespace if it is not the chart's."""
    return key[3] if key[2] == chart.namespace else f"{key[2]}/{key[3]}"


def _only_labels(event: Mapping[str, Any]) -> bool:
    return event["op"] == "update" and all(map(_is_version_label, event["detailedDiff"]))


def _is_version_label(path: str) -> bool:
    steps = split_path(path)
    return len(steps) >= 3 and steps[-3:-1] == ("metadata", "labels") and steps[-1] in VERSION_LABELS


def _images(before: Rendering, after: Rendering) -> tuple[tuple[str, ...], tuple[str, ...]]:
    old, new = (
        {image for each in side.objects.values() if each.key[1] != _DEFINITION for image in _used(each.body)}
        for side in (before, after)
    )
    return tuple(sorted(old - new)), tuple(sorted(new - old))


def _used(value: Any) -> Iterator[str]:
    """Yield the images of the containers in an object."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key == "image" and isinstance(item, str):
                yield item
            else:
                yield from _used(item)
    elif isinstance(value, list):
        for item in value:
            yield from _used(item)


def _notes(old: Chart | None, new: Chart | None, before: Rendering, after: Rendering) -> Iterator[str]:
    left_out = list(dict.fromkeys(path for each in (old, new) if each for path in each.left_out))
    if left_out:
        yield f"rendered without the secret and unknown values: {_some(left_out)}"
    if random := [f"{key[1]} {key[3]}" for key in sorted({*before.random, *after.random})]:
        yield f"random in each rendering, and not compared: values of {_some(random)}"
    if names := max(before.random_names, after.random_names):
        yield f"not compared: {names} object{'s' if names > 1 else ''} with a random name"


def _some(names: list[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def rbac(chart: Chart, rendering: Rendering) -> list[Planned]:
    """Return the roles and bindings that a chart renders, from which access is read."""
    found = []
    for key, each in rendering.objects.items():
        if key[0] == "rbac.authorization.k8s.io":
            metadata = {"namespace": key[2], **each.body["metadata"]}
            found.append(Planned(each.token, object_urn(chart, key), {**each.body, "metadata": metadata}))
    return found
