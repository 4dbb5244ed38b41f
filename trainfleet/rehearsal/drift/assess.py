"""Assesses drift: from the events of a refresh to severity, what the next up does, and how to repair.

Pure functions over a recording and, if it is known, the state.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from trainfleet.rehearsal.accepted import AcceptedDrift
from trainfleet.rehearsal.diff import compare
from trainfleet.rehearsal.diff.access import AccessChange, access_changes, planned_before
from trainfleet.rehearsal.diff.change import SECRET, Change, Verb
from trainfleet.rehearsal.diff.data_loss import Loss, loss_of
from trainfleet.rehearsal.diff.drift import read_back
from trainfleet.rehearsal.diff.event_log import EventLog
from trainfleet.rehearsal.drift.expected import Expected, without_indexes
from trainfleet.rehearsal.drift.model import (
    DriftedProperty,
    DriftedResource,
    DriftReport,
    NextUp,
    Severity,
)
from trainfleet.rehearsal.simulation.property_paths import split_path
from trainfleet.rehearsal.simulation.pulumi_values import is_secret, plain
from trainfleet.rehearsal.simulation.replacement import Effect, effects, worst
from trainfleet.rehearsal.simulation.schema import packages
from trainfleet.rehearsal.steps.selection import dependents, model_of

State = Mapping[str, Any]
_COSMETIC = ("tags", "labels", "description", "annotations", "metadata.labels", "metadata.annotations")
_OUTPUT = "only the cloud sets it"
_NEXT = {
    Verb.CREATE: NextUp.CREATE,
    Verb.UPDATE: NextUp.UPDATE,
    Verb.REPLACE: NextUp.REPLACE,
    Verb.DELETE: NextUp.DELETE,
}


def assess(
    log: EventLog,
    source: str,
    *,
    accepted: Sequence[AcceptedDrift] = (),
    state: Sequence[State] = (),
    seconds: float = 0.0,
) -> DriftReport:
    """Return the drift that a recording shows.

    Args:
        log: the events of `pulumi refresh`, or of `pulumi preview --refresh`.
        source: where they are from.
        accepted: the drift that the project accepts.
        state: the resources of `pulumi stack export`, which say what the program ignores; empty if unknown.
        seconds: how long the refresh took.
    """
    external = {each["urn"] for each in state if each.get("external")}
    read = [each for each in read_back(log.events) if _is_ours(each, external)]
    before = [{**each["old"], "urn": each["urn"], "type": each["type"]} for each in read if each.get("old")]
    expected = Expected(
        accepted, {each["urn"]: each.get("ignoreChanges") or () for each in state}, state or before
    )
    planned = _planned(log)
    access = _access(read)
    loud = {name for change in access for name in change.resources}
    found = [
        drifted for each in read if (drifted := _assess(each, planned, expected, access_of=loud)) is not None
    ]
    order = list(Severity)
    found.sort(key=lambda each: (order.index(each.severity), not each.deleted, each.token, each.name))
    changed = {each.urn for each in found if not each.expected}
    names = {each.name for each in found if not each.expected}
    others = {urn: change for urn, change in (planned or {}).items() if urn not in changed}
    below = dependents(state, *changed) if others else set()
    return DriftReport(
        log.project,
        log.stack,
        source,
        tuple(each for each in found if not each.expected),
        tuple(each for each in found if each.expected),
        tuple(change for change in access if names & set(change.resources)),
        pending=tuple(_words(change) for urn, change in others.items() if urn not in below),
        follows=tuple(_words(change) for urn, change in others.items() if urn in below),
        incomplete=tuple(log.incomplete),
        notes=(*log.notes, *expected.notes(), *_notes(log, read, ruled=planned is None and bool(changed))),
        checked=len(read),
        seconds=seconds,
    )


def _words(change: Change) -> str:
    kinds = ", ".join(change.loss.kinds) if change.loss else "something unknown"
    return f"{change.verb} {change.name}{f' (loses {kinds})' if change.destructive else ''}"


def _is_ours(metadata: Mapping[str, Any], external: Container[str]) -> bool:
    """Return whether the stack manages a resource: not one that it only reads, no component, no provider."""
    old = metadata.get("old") or {}
    if not old.get("custom") or metadata["type"].startswith("pulumi:") or old.get("delete"):
        return False
    return metadata["urn"] not in external


def _planned(log: EventLog) -> dict[str, Change] | None:
    """Return by URN what the program changes after the refresh; None if the program did not run."""
    if all(step["op"] == "refresh" for step in log.steps):
        return None
    changes, _ = compare.changes(log.steps, log.before, real_preview=True)
    return {change.urn: change for change in changes}


def _access(read: Iterable[Mapping[str, Any]]) -> list[AccessChange]:
    sides: dict[str, list[State]] = {"old": [], "new": []}
    for metadata in read:
        for side, found in sides.items():
            if (values := metadata.get(side)) and (side == "old" or metadata["op"] != "delete"):
                found.append({**values, "urn": metadata["urn"], "type": metadata["type"]})
    return access_changes(planned_before(sides["old"]), planned_before(sides["new"]))


def _notes(log: EventLog, read: Sequence[Mapping[str, Any]], *, ruled: bool) -> Iterator[str]:
    if not read and not log.incomplete:
        yield "The recording contains no refresh: record `pulumi refresh --preview-only --event-log FILE`."
    if ruled:
        yield "The program did not run: what the next up does follows from the rules of the types."


# ---- one resource


def _assess(
    metadata: Mapping[str, Any],
    planned: Mapping[str, Change] | None,
    expected: Expected,
    *,
    access_of: set[str],
) -> DriftedResource | None:
    urn, token = metadata["urn"], metadata["type"]
    name = urn.rsplit("::", 1)[-1]
    change = None if planned is None else planned.get(urn)
    if metadata["op"] == "delete" or not metadata.get("new"):
        next_up = NextUp.CREATE if planned is None or change else NextUp.NOTHING
        loss, why = loss_of(token), expected.resource(token, name)
        severity = Severity.HIGH if loss is None or loss.loud else Severity.MEDIUM
        repair = _repair_deleted(next_up, loss)
        return DriftedResource(
            urn, token, name, True, severity, next_up, planned is not None, (), loss, repair, why
        )
    found = list(_properties(metadata, expected))
    if not found and metadata["op"] == "same":
        return None
    if not found and not (metadata.get("detailedDiff") or metadata.get("diffs")):
        return None  # the provider only wrote its state in another form
    drifted = [each for each in found if not each.expected]
    why = "" if drifted or not found else "; ".join(dict.fromkeys(each.expected for each in found))
    if planned is None:
        next_up = _predicted(metadata, drifted)
    else:
        next_up = _NEXT[change.verb] if change else NextUp.NOTHING
    loss = _loss(token, next_up, change, drifted)
    loses = next_up in (NextUp.REPLACE, NextUp.DELETE, NextUp.UNKNOWN) and (loss is None or loss.loud)
    return DriftedResource(
        urn,
        token,
        name,
        False,
        _severity(drifted, high=loses or name in access_of),
        next_up,
        planned is not None,
        (*drifted, *(each for each in found if each.expected)),
        loss,
        _repair(next_up, loss, loses=loses, protected=bool(metadata["old"].get("protect"))),
        why,
    )


def _properties(metadata: Mapping[str, Any], expected: Expected) -> Iterator[DriftedProperty]:
    """Yield each property that differs; those that no program can set, or that are accepted, as expected."""
    urn, token = metadata["urn"], metadata["type"]
    old, new = metadata["old"], metadata["new"]
    sides = [
        {
            path: (one, two)
            for path, one, two in compare.differences(token, old.get(side) or {}, new.get(side) or {})
        }
        for side in ("inputs", "outputs")
    ]
    inputs, both = sides[0], {**sides[1], **sides[0]}
    # Secrets are masked in a recording: only the provider's own comparison shows that they differ.
    for path in metadata.get("detailedDiff") or ():
        if path not in both and _is_masked(new, path):
            both[path] = (SECRET, SECRET)
    outputs = {**(old.get("outputs") or {}), "id": old.get("id")}
    for path, (state, cloud) in sorted(both.items()):
        top = split_path(path)[0]
        why = ""
        if path not in inputs and not _can_be_set(token, top, old, new):
            why = _OUTPUT
        value = (new.get("outputs") or {}).get(top)
        why = why or expected.property(urn, token, path, cloud=value, outputs=outputs)
        yield DriftedProperty(path, state, cloud, why)


def _is_masked(state: State, path: str) -> bool:
    """Return whether an input, or something that it is in, is a secret."""
    value: Any = state.get("inputs") or {}
    for step in split_path(path):
        value = value.get(step) if isinstance(value, Mapping) else None
        if value == SECRET or is_secret(value):
            return True
    return False


def _can_be_set(token: str, name: str, old: State, new: State) -> bool:
    """Return whether a program can set a property. Of a type whose SDK is not installed, any property."""
    if token.startswith("kubernetes:"):
        return False  # what differs in the outputs only was set by the API server or a controller
    if any(name in (side.get("inputs") or {}) for side in (old, new)):
        return True
    package = packages().get(token.split(":", 1)[0])
    resource = package.resource(token) if package else None
    return resource is None or name in resource.inputs


def _predicted(metadata: Mapping[str, Any], drifted: Sequence[DriftedProperty]) -> NextUp:
    """Return what an up does about a changed resource by the rules of its type."""
    old, new = metadata["old"], metadata["new"]
    state, cloud = (plain(side.get("inputs") or {}) for side in (old, new))
    names = {split_path(each.path)[0] for each in drifted} & (state.keys() | cloud.keys())
    names -= set(state.get("__defaults") or ())  # a provider keeps a name that it generated
    if not names:
        return NextUp.NOTHING
    token = metadata["type"]
    paths = [path for each in drifted if (path := split_path(each.path))[0] in names]
    if any(model_of(token).always_replaces(token, path) for path in paths):
        return NextUp.REPLACE
    outputs = plain(new.get("outputs") or {})
    for name in names:
        if cloud.get(name) == state.get(name) and name in outputs:
            cloud[name] = outputs[name]  # a provider that reads outputs only
    parts = [{name: side[name] for name in names if name in side} for side in (cloud, state)]
    found = worst(effects(token, *parts).values())
    return {Effect.REPLACE: NextUp.REPLACE, Effect.UNKNOWN: NextUp.UNKNOWN}.get(found, NextUp.UPDATE)


def _loss(
    token: str, next_up: NextUp, change: Change | None, drifted: Iterable[DriftedProperty]
) -> Loss | None:
    """Return what is lost if the next up restores the resource."""
    if change is not None:
        return change.loss or change.at_stake
    loss = loss_of(token)
    if next_up in (NextUp.REPLACE, NextUp.UNKNOWN, NextUp.DELETE):
        return loss
    rolls = next_up is NextUp.UPDATE and loss and any(loss.comes_with(each.path) for each in drifted)
    return (loss.by_update or loss) if loss and rolls else None


def _severity(drifted: Iterable[DriftedProperty], *, high: bool) -> Severity:
    if high:
        return Severity.HIGH
    paths = [without_indexes(each.path) for each in drifted]
    cosmetic = paths and all(
        any(path == each or path.startswith(f"{each}.") for each in _COSMETIC) for path in paths
    )
    return Severity.LOW if cosmetic else Severity.MEDIUM


# ---- how to repair


def _repair_deleted(next_up: NextUp, loss: Loss | None) -> str:
    if next_up is NextUp.NOTHING:
        return "`pulumi refresh` removes it from the state; the program does not have it any more"
    lost = loss is None or loss.loud
    return f"`pulumi up --refresh` creates it again{', without what was in it' if lost else ''}"


def _repair(next_up: NextUp, loss: Loss | None, *, loses: bool, protected: bool) -> str:
    keep = "to keep the cloud's value, write it into the program"
    lost = f" and loses: {loss.why if loss else 'not known, review it'}" if loses else ""
    if protected and next_up in (NextUp.REPLACE, NextUp.DELETE):
        return (
            f"it is protected: an up refuses to {next_up} it. Restore the value in the cloud by hand; {keep}"
        )
    match next_up:
        case NextUp.UPDATE:
            interrupts = f"; it interrupts: {loss.why}" if loss else ""
            return f"`pulumi up --refresh` restores it{interrupts}; {keep}"
        case NextUp.REPLACE:
            return (
                f"`pulumi up --refresh` REPLACES it{lost}; {keep}, or restore the value in the cloud by hand"
            )
        case NextUp.UNKNOWN:
            may = f"; if so, lost: {loss.why if loss else 'not known, review it'}" if loses else ""
            return (
                f"read `pulumi preview --refresh` first: no rule tells whether an up replaces it{may}; {keep}"
            )
        case NextUp.DELETE:
            return f"`pulumi up` deletes it{lost}: the program does not have it any more"
    return "an up leaves it: set it in the program to restore it, or accept it with `pulumi refresh`"
