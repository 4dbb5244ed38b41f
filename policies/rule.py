"""What a policy is made of, without Pulumi: a resource's properties, a violation, and a rule stated once for all clouds.

A rule's `checks` is a table from resource type to the function that judges it: a cloud joins a rule by adding rows.
Easy to get wrong: in a preview a property may be unknown. It is there, but using it raises `StillUnknown`; whoever runs
the rule stops there, keeps what was found before, and the same rule judges the known value when the stack is applied.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

Json = Any
"""A property: str, bool, float, None, list, dict, or UNKNOWN."""


class StillUnknown(Exception):  # noqa: N818 - not a fault: the value is only known later
    """Raised when a check uses a value that only exists once the stack is applied."""


class _Unknown:
    """Stands for a value that is there and cannot be looked at. `is None` and `key in props` work; everything else raises."""

    __slots__ = ()

    def _raise(self, *_: object) -> NoReturn:
        raise StillUnknown

    __bool__ = __eq__ = __iter__ = __getitem__ = __len__ = __contains__ = __str__ = __float__ = __lt__ = _raise
    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> NoReturn:
        raise StillUnknown

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()


@dataclass(frozen=True)
class Resource:
    """A resource as the engine sees it: inputs in a resource check, outputs in a stack check."""

    type: str
    name: str
    props: Mapping[str, Json]
    urn: str = ""
    depends: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By property: the URNs of the resources its value comes from; known in a preview too."""
    settings: Mapping[str, Json] = field(default_factory=dict)
    """The policy's own configuration (`--policy-pack-config`)."""


@dataclass(frozen=True)
class Violation:
    """What is wrong with a resource, in words that name the property."""

    what: str
    urn: str = ""
    name: str = ""


Check = Callable[[Resource], Iterable[Violation]]
StackCheck = Callable[[Sequence[Resource]], Iterable[Violation]]


@dataclass(frozen=True)
class Rule:
    name: str
    statement: str
    """The rule in one sentence that holds on every cloud."""
    fix: str
    """What to do about a violation."""
    references: tuple[str, ...]
    """Names of the same rule in CIS benchmarks, Checkov and Trivy."""
    checks: Mapping[str, Check] = field(default_factory=dict)
    stack: StackCheck | None = None
    """Judges what is absent: one resource that another needs."""
    settings: Mapping[str, Json] = field(default_factory=dict)
    """JSON schema of each setting the rule reads."""


def judge(rule: Rule, resource: Resource) -> tuple[Violation, ...]:
    """The violations of a rule by one resource, up to the first value that is not known yet."""
    check = rule.checks.get(resource.type)
    return _until_unknown(check(resource)) if check else ()


def judge_stack(rule: Rule, resources: Sequence[Resource]) -> tuple[Violation, ...]:
    """The violations of a rule by a whole stack."""
    return _until_unknown(rule.stack(resources)) if rule.stack else ()


def _until_unknown(found: Iterable[Violation]) -> tuple[Violation, ...]:
    kept: list[Violation] = []
    with contextlib.suppress(StillUnknown):
        for violation in found:
            kept.append(violation)  # noqa: PERF402 - `extend` would lose what came before an unknown value
    return tuple(kept)


def listed(value: Json) -> list[Json]:
    """A property that may be absent, one value or a list, as a list."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) or value is UNKNOWN else [value]


def is_true(value: Json) -> bool:
    """Booleans travel as booleans or as the words `true` and `false`."""
    return value is True or (value is not None and str(value).lower() == "true")
