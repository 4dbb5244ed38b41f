"""Checks JSON documents that are not policies: state machines, dashboards, filters, and API shapes.

Sources: the Amazon States Language specification; the CloudWatch API reference, "Dashboard body structure and
syntax"; for containers, the models that `tools/api_facts/gather_aws.py` reads.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from trainfleet.rehearsal.simulation.custom_resources import value_mistakes
from trainfleet.rehearsal.simulation.facts import facts_file
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN
from trainfleet.suggestions import did_you_mean

Finding = tuple[str, str, str]

_STATES = ("Choice", "Fail", "Map", "Parallel", "Pass", "Succeed", "Task", "Wait")
_STATE_KEYS = frozenset(
    [
        "Type",
        "Comment",
        "Next",
        "End",
        "InputPath",
        "OutputPath",
        "Parameters",
        "ResultPath",
        "ResultSelector",
        "Retry",
        "Catch",
        "Resource",
        "TimeoutSeconds",
        "TimeoutSecondsPath",
        "HeartbeatSeconds",
        "HeartbeatSecondsPath",
        "Credentials",
        "Result",
        "Choices",
        "Default",
        "Seconds",
        "SecondsPath",
        "Timestamp",
        "TimestampPath",
        "Error",
        "ErrorPath",
        "Cause",
        "CausePath",
        "Branches",
        "ItemProcessor",
        "Iterator",
        "ItemsPath",
        "ItemSelector",
        "ItemReader",
        "ItemBatcher",
        "ResultWriter",
        "MaxConcurrency",
        "MaxConcurrencyPath",
        "ToleratedFailurePercentage",
        "ToleratedFailurePercentagePath",
        "ToleratedFailureCount",
        "ToleratedFailureCountPath",
        "Label",
        "QueryLanguage",
        "Arguments",
        "Output",
        "Assign",
        "Items",
    ]
)
_MACHINE_KEYS = (
    "Comment",
    "StartAt",
    "States",
    "TimeoutSeconds",
    "Version",
    "QueryLanguage",
    "ProcessorConfig",
)
_NEEDS = {"Task": ("Resource",), "Choice": ("Choices",), "Parallel": ("Branches",)}
_WAITS = ("Seconds", "SecondsPath", "Timestamp", "TimestampPath")
_WIDGETS = ("metric", "text", "log", "alarm", "explorer", "custom")
_VIEWS = ("timeSeries", "singleValue", "gauge", "bar", "pie", "table")


def _keys(where: str, value: dict[str, Any], known: frozenset[str] | tuple[str, ...]) -> Iterator[Finding]:
    for key in value:
        if key not in known:
            yield _below(where, key), "unknown key", did_you_mean(key, known)


def _below(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _machine(value: Any, where: str = "") -> Iterator[Finding]:
    if not isinstance(value, dict):
        yield where, "is not a JSON object", "a state machine is {'StartAt': ..., 'States': {...}}"
        return
    yield from _keys(where, value, _MACHINE_KEYS)
    states, start = value.get("States"), value.get("StartAt")
    if not isinstance(states, dict) or not states:
        if states != UNKNOWN:
            yield _below(where, "States"), "missing", "a state machine has at least one state"
        return
    if start is None:
        yield _below(where, "StartAt"), "missing", "name the first state"
    elif start not in (*states, UNKNOWN):
        yield _below(where, "StartAt"), f"{start!r} is not a state", did_you_mean(str(start), states)
    for name, state in states.items():
        if isinstance(state, dict):
            yield from _state(f"{_below(where, 'States')}.{name}", state, states)


def _state(where: str, state: dict[str, Any], states: dict[str, Any]) -> Iterator[Finding]:
    kind = state.get("Type")
    yield from _keys(where, state, _STATE_KEYS)
    if kind not in (*_STATES, UNKNOWN):
        yield (
            f"{where}.Type",
            f"{kind!r} is not a state type" if kind else "missing",
            did_you_mean(str(kind), _STATES),
        )
        return
    for name in _NEEDS.get(str(kind), ()):
        if name not in state:
            yield f"{where}.{name}", f"missing, because Type is {kind!r}", ""
    yield from _way_on(where, state, states)
    for index, choice in enumerate(_dicts(state.get("Choices"))):
        yield from _goes(f"{where}.Choices[{index}].Next", choice.get("Next"), states, needed=True)
    yield from _goes(f"{where}.Default", state.get("Default"), states)
    if kind == "Wait" and sum(name in state for name in _WAITS) != 1:
        yield (
            f"{where}.Seconds",
            "missing" if not any(name in state for name in _WAITS) else "is not alone",
            f"give one of {', '.join(_WAITS)}",
        )
    for index, catch in enumerate(_dicts(state.get("Catch"))):
        yield from _goes(f"{where}.Catch[{index}].Next", catch.get("Next"), states, needed=True)
        yield from _errors(f"{where}.Catch[{index}]", catch)
    for index, retry in enumerate(_dicts(state.get("Retry"))):
        yield from _errors(f"{where}.Retry[{index}]", retry)
        for name, least in (("IntervalSeconds", 1), ("MaxAttempts", 0), ("BackoffRate", 1)):
            yield from _number(f"{where}.Retry[{index}].{name}", retry.get(name), least, 99_999_999)
    for name in ("TimeoutSeconds", "HeartbeatSeconds"):
        yield from _number(f"{where}.{name}", state.get(name), 1, 99_999_999)
    for index, branch in enumerate(_dicts(state.get("Branches"))):
        yield from _machine(branch, f"{where}.Branches[{index}]")
    for name in ("ItemProcessor", "Iterator"):
        if isinstance(state.get(name), dict):
            yield from _machine(state[name], f"{where}.{name}")


def _way_on(where: str, state: dict[str, Any], states: dict[str, Any]) -> Iterator[Finding]:
    ends = state.get("Type") in ("Choice", "Succeed", "Fail")
    if not ends and "Next" not in state and not state.get("End"):
        yield f"{where}.Next", "missing", "a state needs Next or End"
    if state.get("Next") is not None and state.get("End") is True:
        yield f"{where}.End", "conflicts with Next", "give one of them"
    yield from _goes(f"{where}.Next", state.get("Next"), states)


def _goes(where: str, target: Any, states: dict[str, Any], *, needed: bool = False) -> Iterator[Finding]:
    if target is None and needed:
        yield where, "missing", "name the next state"
    elif isinstance(target, str) and UNKNOWN not in target and target not in states:
        yield where, f"{target!r} is not a state", did_you_mean(target, states)


def _errors(where: str, value: dict[str, Any]) -> Iterator[Finding]:
    if not isinstance(value.get("ErrorEquals"), list) and value.get("ErrorEquals") != UNKNOWN:
        yield f"{where}.ErrorEquals", "missing: a list of errors", "as in ['States.ALL']"


def _number(where: str, value: Any, low: float, high: float) -> Iterator[Finding]:
    if value is None or (isinstance(value, str) and (UNKNOWN in value or value.startswith("{%"))):
        return
    if isinstance(value, (str, bool, list, dict)):
        yield where, f"must be a number, not {value!r}", ""
    elif not low <= value <= high:
        yield where, f"{value} is out of range", f"it must be from {low:g} to {high:.15g}"


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _dashboard(value: Any) -> Iterator[Finding]:
    if not isinstance(value, dict):
        yield "", "is not a JSON object", "a dashboard is {'widgets': [...]}"
        return
    yield from _keys("", value, ("widgets", "start", "end", "periodOverride", "variables"))
    if value.get("periodOverride") not in (None, "auto", "inherit", UNKNOWN):
        yield "periodOverride", f"{value['periodOverride']!r} is not one of the values", "auto or inherit"
    for index, widget in enumerate(_dicts(value.get("widgets"))):
        yield from _widget(f"widgets[{index}]", widget)


def _widget(where: str, widget: dict[str, Any]) -> Iterator[Finding]:
    yield from _keys(where, widget, ("type", "x", "y", "width", "height", "properties"))
    kind, properties = widget.get("type"), widget.get("properties")
    if kind not in (*_WIDGETS, UNKNOWN):
        yield (
            f"{where}.type",
            f"{kind!r} is not a widget type" if kind else "missing",
            did_you_mean(str(kind), _WIDGETS),
        )
    for name, low, high in (("width", 1, 24), ("height", 1, 1000), ("x", 0, 23), ("y", 0, 1_000_000)):
        yield from _number(f"{where}.{name}", widget.get(name), low, high)
    if properties is None:
        yield f"{where}.properties", "missing", ""
    if not isinstance(properties, dict) or kind != "metric":
        return
    view = properties.get("view")
    if view not in (None, UNKNOWN, *_VIEWS):
        yield (
            f"{where}.properties.view",
            f"{view!r} is not one of the values",
            did_you_mean(str(view), _VIEWS),
        )
    if not any(name in properties for name in ("metrics", "annotations")):
        yield (
            f"{where}.properties.metrics",
            "missing",
            "a metric widget shows metrics, or an alarm in annotations",
        )
    period = properties.get("period")
    if isinstance(period, int) and period not in (1, 5, 10, 20, 30) and (period < 1 or period % 60):
        yield (
            f"{where}.properties.period",
            f"{period} is not a period",
            "it must be 1, 5, 10, 20, 30 or a multiple of 60",
        )


def _redrive_allow(value: Any) -> Iterator[Finding]:
    if not isinstance(value, dict):
        yield "", "is not a JSON object", ""
        return
    known = ("allowAll", "denyAll", "byQueue")
    yield from _keys("", value, ("redrivePermission", "sourceQueueArns"))
    permission = value.get("redrivePermission")
    if permission not in (*known, UNKNOWN):
        yield (
            "redrivePermission",
            f"{permission!r} is not one of the values" if permission else "missing",
            did_you_mean(str(permission), known),
        )
    if permission == "byQueue" and not value.get("sourceQueueArns"):
        yield "sourceQueueArns", "missing, because redrivePermission is 'byQueue'", ""


def _topic_redrive(value: Any) -> Iterator[Finding]:
    if not isinstance(value, dict):
        yield "", "is not a JSON object", ""
        return
    yield from _keys("", value, ("deadLetterTargetArn",))
    if not value.get("deadLetterTargetArn"):
        yield "deadLetterTargetArn", "missing", "the ARN of a queue"


def _filter(value: Any, where: str = "") -> Iterator[Finding]:
    if not isinstance(value, dict):
        yield where, "is not a JSON object", ""
        return
    for key, item in value.items():
        if isinstance(item, dict):
            yield from _filter(item, _below(where, key))
        elif not isinstance(item, list) and item != UNKNOWN:
            yield _below(where, key), f"must be a list, not {item!r}", "a filter lists the values that match"


@functools.cache
def _shape(name: str) -> dict[str, Any] | None:
    """The schema of a document; None without the optional package `trainfleet-api-facts`."""
    file = facts_file("aws_documents", name)
    held: dict[str, Any] | None = json.loads(file.read_text())["schema"] if file else None
    return held


def _modelled(name: str) -> Callable[[Any], Iterator[Finding]]:
    """Return a check of documents in the form of an API shape."""

    def check(value: Any) -> Iterator[Finding]:
        schema = _shape(name)
        if schema is None:
            return
        if isinstance(value, dict) and schema["type"] == "array":
            yield "", "must be a list, not an object", ""
            return
        for mistake in value_mistakes("", _spelt(value, schema), schema):
            yield mistake.path.lstrip("."), mistake.what, mistake.fix

    return check


def _spelt(value: Any, schema: dict[str, Any]) -> Any:
    """Return a document with the capitalization of the model and without nulls."""
    if isinstance(value, list):
        return [_spelt(item, schema.get("items") or {}) for item in value]
    properties = schema.get("properties")
    if not isinstance(value, dict) or not properties:
        return value
    names = {name.lower(): name for name in properties}
    spelt = {names.get(key.lower(), key): item for key, item in value.items() if item is not None}
    return {key: _spelt(item, properties.get(key) or {}) for key, item in spelt.items()}


_MEMBER = re.compile(
    r"allUsers|allAuthenticatedUsers|(?:user|serviceAccount|group):[^\s:@]+@[^\s@]+|serviceAccount:[^\s]+\.svc\.id\.goog\[[^\s/\]]+/[^\s/\]]+\]"
    r"|domain:[^\s@]+\.[^\s@]+|(?:projectOwner|projectEditor|projectViewer):[^\s]+|deleted:[^\s]+|(?:principal|principalSet|principalHierarchy)://[^\s]+"
)
_ROLE = re.compile(r"roles/[A-Za-z0-9_.]+|(?:projects|organizations)/[^/\s]+/roles/[A-Za-z0-9_.]+")


def _bindings(value: Any) -> Iterator[Finding]:
    """Check a Google IAM policy. Source: IAM API reference, Policy, Binding, AuditConfig."""
    if not isinstance(value, dict):
        yield "", "is not a JSON object", "a policy is {'bindings': [{'role': ..., 'members': [...]}]}"
        return
    yield from _keys("", value, ("bindings", "auditConfigs", "etag", "version"))
    if value.get("version") not in (None, 0, 1, 3, UNKNOWN):
        yield "version", f"{value['version']!r} is not one of the values", "0, 1 or 3"
    if "bindings" in value and not isinstance(value["bindings"], list) and value["bindings"] != UNKNOWN:
        yield "bindings", f"must be a list, not {value['bindings']!r}", ""
    for index, binding in enumerate(_dicts(value.get("bindings"))):
        where = f"bindings[{index}]"
        yield from _keys(where, binding, ("role", "members", "condition"))
        role, members = binding.get("role"), binding.get("members")
        if role is None:
            yield f"{where}.role", "missing", "a role is like roles/viewer"
        elif not (isinstance(role, str) and (UNKNOWN in role or _ROLE.fullmatch(role))):
            yield (
                f"{where}.role",
                f"{role!r} is not a role",
                "a role is like roles/viewer or projects/P/roles/NAME",
            )
        if members is not None and not isinstance(members, list) and members != UNKNOWN:
            yield f"{where}.members", f"must be a list, not {members!r}", ""
        for number, member in enumerate(members if isinstance(members, list) else ()):
            if not (isinstance(member, str) and (UNKNOWN in member or _MEMBER.fullmatch(member))):
                yield (
                    f"{where}.members[{number}]",
                    f"{member!r} is not a member",
                    "a member is like user:name@example.com or serviceAccount:...",
                )
        condition = binding.get("condition")
        if isinstance(condition, dict):
            yield from _keys(
                f"{where}.condition", condition, ("title", "description", "expression", "location")
            )
            yield from (
                (f"{where}.condition.{name}", "missing", "")
                for name in ("title", "expression")
                if not condition.get(name)
            )


_LAYOUTS = ("gridLayout", "mosaicLayout", "rowLayout", "columnLayout")


def _google_dashboard(value: Any) -> Iterator[Finding]:
    """Check a Cloud Monitoring dashboard: one layout, and one type per widget.

    Source: Monitoring API reference, Dashboard.
    """
    if not isinstance(value, dict):
        yield "", "is not a JSON object", "a dashboard is {'displayName': ..., 'mosaicLayout': {...}}"
        return
    yield from _keys(
        "", value, ("name", "displayName", "etag", "dashboardFilters", "annotations", "labels", *_LAYOUTS)
    )
    if not value.get("displayName"):
        yield "displayName", "missing", "a dashboard has a name"
    given = [name for name in _LAYOUTS if name in value]
    if len(given) > 1:
        yield given[1], f"conflicts with `{given[0]}`", "a dashboard has one layout"
    mosaic = value.get("mosaicLayout")
    if isinstance(mosaic, dict):
        yield from _keys("mosaicLayout", mosaic, ("columns", "tiles"))
        yield from _number("mosaicLayout.columns", mosaic.get("columns"), 1, 48)
        for index, tile in enumerate(_dicts(mosaic.get("tiles"))):
            yield from _keys(
                f"mosaicLayout.tiles[{index}]", tile, ("xPos", "yPos", "width", "height", "widget")
            )


BODIES: dict[str, Callable[[Any], Iterator[Finding]]] = {
    "states": _machine,
    "dashboard": _dashboard,
    "redrive-allow": _redrive_allow,
    "topic-redrive": _topic_redrive,
    "filter": _filter,
    "bindings": _bindings,
    "google-dashboard": _google_dashboard,
    "ecs-containers": _modelled("ecs-containers"),
    "batch-container": _modelled("batch-container"),
    "batch-nodes": _modelled("batch-nodes"),
}
