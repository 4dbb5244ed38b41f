"""Converts engine events to changes: resources, old and new values, and what forces a replacement.

Pure functions over the event log.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from trainfleet.rehearsal.diff.change import SECRET, UNKNOWN, Change, Property, Verb
from trainfleet.rehearsal.diff.data_loss import Loss, loss_of
from trainfleet.rehearsal.diff.definition_versions import lost_versions
from trainfleet.rehearsal.diff.job_status import job_loss
from trainfleet.rehearsal.diff.unknown_effects import may_replace
from trainfleet.rehearsal.simulation.pulumi_values import SIGNATURE, is_secret, plain, texts
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN as WIRE_UNKNOWN
from trainfleet.rehearsal.simulation.replacement import in_terms_of_new, join_path, split_path
from trainfleet.rehearsal.simulation.schema import is_plugin_component
from trainfleet.rehearsal.steps.selection import is_real

HIDDEN = {"kubernetes:core/v1:Secret": ("data", "stringData")}
"""Properties that are always treated as secret, even if the program does not mark them."""
_QUIET = {
    "same",
    "read",
    "refresh",
    "read-replacement",
    "read-discard",
    "discard",
    "import",
    "remove-pending-replace",
}
_FILES = {"c44067f5952c0a294b673a41bacd8c17": "file", "0def7320c3a5731c473e5ecbe6d01bc7": "archive"}
"""The kinds of assets, by their signature."""
_ACCOUNT = ("ownerId", "accountId", "registryId")
"""Outputs that are the simulated account, whichever resource has them first."""
INSIDE = " → "
"""Separates a property from the path inside the JSON document in its value."""
Path = tuple[str, ...]
Event = Mapping[str, Any]
Words = Callable[[str], str]


def changes(
    events: Iterable[Event],
    before: Iterable[Mapping[str, Any]],
    *,
    real_ids: bool = False,
    real_preview: bool = False,
) -> tuple[list[Change], int]:
    """Return the changes that a preview makes to cloud resources, and the number of unchanged resources.

    Args:
        events: the metadata of the engine's resource events.
        before: the resources in the state before the preview, with their original protection.
        real_ids: whether the IDs in the state are those of a real cloud, which a reviewer knows.
        real_preview: whether real providers computed the events: their packages need not be installed, and
            what replaces a resource is known.
    """
    events, by_urn = list(events), dict[str, list[Event]]()
    for event in events:
        if _shown(event) if not real_preview else _shown_real(event):
            by_urn.setdefault(event["urn"], []).append(event)
    known = {resource["urn"]: resource for resource in before}
    words = _as_is if real_ids or real_preview else _made_up(known.values(), events)
    found, unchanged = [], 0
    for urn, own in by_urn.items():
        acting = [event for event in own if event["op"] not in _QUIET]
        if acting:
            change = _change(urn, acting, known.get(urn, {}), words, certain=real_preview)
            deployed = known.get(urn) if real_ids or real_preview else None
            found.append(replace(change, loss=job_loss(change.token, change.loss, deployed)))
        else:
            unchanged += any(event["op"] in ("same", "refresh") for event in own)
    return sorted(
        found, key=lambda change: (list(Verb).index(change.verb), change.type, change.name)
    ), unchanged


def deletions(before: Iterable[Mapping[str, Any]]) -> list[Change]:
    """Return the changes that delete a whole stack."""
    events = [
        {"op": "delete", "urn": each["urn"], "type": each["type"], "old": each, "new": None}
        for each in before
        if not each.get("external")
    ]
    return changes(events, before)[0]


def _shown(event: Event) -> bool:
    """Return whether to show a resource: no components, no stack, no default providers of the engine.

    Explicit providers are shown, because they are settings of the program.
    """
    if event["type"].startswith("pulumi:providers:"):
        return not _is_default_provider(event["urn"])
    return is_real(event["type"])


def _shown_real(event: Event) -> bool:
    """Return the same for an event of a real preview, whose packages may not be installed here."""
    token = event["type"]
    if token.startswith("pulumi:providers:"):
        return not _is_default_provider(event["urn"])
    states = [state for side in ("old", "new") if (state := event.get(side))]
    # An event leaves `custom` out if it is false, but not `provider`, which only custom resources have.
    recorded = any(key in state for state in states for key in ("custom", "provider")) or "provider" in event
    made = any(state.get("custom") or state.get("provider") for state in states) or bool(
        event.get("provider")
    )
    return (made or not recorded) and not token.startswith("pulumi:")


def _is_default_provider(urn: str) -> bool:
    return re.search(r"::default(_|$)", urn) is not None


def _as_is(text: str) -> str:
    return text


def _change(
    urn: str, events: list[Event], before: Mapping[str, Any], words: Words, *, certain: bool = False
) -> Change:
    ops = {event["op"] for event in events}
    verb = next(
        (verb for verb, words in _VERBS if any(word in op for op in ops for word in words)), Verb.UPDATE
    )
    event = next((each for each in events if each.get("detailedDiff")), events[0])
    token = event["type"]
    properties = (
        tuple(_properties(event, words, real_preview=certain)) if verb in (Verb.UPDATE, Verb.REPLACE) else ()
    )
    forced = tuple(dict.fromkeys(each.path.split(INSIDE)[0] for each in properties if each.forces)) or tuple(
        event.get("keys") or ()
    )
    order = [each["op"] for each in events]
    gone = verb in (Verb.REPLACE, Verb.DELETE)
    unsure = may_replace(token, event) if verb is Verb.UPDATE and not certain else ()
    return Change(
        verb,
        urn,
        token,
        urn.rsplit("::", 1)[-1],
        properties,
        forced if verb is Verb.REPLACE else (),
        _loss(token, properties, gone=gone) or (lost_versions(token, event) if verb is Verb.UPDATE else None),
        protected=gone and bool(before.get("protect")),
        kept=gone and bool(before.get("retainOnDelete")),
        delete_first=verb is Verb.REPLACE
        and "delete-replaced" in order
        and order.index("delete-replaced") < _first(order, "create-replacement"),
        may_replace=unsure,
        at_stake=loss_of(token) if unsure else None,
    )


def _loss(token: str, properties: Iterable[Property], *, gone: bool) -> Loss | None:
    """What a resource that is gone loses, or one whose update replaces what is behind it."""
    loss = loss_of(token)
    if gone or loss is None:
        return loss
    return (loss.by_update or loss) if any(loss.comes_with(each.path) for each in properties) else None


_VERBS = (
    (Verb.REPLACE, ("replace",)),
    (Verb.DELETE, ("delete",)),
    (Verb.CREATE, ("create",)),
    (Verb.UPDATE, ("update",)),
)


def _first(order: list[str], op: str) -> int:
    return order.index(op) if op in order else len(order)


def _properties(event: Event, words: Words, *, real_preview: bool = False) -> Iterator[Property]:
    old, new = (event.get("old") or {}).get("inputs") or {}, (event.get("new") or {}).get("inputs") or {}
    old = in_terms_of_new(event["type"], old, new)
    detailed: Mapping[str, Mapping[str, Any]] = event.get("detailedDiff") or {}
    if not detailed:
        keys = event.get("keys") or ()
        # Without details, `diffs` also lists outputs that a replacement computes again.
        named = [name for name in event.get("diffs") or () if name in old or name in new] or _differing(
            old, new
        )
        detailed = {name: {"diffKind": "update-replace" if name in keys else "update"} for name in named}
    old_outputs = (event.get("old") or {}).get("outputs") or {}
    hidden = HIDDEN.get(event["type"], ())
    seen: set[Path] = set()
    for text in sorted(detailed, key=_natural):
        if text.startswith("__"):
            continue
        path = split_path(text)
        forces = str(detailed[text].get("diffKind", "")).endswith("replace")
        # A provider may compare with what it read last instead of with the earlier inputs.
        from_outputs = detailed[text].get("inputDiff") is False and _at(old, path) == _at(new, path)
        path, before, after = _whole_list(path, old_outputs if from_outputs else old, new)
        if path in seen or (real_preview and not forces and path[0] not in old and path[0] not in new):
            continue  # of a real preview, also outputs that the provider computes again
        seen.add(path)
        if path[:1] and path[0] in hidden:
            yield Property(
                join_path(path),
                SECRET if before is not None else None,
                SECRET if after is not None else None,
                forces,
            )
            continue
        for below, inner_old, inner_new in _inside(before, after):
            shown = join_path(path) + (f"{INSIDE}{below}" if below else "")
            yield Property(shown, _value(inner_old, words), _value(inner_new, words), forces)


def _differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the names of the inputs that differ, for an event without a diff."""
    return [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]


def differences(token: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the path and both values, ready for display, of each leaf that differs in two states."""
    hidden = HIDDEN.get(token, ())
    for path, before, after in _leaves(dict(old), dict(new), ()):
        if path[0].startswith("__"):
            continue
        one, two = (
            SECRET if path[0] in hidden and side is not None else _value(side, _as_is)
            for side in (before, after)
        )
        yield join_path(path), one, two


def _natural(text: str) -> list[Any]:
    """Return a sort key that puts `[2]` before `[10]`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]


def _whole_list(path: Path, old: Any, new: Any) -> tuple[Path, Any, Any]:
    """Return a path and its old and new values.

    If the path points into a list of scalars, return the whole list, because its items have no identity.
    """
    for length in range(len(path)):
        if path[length].startswith("["):
            before, after = _at(old, path[:length]), _at(new, path[:length])
            if _is_plain_list(before) and _is_plain_list(after):
                return path[:length], before, after
    return path, _at(old, path), _at(new, path)


def _is_plain_list(value: Any) -> bool:
    return value is None or (
        isinstance(value, list) and not any(isinstance(item, dict | list) for item in value)
    )


def _at(value: Any, path: Path) -> Any:
    for step in path:
        value = plain(value) if is_secret(value) else value
        if step.startswith("["):
            index = int(step[1:-1]) if step[1:-1].isdigit() else -1
            value = value[index] if isinstance(value, list) and 0 <= index < len(value) else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


def _inside(old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the differing leaves of two strings that contain JSON; for other values, yield the values."""
    one, two = _document(old), _document(new)
    if one is None or two is None:
        yield "", old, new
        return
    found = list(_leaves(one, two, ()))
    if 0 < len(found) <= 12:
        for path, before, after in found:
            yield join_path(path), before, after
    else:
        yield "", old, new


def _document(value: Any) -> Any:
    if not isinstance(value, str) or value[:1] not in "{[" or WIRE_UNKNOWN in value:
        return None
    try:
        return json.loads(value)
    except ValueError:
        return None


def _leaves(old: Any, new: Any, path: Path) -> Iterator[tuple[Path, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            yield from _leaves(old.get(key), new.get(key), (*path, str(key)))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (one, two) in enumerate(zip(old, new, strict=True)):
            yield from _leaves(one, two, (*path, f"[{index}]"))
    elif old != new:
        yield path, old, new


def _value(value: Any, words: Words) -> Any:
    """Return a value for display: hides secrets, and describes unknown values and generated IDs."""
    if is_secret(value):
        return SECRET
    if isinstance(value, str):
        return _text(value, words)
    if isinstance(value, dict) and value.get(SIGNATURE) in _FILES:
        return f"[{_FILES[value[SIGNATURE]]} {str(value.get('hash') or '')[:12]}]"
    if isinstance(value, dict):
        return {key: _value(item, words) for key, item in value.items() if not key.startswith("__")}
    if isinstance(value, list):
        return [_value(item, words) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _text(value: str, words: Words) -> str:
    if "PRIVATE KEY-----" in value:
        return SECRET
    return UNKNOWN if value == WIRE_UNKNOWN else words(value.replace(WIRE_UNKNOWN, f"[{UNKNOWN}]"))


def _made_up(before: Iterable[Mapping[str, Any]], events: Iterable[Event]) -> Words:
    """Return a function that replaces generated IDs, ARNs, addresses and names with the resource's name.

    A reviewer knows `prod-vpc`, but not `vpc-061b374a7955f4dc2`, which exists in no cloud and differs in each
    run.
    """
    names: dict[str, str] = {}
    planned = [{**new, "type": event["type"]} for event in events if (new := event.get("new"))]
    for resource in filter(_has_generated, (*before, *planned)):
        name, inputs = resource["urn"].rsplit("::", 1)[-1], resource.get("inputs") or {}
        own = set(
            texts(
                {key: value for key, value in inputs.items() if key not in (inputs.get("__defaults") or ())}
            )
        )
        drawn = {key: inputs.get(key) for key in inputs.get("__defaults") or ()}
        for key, value in (("id", resource.get("id")), *drawn.items(), *_texts_of(resource)):
            if (
                isinstance(value, str)
                and len(value) >= 9
                and value not in own
                and re.search(r"[0-9a-f]{7}", value)
                and value != WIRE_UNKNOWN
            ):
                shown = name if key == "id" or key in drawn else f"{name}.{key}"
                names.setdefault(value, "‹account›" if key in _ACCOUNT else f"‹{shown}›")
    if not names:
        return lambda text: text
    any_of = re.compile("|".join(re.escape(value) for value in sorted(names, key=len, reverse=True)))
    return lambda text: any_of.sub(lambda match: names[match.group()], text)


def _has_generated(resource: Mapping[str, Any]) -> bool:
    return bool(resource.get("custom")) or is_plugin_component(resource)


def _texts_of(resource: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the outputs by name, and the items of a component's lists."""
    for key, value in (resource.get("outputs") or {}).items():
        yield key, value
        if not resource.get("custom") and isinstance(value, list):
            yield from ((f"{key}[{index}]", item) for index, item in enumerate(value))
