"""Autoscaler: the cluster autoscaler, where the cloud provides none. Its minor version must be
the cluster's.
"""

from __future__ import annotations

import pulumi

from trainfleet.infra.kubernetes.charts import CLUSTER_AUTOSCALER, release
from trainfleet.infra.kubernetes.features import LayerFeatures
from trainfleet.infra.kubernetes.values import operators
from trainfleet.infra.platform import Platform
from trainfleet.infra.spec.schema import PlatformSpec


class Autoscaler(pulumi.ComponentResource):
    """The chart under the account that the cloud bound to a role for it; nothing where the cloud scales pools
    itself.
    """

    def __init__(
        self, platform: Platform, spec: PlatformSpec, features: LayerFeatures, opts: pulumi.ResourceOptions
    ) -> None:
        super().__init__("trainfleet:kubernetes:Autoscaler", f"{spec.name}-autoscaler", None, opts)
        if features.autoscaler:
            identity = platform.identities["autoscaler"]
            values = operators.autoscaler(platform, spec, identity)
            release(
                f"{spec.name}-cluster-autoscaler", CLUSTER_AUTOSCALER, identity.namespace, values, parent=self
            )
        self.register_outputs({})
