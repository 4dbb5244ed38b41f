"""A grant, the planned resources that it is read from, and how the resources are named."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN

LATER = "[known after apply]"
ANYWHERE = "0.0.0.0/0"
_IDENTITIES = ("arn", "id", "selfLink", "email", "principalId", "clientId", "uniqueId", "member", "name")
_SHORT = 6
"""Shorter values are not taken for the identity of a resource."""


class Kind(StrEnum):
    """What a grant is about."""

    ALLOW = "allow"
    """`who` may call `what` on `on`."""
    DENY = "deny"
    """`who` may not, whatever else allows it."""
    ROLE = "role"
    """`who` has the role or policy `what` on `on`; what it contains is defined elsewhere."""
    INGRESS = "ingress"
    """`who` reaches `on` at the ports `what`."""
    EGRESS = "egress"
    """`on` reaches `who` at the ports `what`."""
    BLOCK = "block"
    """`on` blocks `what`."""
    UNRESOLVED = "unresolved"
    """What `who` may do on `on` is only known after the apply, or cannot be read: `what` says why."""


@dataclass(frozen=True)
class Grant:
    """One grant. Texts are ready for display; `source` is the URN of the resource that it is read from."""

    kind: Kind
    who: str
    what: str
    on: str
    condition: str = ""
    source: str = field(default="", compare=False)


@dataclass(frozen=True)
class Planned:
    """A resource before or after a change, with plain values."""

    token: str
    urn: str
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""

    @property
    def name(self) -> str:
        """The logical name."""
        return self.urn.rsplit("::", 1)[-1]

    @property
    def noun(self) -> str:
        """What it is, in words: `security group`."""
        kind = re.sub(r"V\d+$", "", self.token.rsplit(":", 1)[-1])
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", kind).lower()

    @property
    def shown(self) -> str:
        """The noun and the logical name."""
        return f"{self.noun} {self.name}"


class Index:
    """The resources of one side, by type and by the values that identify them."""

    def __init__(self, resources: Iterable[Planned]) -> None:
        self.resources = list(resources)
        self._values: dict[str, Planned] = {}
        for resource in self.resources:
            for key, value in _identities(resource):
                if isinstance(value, str) and value != UNKNOWN and (key != "name" or len(value) >= _SHORT):
                    self._values.setdefault(value, resource)
        self._longest = sorted((text for text in self._values if len(text) >= _SHORT), key=len, reverse=True)

    def of(self, *tokens: str) -> Iterator[Planned]:
        """Yield the resources of these types."""
        return (resource for resource in self.resources if resource.token in tokens)

    def find(self, value: Any) -> Planned | None:
        """Return the resource that a value identifies."""
        return self._values.get(value) if isinstance(value, str) else None

    def shown(self, value: Any, noun: str = "") -> str:
        """Return a reference for display: a resource of the stack by its name, everything else as it is.

        `noun` is put before a value that is not of the stack.
        """
        if value is None or value == "":
            return noun or "(none)"
        if not isinstance(value, str):
            return json.dumps(value, sort_keys=True, default=str)
        if value == UNKNOWN:
            return f"{noun} {LATER}".strip()
        if (resource := self._values.get(value)) is not None:
            return resource.shown
        for known in self._longest:
            rest = value[len(known) :]
            if value.startswith(known) and rest[:1] in ("/", ":"):
                return f"{self._values[known].shown}{rest}"
        return f"{noun} {value.replace(UNKNOWN, LATER)}".strip()


def _identities(resource: Planned) -> Iterator[tuple[str, Any]]:
    """Yield what identifies a resource. What it was given refers to another one, except for its name."""
    yield "id", resource.id
    for key in _IDENTITIES:
        if key == "name" or key not in resource.inputs:
            yield key, resource.outputs.get(key)
    yield "name", resource.inputs.get("name")


def listed(value: Any) -> list[Any]:
    """Return a value as a list: documents of policies may leave out the brackets."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def ports(protocol: Any, first: Any = None, last: Any = None) -> str:
    """Return a protocol and a range of ports in one form: `tcp 443`, `tcp 1-1024`, `tcp`, `all`."""
    text = str(protocol).lower()
    if text in ("-1", "all", "*", "none", ""):
        return "all"
    text = {"6": "tcp", "17": "udp", "1": "icmp"}.get(text, text)
    if UNKNOWN in (protocol, first, last):
        return f"{text} {LATER}"
    low, high = _port(first), _port(last)
    if text not in ("tcp", "udp", "sctp") or low is None or (low <= 0 and (high is None or high >= 65535)):
        return text
    return f"{text} {low}" if high in (None, low) else f"{text} {low}-{high}"


def port_range(protocol: Any, text: Any) -> str:
    """Return a protocol and ports that are given as text: `443`, `1-1024`, `*`."""
    if text == UNKNOWN:
        return ports(protocol, UNKNOWN)
    first, _, last = str(text if text not in (None, "*") else "").partition("-")
    return ports(protocol, first or None, last or first or None)


def _port(value: Any) -> int | None:
    try:
        return int(float(value))
    except (TypeError, ValueError):
        return None
