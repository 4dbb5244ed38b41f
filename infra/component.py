"""SpecComponent, the base class of every component: it names resources `<platform>-<what>`, tags them, and
sets the options that production needs. PlatformComponent is that of a cloud's Network, Cluster, Storage and
so on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import pulumi

from trainfleet.infra.spec.named import Named
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.tags import labels, tags

Spec = TypeVar("Spec", bound=Named)
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Existing:
    """A resource that the platform uses and does not manage. It has an `id`, as the managed ones have."""

    id: str


def answer_after(answer: pulumi.Output[Answer], *needed: pulumi.Resource) -> pulumi.Output[Answer]:
    """Return what a function of a provider answered that needs these resources.

    NOTE: Pulumi forgets what an unknown answer depends on. A plan of new resources would then lack
    dependencies that the apply has, and `pulumi up --plan` ends there.
    """
    return pulumi.Output.all(answer, *(each.urn for each in needed)).apply(lambda found: found[0])


class SpecComponent(pulumi.ComponentResource, Generic[Spec]):
    """A component whose children are named `<name of the spec>-<what>`."""

    TYPE: ClassVar[str]
    """The Pulumi type token. It is part of every child's URN, so a released token must never change."""

    def __init__(self, spec: Spec, what: str, opts: pulumi.ResourceOptions | None = None) -> None:
        without_aliases = pulumi.ResourceOptions(transformations=[_without_versioned_aliases])
        super().__init__(
            self.TYPE, f"{spec.name}-{what}", None, pulumi.ResourceOptions.merge(opts, without_aliases)
        )
        self.spec = spec

    def name(self, what: str) -> str:
        """The logical name of a child."""
        return f"{self.spec.name}-{what}"

    def tags(self, what: str) -> dict[str, str]:
        """The tags of a child."""
        return tags(self.spec, self.name(what))

    def labels(self, what: str) -> dict[str, str]:
        """The same as labels of Google Cloud."""
        return labels(self.spec, self.name(what))

    def options(
        self,
        *,
        retain: bool = False,
        protect: bool = False,
        depends_on: Iterable[pulumi.Resource] = (),
        former_names: Iterable[str] = (),
        **more: Any,
    ) -> pulumi.ResourceOptions:
        """Return the options of a child.

        Args:
            retain: in production, protect it from deletion and keep it when the stack is destroyed. For data
                and keys.
            protect: in production, protect it from deletion by mistake.
            depends_on: what must exist before the child and outlive it, in addition to its inputs.
            former_names: the `what` of earlier releases, so that the engine keeps the resource.
            more: any other option of Pulumi.
        """
        production = self.spec.production
        return pulumi.ResourceOptions(
            parent=self,
            protect=(production and (retain or protect)) or None,
            retain_on_delete=(production and retain) or None,
            depends_on=list(depends_on),
            aliases=[pulumi.Alias(name=self.name(former)) for former in former_names] or None,
            **more,
        )


class PlatformComponent(SpecComponent[PlatformSpec]):
    """A component of a platform. Its children are named `<platform>-<what>`."""


_VERSIONED = re.compile(r"/v\d{8}\w*:")


def _without_versioned_aliases(
    resource: pulumi.ResourceTransformationArgs,
) -> pulumi.ResourceTransformationResult | None:
    """Drop aliases to versioned types, of which azure-native gives each resource about a dozen.

    No resource was ever created under such a type, and resolving them takes a fifth of a preview on Azure.
    """
    aliases = resource.opts.aliases
    if not aliases:
        return None
    opts = pulumi.ResourceOptions.merge(resource.opts, None)
    opts.aliases = [alias for alias in aliases if not _is_versioned(alias)]
    return pulumi.ResourceTransformationResult(resource.props, opts)


def _is_versioned(alias: object) -> bool:
    return (
        isinstance(alias, pulumi.Alias)
        and isinstance(alias.type_, str)
        and bool(_VERSIONED.search(alias.type_))
    )
