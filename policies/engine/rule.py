"""The building blocks of a policy, without Pulumi: resources, violations and rules.

A rule is written once for all clouds. Its `checks` map a resource type to the function that checks one
resource; its `stack` maps a type to a function that checks the whole stack.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

Json = Any
"""A property: str, bool, float, None, list, dict, or UNKNOWN."""
Severity = Literal["low", "medium", "high", "critical"]
Level = Literal["mandatory", "advisory", "off"]
ENVIRONMENTS = ("dev", "staging", "prod")
CLOUDS = {"aws": "aws", "gcp": "gcp", "azure-native": "azure", "kubernetes": "kubernetes"}
"""Package of a resource type to the name of its cloud."""
_AZURE_VERSION = re.compile(r"^azure-native:(\w+)/v\d+\w*:")
_AZURE_LOCAL_SDK = re.compile(r"^azure-native_\w+_v\d+\w*:(\w+)(?:/v\d+\w*)?:")


class StillUnknown(Exception):  # noqa: N818 - not an error: the value is known later
    """Raised when a check uses a value that is only known when the stack is applied."""


class _Unknown:
    """A value that exists but is not known yet. `is None` and `key in props` work; any other use raises
    StillUnknown.
    """

    __slots__ = ()

    def _raise(self, *_: object) -> NoReturn:
        raise StillUnknown

    __bool__ = __eq__ = __iter__ = __getitem__ = __len__ = __contains__ = __str__ = __float__ = __int__ = (
        __lt__
    ) = __gt__ = __le__ = __ge__ = _raise
    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> NoReturn:
        raise StillUnknown

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()


def canonical(kind: str) -> str:
    """Return a resource type without the API version that Azure types can include."""
    if not kind.startswith("azure-native"):
        return kind
    return _AZURE_LOCAL_SDK.sub(r"azure-native:\1:", _AZURE_VERSION.sub(r"azure-native:\1:", kind))


@dataclass(frozen=True)
class Resource:
    """A resource as the engine sees it: inputs in a resource check, outputs in a stack check."""

    type: str
    name: str
    props: Mapping[str, Json]
    urn: str = ""
    depends: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Property name to the URNs of the resources that its value comes from; also known in a preview."""
    settings: Mapping[str, Json] = field(default_factory=dict)
    """The policy's configuration (`--policy-pack-config`)."""
    protect: bool | None = None
    """Whether the engine refuses to delete it (Pulumi's option `protect`); None if that is not known."""

    @property
    def kind(self) -> str:
        """The type without an API version, as in rules."""
        return canonical(self.type)


@dataclass(frozen=True)
class Violation:
    """What is wrong with a resource. The message names the property."""

    message: str
    urn: str = ""
    name: str = ""


Check = Callable[[Resource], Iterable[Violation]]
StackCheck = Callable[[Sequence[Resource]], Iterable[Violation]]

FROM_STAGING: Mapping[str, Level] = {"dev": "advisory"}
"""For rules that cost effort or money before anyone depends on the platform."""
IN_PRODUCTION: Mapping[str, Level] = {"dev": "off", "staging": "advisory"}
"""For rules that get in the way of short-lived platforms."""
ADVICE: Mapping[str, Level] = {"dev": "advisory", "staging": "advisory", "prod": "advisory"}
"""For recommendations."""


@dataclass(frozen=True)
class Rule:
    """One policy, with its checks for each cloud."""

    name: str
    statement: str
    """The rule in one sentence, valid for every cloud."""
    reason: str
    """What goes wrong without the rule."""
    fix: str
    """How to fix a violation."""
    references: tuple[str, ...]
    """Names of the same rule in CIS benchmarks, Checkov and Trivy, or the documentation that it follows."""
    severity: Severity
    checks: Mapping[str, Check] = field(default_factory=dict)
    """Resource type to the function that checks one resource."""
    stack: Mapping[str, StackCheck] = field(default_factory=dict)
    """Resource type to the function that checks the whole stack, for example for a missing companion."""
    levels: Mapping[str, Level] = field(default_factory=dict)
    """Environment to the level, where it is less than mandatory."""
    settings: Mapping[str, Json] = field(default_factory=dict)
    """JSON schema of each setting that the rule reads."""

    def level(self, environment: str | None) -> Level:
        """Return the enforcement level. Without an environment every rule is mandatory."""
        return self.levels.get(environment, "mandatory") if environment else "mandatory"

    def resource_types(self) -> tuple[str, ...]:
        """Return every resource type that the rule checks."""
        return tuple(dict.fromkeys((*self.checks, *self.stack)))

    def clouds(self) -> tuple[str, ...]:
        """Return the clouds that the rule applies to, in display order."""
        packages = {kind.partition(":")[0] for kind in self.resource_types()}
        return tuple(cloud for package, cloud in CLOUDS.items() if package in packages)


def evaluate(rule: Rule, resource: Resource) -> tuple[Violation, ...]:
    """Return the violations of a rule by one resource, up to the first unknown value."""
    check = rule.checks.get(resource.kind)
    return until_unknown(check(resource)) if check else ()


def evaluate_stack(rule: Rule, resources: Sequence[Resource]) -> tuple[Violation, ...]:
    """Return the violations of a rule by a whole stack."""
    return tuple(
        violation
        for check in dict.fromkeys(rule.stack.values())
        for violation in until_unknown(check(resources))
    )


def until_unknown(violations: Iterable[Violation]) -> tuple[Violation, ...]:
    """Return the violations that a check reports before it reaches an unknown value."""
    known: list[Violation] = []
    with contextlib.suppress(StillUnknown):
        for violation in violations:
            known.append(violation)  # noqa: PERF402 - `extend` loses the violations before an unknown value
    return tuple(known)
