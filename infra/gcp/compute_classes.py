"""ComputeClasses: the order in which GKE's autoscaler adds nodes to a pool with several capacities.

GKE has no priority expander. A compute class with a list of node pools says the same (GKE guide, custom
compute classes, GKE Standard node pools and compute classes).
"""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as k8s

from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.platform import Pool
from trainfleet.infra.spec.node_group import NodeGroup
from trainfleet.infra.spec.schema import PlatformSpec

LABEL = "cloud.google.com/compute-class"
"""Label and taint of the nodes, and selector of the pods, of a class."""


def class_name(group: NodeGroup) -> str:
    """The class of the group's pool; empty if the pool has one capacity."""
    return f"trainfleet-{group.pool}" if group.preferences else ""


def class_label(group: NodeGroup) -> dict[str, str]:
    """The label that puts a node pool in its class. It needs the taint too."""
    name = class_name(group)
    return {LABEL: name} if name else {}


def class_tolerations(group: NodeGroup) -> tuple[dict[str, str], ...]:
    """What pods of the class tolerate."""
    name = class_name(group)
    return ({"key": LABEL, "operator": "Equal", "value": name, "effect": "NoSchedule"},) if name else ()


class ComputeClasses(PlatformComponent):
    """A compute class for each pool with several capacities. Created after the pools' nodes."""

    TYPE = "trainfleet:gcp:ComputeClasses"

    def __init__(
        self,
        spec: PlatformSpec,
        groups: tuple[Pool, ...],
        cluster: k8s.Provider,
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(
            spec,
            "compute-classes",
            pulumi.ResourceOptions.merge(pulumi.ResourceOptions(providers=[cluster]), opts),
        )
        for name in dict.fromkeys(class_name(group.spec) for group in groups if group.spec.preferences):
            ordered = [group for group in groups if class_name(group.spec) == name]
            k8s.apiextensions.CustomResource(
                self.name(f"class-{ordered[0].spec.pool}"),
                api_version="cloud.google.com/v1",
                kind="ComputeClass",
                metadata=k8s.meta.v1.ObjectMetaArgs(name=name),
                spec={
                    "priorities": [{"nodepools": [group.group_name]} for group in ordered],
                    # Never a node of another kind: pods of the pool select its nodes.
                    "whenUnsatisfiable": "DoNotScaleUp",
                },
                opts=self.options(delete_before_replace=True),
            )
        self.register_outputs({})
