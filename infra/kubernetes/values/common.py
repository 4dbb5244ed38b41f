"""What the values of many charts have in common: resources, tolerations, security contexts, affinities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Amounts:
    cpu: str | None = None
    memory: str | None = None


@dataclass(frozen=True)
class Resources:
    requests: Amounts
    limits: Amounts


@dataclass(frozen=True)
class Toleration:
    operator: str
    key: str | None = None
    value: str | None = None
    effect: str | None = None


@dataclass(frozen=True)
class Capabilities:
    drop: tuple[str, ...] = ("ALL",)
    add: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Seccomp:
    type: str = "RuntimeDefault"


@dataclass(frozen=True)
class ContainerSecurity:
    """A container that Pod Security `restricted` lets in."""

    run_as_non_root: bool | None = True
    allow_privilege_escalation: bool = False
    read_only_root_filesystem: bool = True
    capabilities: Capabilities = Capabilities()
    seccomp_profile: Seccomp | None = Seccomp()


@dataclass(frozen=True)
class PodSecurity:
    run_as_non_root: bool = True
    run_as_user: int | None = None
    run_as_group: int | None = None
    fs_group: int | None = None
    seccomp_profile: Seccomp = Seccomp()


@dataclass(frozen=True)
class Expression:
    key: str
    operator: str
    values: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Term:
    match_expressions: tuple[Expression, ...]


@dataclass(frozen=True)
class Terms:
    node_selector_terms: tuple[Term, ...]


@dataclass(frozen=True)
class NodeAffinity:
    KEYS: ClassVar = {"required": "requiredDuringSchedulingIgnoredDuringExecution"}
    required: Terms


@dataclass(frozen=True)
class Affinity:
    node_affinity: NodeAffinity


@dataclass(frozen=True)
class Account:
    """Which service account a chart's pods run under."""

    create: bool
    name: str | None = None


@dataclass(frozen=True)
class Image:
    tag: str | None = None
    repository: str | None = None
    pull_policy: str | None = None


@dataclass(frozen=True)
class Switch:
    enabled: bool


EVERYWHERE = (Toleration(operator="Exists"),)
"""For agents of a node: they must run under every taint, or a node with one more taint is a node without the agent."""
SMALL = Resources(Amounts("50m", "128Mi"), Amounts(memory="256Mi"))


def on_nodes(label: str, *values: str) -> Affinity:
    """Only on nodes that carry the label with one of the values."""
    return Affinity(NodeAffinity(Terms((Term((Expression(label, "In", values),)),))))
