"""Checks state machines. Source: the Amazon States Language specification."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainfleet.rehearsal.simulation.json_documents.findings import (
    Finding,
    below,
    dicts,
    number,
    unknown_keys,
)
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN
from trainfleet.suggestions import did_you_mean

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


def state_machine(value: Any, where: str = "") -> Iterator[Finding]:
    """Check a state machine, or a nested one at `where`."""
    if not isinstance(value, dict):
        yield where, "is not a JSON object", "a state machine is {'StartAt': ..., 'States': {...}}"
        return
    yield from unknown_keys(where, value, _MACHINE_KEYS)
    states, start = value.get("States"), value.get("StartAt")
    if not isinstance(states, dict) or not states:
        if states != UNKNOWN:
            yield below(where, "States"), "missing", "a state machine has at least one state"
        return
    if start is None:
        yield below(where, "StartAt"), "missing", "name the first state"
    elif start not in (*states, UNKNOWN):
        yield below(where, "StartAt"), f"{start!r} is not a state", did_you_mean(str(start), states)
    for name, state in states.items():
        if isinstance(state, dict):
            yield from _state(f"{below(where, 'States')}.{name}", state, states)


def _state(where: str, state: dict[str, Any], states: dict[str, Any]) -> Iterator[Finding]:
    kind = state.get("Type")
    yield from unknown_keys(where, state, _STATE_KEYS)
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
    for index, choice in enumerate(dicts(state.get("Choices"))):
        yield from _goes(f"{where}.Choices[{index}].Next", choice.get("Next"), states, needed=True)
    yield from _goes(f"{where}.Default", state.get("Default"), states)
    if kind == "Wait" and sum(name in state for name in _WAITS) != 1:
        yield (
            f"{where}.Seconds",
            "missing" if not any(name in state for name in _WAITS) else "is not alone",
            f"give one of {', '.join(_WAITS)}",
        )
    for index, catch in enumerate(dicts(state.get("Catch"))):
        yield from _goes(f"{where}.Catch[{index}].Next", catch.get("Next"), states, needed=True)
        yield from _errors(f"{where}.Catch[{index}]", catch)
    for index, retry in enumerate(dicts(state.get("Retry"))):
        yield from _errors(f"{where}.Retry[{index}]", retry)
        for name, least in (("IntervalSeconds", 1), ("MaxAttempts", 0), ("BackoffRate", 1)):
            yield from number(f"{where}.Retry[{index}].{name}", retry.get(name), least, 99_999_999)
    for name in ("TimeoutSeconds", "HeartbeatSeconds"):
        yield from number(f"{where}.{name}", state.get(name), 1, 99_999_999)
    for index, branch in enumerate(dicts(state.get("Branches"))):
        yield from state_machine(branch, f"{where}.Branches[{index}]")
    for name in ("ItemProcessor", "Iterator"):
        if isinstance(state.get(name), dict):
            yield from state_machine(state[name], f"{where}.{name}")


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
