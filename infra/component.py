"""Room: what the components of a platform have in common. Each cloud's Network, Cluster, Storage … is one.

A room names its resources `<platform>-<what>`, tags them and gives their options, so that its body says only
what the
cloud needs. Easy to get wrong: a resource that changes its `what` is replaced, unless RENAMED says what it
was before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, ClassVar

import pulumi

from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.tags import labels, tags

RENAMED: dict[str, str] = {}
"""New `what` to the one it had in an earlier release: the engine then keeps the resource and only notes the
new name.
"""


class Room(pulumi.ComponentResource):
    """A component whose children are `<platform>-<what>`."""

    TYPE: ClassVar[str]
    """The Pulumi type token. It is part of every child's URN, so a released token never changes, whatever the
    class is called.
    """

    def __init__(self, spec: PlatformSpec, what: str, opts: pulumi.ResourceOptions | None = None) -> None:
        lean = pulumi.ResourceOptions(transformations=[_without_versioned_aliases])
        super().__init__(self.TYPE, f"{spec.name}-{what}", None, pulumi.ResourceOptions.merge(opts, lean))
        self.spec = spec

    def name(self, what: str) -> str:
        """The logical name of a child."""
        return f"{self.spec.name}-{what}"

    def tags(self, what: str) -> dict[str, str]:
        """The tags of a child."""
        return tags(self.spec, self.name(what))

    def labels(self, what: str) -> dict[str, str]:
        """The same where the cloud calls them labels (Google Cloud)."""
        return labels(self.spec, self.name(what))

    def options(
        self,
        what: str,
        *,
        keep: bool = False,
        guard: bool = False,
        depends_on: Iterable[pulumi.Resource] = (),
        **more: Any,
    ) -> pulumi.ResourceOptions:
        """Options of a child.

        Args:
            what: the child.
            keep: data or a key: in production neither deleted by mistake nor with the stack.
            guard: in production not deleted by mistake, but gone with the stack.
            depends_on: what must exist before the child and outlive it, beside its inputs.
            more: any other option of Pulumi.
        """
        production = self.spec.production
        return pulumi.ResourceOptions(
            parent=self,
            protect=(production and (keep or guard)) or None,
            retain_on_delete=(production and keep) or None,
            depends_on=list(depends_on),
            aliases=[pulumi.Alias(name=self.name(RENAMED[what]))] if what in RENAMED else None,
            **more,
        )


_VERSIONED = re.compile(r"/v\d{8}\w*:")


def _without_versioned_aliases(
    resource: pulumi.ResourceTransformationArgs,
) -> pulumi.ResourceTransformationResult | None:
    """Leave out aliases to types of one API version, of which azure-native gives each resource about a dozen.

    Nothing here was ever made under such a type, and the engine waits for every one: on Azure they are a
    fifth of a preview.
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
