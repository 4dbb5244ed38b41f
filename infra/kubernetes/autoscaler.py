"""Autoscaler: the cluster autoscaler, where the cloud provides none, and the priorities of node groups.

The autoscaler's minor version must be the cluster's.
"""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as k8s

from trainfleet.infra.kubernetes.charts import CLUSTER_AUTOSCALER, release
from trainfleet.infra.kubernetes.features import LayerFeatures
from trainfleet.infra.kubernetes.values import operators
from trainfleet.infra.platform import Platform
from trainfleet.infra.spec.schema import PlatformSpec

PRIORITIES = "cluster-autoscaler-priority-expander"
"""The name is fixed (cluster-autoscaler expander/priority/priority.go, PriorityConfigMapName)."""
HIGHEST, STEP, LOWEST = 100, 10, 1


class Autoscaler(pulumi.ComponentResource):
    """The chart under the account that the cloud bound to a role for it, and the order of node groups where a
    pool has several; nothing where the cloud scales pools itself.
    """

    def __init__(
        self, platform: Platform, spec: PlatformSpec, features: LayerFeatures, opts: pulumi.ResourceOptions
    ) -> None:
        super().__init__("trainfleet:kubernetes:Autoscaler", f"{spec.name}-autoscaler", None, opts)
        scales = features.autoscaler or "autoscaler" in platform.provides
        text = priorities(platform) if scales and platform.priorities_namespace else ""
        order = (
            k8s.core.v1.ConfigMap(
                f"{spec.name}-{PRIORITIES}",
                metadata=k8s.meta.v1.ObjectMetaArgs(name=PRIORITIES, namespace=platform.priorities_namespace),
                data={"priorities": text},
                opts=pulumi.ResourceOptions(parent=self, delete_before_replace=True),
            )
            if text
            else None
        )
        if features.autoscaler:
            identity = platform.identities["autoscaler"]
            values = operators.autoscaler(platform, spec, identity, ordered=order is not None)
            release(
                f"{spec.name}-cluster-autoscaler",
                CLUSTER_AUTOSCALER,
                identity.namespace,
                values,
                parent=self,
                # Without it, the autoscaler uses the next expander (kubernetes/autoscaler#5246).
                depends_on=[order] if order else [],
            )
        self.register_outputs({})


def priorities(platform: Platform) -> str:
    """The priorities of node groups, of which the largest wins, by regular expressions of their names; empty
    if no pool has several groups.

    The last entry is for the groups of other pools: the autoscaler warns about each group without a priority
    (expander/priority/priority.go). They never compete with those above for one pod.
    """
    found: dict[int, list[str]] = {}
    for group in platform.pools:
        if group.spec.preferences:
            place = group.spec.preferences.index(group.spec.capacity)
            found.setdefault(HIGHEST - STEP * place, []).append(f"{group.group_name}")
    if not found:
        return ""
    found[LOWEST] = [".*"]
    lines = [
        line
        for priority, names in sorted(found.items(), reverse=True)
        for line in (f"{priority}:", *(f"  - '{name}'" for name in names))
    ]
    return "\n".join(lines) + "\n"
