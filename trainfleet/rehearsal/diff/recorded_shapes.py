"""The shapes of what Pulumi exports and records, as far as the rest of the diff relies on them.

Keys that are not named here are kept unchecked: other versions of the engine add their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from trainfleet.errors import Problem
from trainfleet.pydantic_messages import explain

Properties = dict[str, Any]


class _Shape(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class Resource(_Shape):
    """A resource of a state, or one side of a step."""

    urn: str
    type: str
    id: str | None = None
    custom: bool | None = None
    external: bool | None = None
    parent: str | None = None
    provider: str | None = None
    inputs: Properties | None = None
    outputs: Properties | None = None
    defaults: Properties | None = None
    dependencies: list[str] | None = None
    propertyDependencies: dict[str, list[str] | None] | None = None  # noqa: N815 - the engine's name
    deletedWith: str | None = None  # noqa: N815 - the engine's name


class _PendingOperation(_Shape):
    resource: dict[str, Any] | None = None
    type: str | None = None


class Deployment(_Shape):
    """The deployment of a state, without its resources."""

    manifest: dict[str, Any] | None = None
    resources: list[Any] | None = None
    pending_operations: list[_PendingOperation] | None = None


class _Side(_Shape):
    type: str | None = None
    id: str | None = None
    provider: str | None = None
    protect: bool | None = None
    custom: bool | None = None
    inputs: Properties | None = None
    outputs: Properties | None = None


class _PropertyDiff(_Shape):
    kind: str | None = None
    diffKind: str | None = None  # noqa: N815 - the engine's name
    inputDiff: bool | None = None  # noqa: N815 - the engine's name


class Step(_Shape):
    """The metadata of an operation in an event."""

    op: str
    urn: str
    type: str
    provider: str | None = None
    old: _Side | None = None
    new: _Side | None = None
    detailedDiff: dict[str, _PropertyDiff] | None = None  # noqa: N815 - the engine's name
    diffs: list[str] | None = None
    keys: list[str] | None = None


class DigestStep(_Shape):
    """A step of `pulumi preview --json`."""

    op: str
    urn: str
    provider: str | None = None
    oldState: _Side | None = None  # noqa: N815 - the engine's name
    newState: _Side | None = None  # noqa: N815 - the engine's name
    detailedDiff: dict[str, _PropertyDiff] | None = None  # noqa: N815 - the engine's name
    diffReasons: list[str] | None = None  # noqa: N815 - the engine's name
    replaceReasons: list[str] | None = None  # noqa: N815 - the engine's name


class Diagnostic(_Shape):
    """A message of the engine or of a program."""

    severity: str | None = None
    message: str
    urn: str | None = None


class _Violation(_Shape):
    policyName: str  # noqa: N815 - the engine's name
    message: str
    enforcementLevel: str  # noqa: N815 - the engine's name
    resourceUrn: str | None = None  # noqa: N815 - the engine's name


class _Operation(_Shape):
    metadata: Step


class _Summary(_Shape):
    resourceChanges: dict[str, int] | None = None  # noqa: N815 - the engine's name


class _Passed(_Shape):
    passed: list[Any] | None = None


_EVENTS: Mapping[str, type[_Shape]] = {
    "resourcePreEvent": _Operation,
    "resOutputsEvent": _Operation,
    "diagnosticEvent": Diagnostic,
    "policyEvent": _Violation,
    "summaryEvent": _Summary,
    "policyAnalyzeSummaryEvent": _Passed,
    "policyAnalyzeStackSummaryEvent": _Passed,
}


def problems(shape: type[BaseModel], value: Any, where: str = "") -> list[Problem]:
    """Return what in a value has another shape, at most twenty problems, each below `where`."""
    try:
        shape.model_validate(value)
    except ValidationError as error:
        found = (explain(each, shape) for each in error.errors(include_url=False)[:20])
        return [Problem(f"{where}.{each.where}".rstrip("."), each.what, each.fix) for each in found]
    return []


def is_event(value: Any) -> bool:
    """Return whether a value is an event of the engine whose parts have the shapes that are read."""
    return isinstance(value, dict) and all(
        not problems(shape, value[name]) for name, shape in _EVENTS.items() if value.get(name) is not None
    )


def is_urn(urn: str) -> bool:
    """Return whether text has the four parts of a URN: stack, project, type and name."""
    return urn.startswith("urn:pulumi:") and urn.count("::") >= 3
