"""The size of a managed node group, taken from its Auto Scaling group when the limits change.

The autoscaler owns the size. EKS accepts new limits only with a size between them, and the provider sends the
size that it knows last: a raised minimum would be rejected, and a raised maximum would shrink a training
group. So a group whose limits change gets its current size.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

import pulumi_aws as aws

DESIRED = "scalingConfig.desiredSize"


@dataclass(frozen=True)
class Running:
    """The current state of the Auto Scaling group behind a node group."""

    least: int
    most: int
    now: int


@dataclass(frozen=True)
class Scaling:
    """The scaling settings of a node group."""

    config: aws.eks.NodeGroupScalingConfigArgsDict
    ignored: list[str]
    """Properties that the autoscaler owns."""


def scaling(running: Running | None, least: int, most: int) -> Scaling:
    """The scaling of a group with these limits. `running`: its current state, None if it does not
    exist yet.
    """
    if running is None or (running.least, running.most) == (least, most):
        return Scaling({"min_size": least, "max_size": most, "desired_size": least}, [DESIRED])
    return Scaling(
        {"min_size": least, "max_size": most, "desired_size": min(max(running.now, least), most)}, []
    )


class ScalingGroups:
    """The Auto Scaling groups that EKS created for a cluster, looked up once per run."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster

    @functools.cached_property
    def _names(self) -> list[str]:
        # EKS tags its groups. The SDK misnames the only function that lists them.
        found = aws.autoscaling.get_ami_ids(
            filters=[{"name": "tag:eks:cluster-name", "values": [self._cluster]}]
        )
        return sorted(found.names)

    def running(self, prefix: str) -> Running | None:
        """The group behind the newest node group whose name starts with `prefix`."""
        # The provider appends 26 digits (time and counter) to the prefix; EKS adds `eks-` before and an id
        # after.
        mine = [name for name in self._names if re.match(rf"eks-{re.escape(prefix)}[0-9a-f]{{26}}-", name)]
        if not mine:
            return None
        group = aws.autoscaling.get_group(name=mine[-1])
        return Running(group.min_size, group.max_size, group.desired_capacity)
