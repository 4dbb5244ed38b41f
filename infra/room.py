"""Room: what the components of a platform have in common. Each cloud's Network, Cluster, Storage … is one.

A room names its resources `<platform>-<what>`, tags them and gives their options, so that its body says only what the
cloud needs. Easy to get wrong: a resource that changes its `what` is replaced, unless RENAMED says what it was before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pulumi

from infra.spec import PlatformSpec
from infra.tags import labels, tags

RENAMED: dict[str, str] = {}
"""New `what` to the one it had in an earlier release: the engine then keeps the resource and only notes the new name."""


class Room(pulumi.ComponentResource):
    """A component `trainfleet:<cloud>:<Class>` whose children are `<platform>-<what>`."""

    def __init__(self, spec: PlatformSpec, what: str, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(f"trainfleet:{spec.cloud}:{type(self).__name__}", f"{spec.name}-{what}", None, opts)
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
        self, what: str, *, keep: bool = False, guard: bool = False, depends_on: Iterable[pulumi.Resource] = (), **more: Any
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
