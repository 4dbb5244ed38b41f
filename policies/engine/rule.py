"""What a policy is made of, without Pulumi: a resource's properties, a violation, and a rule stated once for
all clouds.

A rule's `checks` is a table from resource type to the function that checks it: a cloud joins a rule by
adding rows. `stack` is the same for what only the whole stack shows.
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
"""By the package of a resource type: what a person calls it."""
_AZURE_VERSION = re.compile(r"^azure-native:(\w+)/v\d+\w*:")
_AZURE_LOCAL_SDK = re.compile(r"^azure-native_\w+_v\d+\w*:(\w+)(?:/v\d+\w*)?:")


class StillUnknown(Exception):  # noqa: N818 - not a fault: the value is only known later
    """Raised when a check uses a value that only exists once the stack is applied."""


class _Unknown:
    """Stands for a value that exists and cannot be looked at. `is None` and `key in props` work; everything
    else raises.
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
    """A resource type without the API version that Azure's types may carry."""
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
    """By property: the URNs of the resources its value comes from; known in a preview too."""
    settings: Mapping[str, Json] = field(default_factory=dict)
    """The policy's own configuration (`--policy-pack-config`)."""

    @property
    def kind(self) -> str:
        """The type as rules name it."""
        return canonical(self.type)


@dataclass(frozen=True)
class Violation:
    """What is wrong with a resource, in words that name the property."""

    what: str
    urn: str = ""
    name: str = ""


Check = Callable[[Resource], Iterable[Violation]]
StackCheck = Callable[[Sequence[Resource]], Iterable[Violation]]

FROM_STAGING: Mapping[str, Level] = {"dev": "advisory"}
"""For what costs effort or money before anybody depends on the platform."""
IN_PRODUCTION: Mapping[str, Level] = {"dev": "off", "staging": "advisory"}
"""For what would be in the way where a platform is made and thrown away."""
ADVICE: Mapping[str, Level] = {"dev": "advisory", "staging": "advisory", "prod": "advisory"}
"""For what is right most of the time."""


@dataclass(frozen=True)
class Rule:
    name: str
    statement: str
    """The rule in one sentence that holds on every cloud."""
    reason: str
    """What goes wrong without it."""
    fix: str
    """What to do about a violation."""
    references: tuple[str, ...]
    """Names of the same rule in CIS benchmarks, Checkov and Trivy, or the document that it follows."""
    severity: Severity
    checks: Mapping[str, Check] = field(default_factory=dict)
    """How each cloud keeps the rule: by resource type, the function that checks one resource."""
    stack: Mapping[str, StackCheck] = field(default_factory=dict)
    """Checks what is absent: by the type that needs another resource, the function that checks a whole stack."""
    levels: Mapping[str, Level] = field(default_factory=dict)
    """Where it is less than mandatory, by environment."""
    settings: Mapping[str, Json] = field(default_factory=dict)
    """JSON schema of each setting the rule reads."""

    def level(self, environment: str | None) -> Level:
        """How strictly it is enforced. A program that does not say where it runs is held to everything."""
        return self.levels.get(environment, "mandatory") if environment else "mandatory"

    def kinds(self) -> tuple[str, ...]:
        """Every resource type it is about."""
        return tuple(dict.fromkeys((*self.checks, *self.stack)))

    def clouds(self) -> tuple[str, ...]:
        """The clouds that keep it, in the order in which people list them."""
        packages = {kind.partition(":")[0] for kind in self.kinds()}
        return tuple(cloud for package, cloud in CLOUDS.items() if package in packages)


def evaluate(rule: Rule, resource: Resource) -> tuple[Violation, ...]:
    """The violations of a rule by one resource, up to the first value that is not known yet."""
    check = rule.checks.get(resource.kind)
    return until_unknown(check(resource)) if check else ()


def evaluate_stack(rule: Rule, resources: Sequence[Resource]) -> tuple[Violation, ...]:
    """The violations of a rule by a whole stack."""
    return tuple(
        violation
        for check in dict.fromkeys(rule.stack.values())
        for violation in until_unknown(check(resources))
    )


def until_unknown(found: Iterable[Violation]) -> tuple[Violation, ...]:
    """What a check finds before it meets a value that is not known yet."""
    kept: list[Violation] = []
    with contextlib.suppress(StillUnknown):
        for violation in found:
            kept.append(violation)  # noqa: PERF402 - `extend` would lose what came before an unknown value
    return tuple(kept)
