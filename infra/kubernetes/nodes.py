"""Nodes: the log shipper and the node problem detector on every node, where the cloud provides none.

Both read the host, so their namespaces are `privileged`. The detector only reports; repair is up to the cloud
or the owner of an existing cluster.
"""

from __future__ import annotations

import pulumi

from trainfleet.infra.kubernetes.charts import FLUENT_BIT, NODE_PROBLEM_DETECTOR, release
from trainfleet.infra.kubernetes.features import LayerFeatures
from trainfleet.infra.kubernetes.names import NODE_NAMESPACE
from trainfleet.infra.kubernetes.values import logs, operators
from trainfleet.infra.platform import Platform
from trainfleet.infra.spec.schema import PlatformSpec


class Nodes(pulumi.ComponentResource):
    """Fluent Bit with the cloud's log store as output, and the node problem detector."""

    def __init__(
        self, platform: Platform, spec: PlatformSpec, features: LayerFeatures, opts: pulumi.ResourceOptions
    ) -> None:
        super().__init__("trainfleet:kubernetes:Nodes", f"{spec.name}-node-agents", None, opts)
        store = platform.log_store
        if features.logs and store is not None:
            identity = platform.identities[store.identity]
            release(
                f"{spec.name}-fluent-bit",
                FLUENT_BIT,
                identity.namespace,
                logs.fluent_bit(store, identity),
                parent=self,
            )
        if features.node_problems:
            values = operators.node_problems(monitored=features.monitoring)
            release(
                f"{spec.name}-node-problem-detector",
                NODE_PROBLEM_DETECTOR,
                NODE_NAMESPACE,
                values,
                parent=self,
            )
        self.register_outputs({})
