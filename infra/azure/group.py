"""Group: the two resource groups of a platform, one that is destroyed with the stack and one that production
retains.

Azure deletes a group with everything in it, so what must outlive a destroy (bucket, keys, secrets, images)
has a group of its own.
"""

from __future__ import annotations

import pulumi
from pulumi_azure_native import resources

from trainfleet.infra.azure import layout
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.spec.schema import PlatformSpec


class Group(PlatformComponent):
    """The resource groups: `platform` (network, cluster) and `data` (bucket, keys, secrets, images)."""

    TYPE = "trainfleet:azure:Group"

    def __init__(self, spec: PlatformSpec, *, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(spec, "groups", opts)
        self.platform = self._group("platform", retain=False)
        self.data = self._group("data", retain=True)
        self.register_outputs({"platform": self.platform.name, "data": self.data.name})

    def global_name(self, what: str) -> pulumi.Output[str]:
        """A globally unique name, which differs after a platform is recreated."""
        return self.data.name.apply(lambda seed: layout.global_name(self.spec, what, seed))

    def _group(self, what: str, *, retain: bool) -> resources.ResourceGroup:
        return resources.ResourceGroup(
            self.name(what),
            location=self.spec.region,
            tags=self.tags(what),
            opts=self.options(retain=retain),
        )
