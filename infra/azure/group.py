"""Group: the two resource groups of a platform, one that goes with the stack and one that production keeps.

Used by every other component. Easy to get wrong: Azure deletes a group with everything in it, so what must outlive
a destroy
(bucket, keys, secrets, images) cannot share a group with what must not.
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
        """A name that nobody else on earth has, and that a platform made anew does not share with the one
        before.
        """
        return self.data.name.apply(lambda seed: layout.global_name(self.spec, what, seed))

    def _group(self, what: str, *, retain: bool) -> resources.ResourceGroup:
        return resources.ResourceGroup(
            self.name(what),
            location=self.spec.region,
            tags=self.tags(what),
            opts=self.options(retain=retain),
        )
