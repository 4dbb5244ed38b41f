"""What the values of many charts have in common: resources, tolerations, security contexts, affinities."""

from __future__ import annotations

from typing import ClassVar

from trainfleet.infra.kubernetes.manifest_model import document


@document
class Amounts:
    cpu: str | None = None
    memory: str | None = None


@document
class Resources:
    requests: Amounts
    limits: Amounts


@document
class Toleration:
    operator: str
    key: str | None = None
    value: str | None = None
    effect: str | None = None


@document
class Capabilities:
    drop: tuple[str, ...] = ("ALL",)
    add: tuple[str, ...] | None = None


@document
class Seccomp:
    type: str = "RuntimeDefault"


@document
class ContainerSecurity:
    """A container that Pod Security `restricted` admits."""

    run_as_non_root: bool | None = True
    allow_privilege_escalation: bool = False
    read_only_root_filesystem: bool = True
    capabilities: Capabilities = Capabilities()
    seccomp_profile: Seccomp | None = Seccomp()


@document
class PodSecurity:
    run_as_non_root: bool = True
    run_as_user: int | None = None
    run_as_group: int | None = None
    fs_group: int | None = None
    seccomp_profile: Seccomp = Seccomp()


@document
class Expression:
    key: str
    operator: str
    values: tuple[str, ...] | None = None


@document
class Term:
    match_expressions: tuple[Expression, ...]


@document
class Terms:
    node_selector_terms: tuple[Term, ...]


@document
class NodeAffinity:
    KEYS: ClassVar = {"required": "requiredDuringSchedulingIgnoredDuringExecution"}
    required: Terms


@document
class Affinity:
    node_affinity: NodeAffinity


@document
class Account:
    """Which service account a chart's pods run under."""

    create: bool
    name: str | None = None


@document
class Image:
    tag: str | None = None
    repository: str | None = None
    pull_policy: str | None = None


@document
class Switch:
    enabled: bool


EVERYWHERE = (Toleration(operator="Exists"),)
"""For agents of a node, which must run under every taint: a node with one more taint would be a node without
the agent.
"""
SMALL = Resources(Amounts("50m", "128Mi"), Amounts(memory="256Mi"))


def on_nodes(label: str, *values: str) -> Affinity:
    """Only on nodes that carry the label with one of the values."""
    return Affinity(NodeAffinity(Terms((Term((Expression(label, "In", values),)),))))
