"""The cluster autoscaler, where the cloud does not bring its own: it grows and shrinks the pools' scaling
groups.

Easy to get wrong: its minor version must be the cluster's, and a pool at zero nodes is only grown when its
labels and
taints can be read from the pool itself (node group or scaling group tags), which the cloud's gpu_pools.py
takes care of.
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
