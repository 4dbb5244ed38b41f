"""How many nodes a managed node group is to have when it is made and when its limits change. Used by both
kinds of pools.

The autoscaler owns the size. But EKS takes new limits only with a size between them, and the provider sends
the size it was told
last: a raised minimum would be refused, and a raised maximum would throw the nodes that train back to the
first size. So a
group whose limits change is told the size that it has now, and only then. Easy to get wrong: nothing may wait
for a resource
here, as the options of a resource have to be plain; before there is a cluster there is no group, and that is
no error.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

import pulumi_aws as aws

DESIRED = "scalingConfig.desiredSize"


@dataclass(frozen=True)
class Running:
    """The Auto Scaling group behind a node group, as it is now."""

    least: int
    most: int
    now: int


@dataclass(frozen=True)
class Scaling:
    """What a node group is told."""

    config: aws.eks.NodeGroupScalingConfigArgsDict
    ignored: list[str]
    """What the autoscaler may move without being thrown back."""


def scaling(running: Running | None, least: int, most: int) -> Scaling:
    """The size of a group with these limits, which is running so, or is not there yet."""
    if running is None or (running.least, running.most) == (least, most):
        return Scaling({"min_size": least, "max_size": most, "desired_size": least}, [DESIRED])
    return Scaling(
        {"min_size": least, "max_size": most, "desired_size": min(max(running.now, least), most)}, []
    )


class ScalingGroups:
    """The Auto Scaling groups that EKS made for a cluster, looked up once a run."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster

    @functools.cached_property
    def _names(self) -> list[str]:
        # EKS tags the groups it makes. The one function that lists them has its name from an error in the
        # SDK.
        found = aws.autoscaling.get_ami_ids(
            filters=[{"name": "tag:eks:cluster-name", "values": [self._cluster]}]
        )
        return sorted(found.names)

    def running(self, prefix: str) -> Running | None:
        """The group behind the newest node group whose name was made up from `prefix`."""
        # The provider adds 26 digits to a prefix (the time and a counter), EKS `eks-` before and an id
        # behind.
        mine = [name for name in self._names if re.match(rf"eks-{re.escape(prefix)}[0-9a-f]{{26}}-", name)]
        if not mine:
            return None
        group = aws.autoscaling.get_group(name=mine[-1])
        return Running(group.min_size, group.max_size, group.desired_capacity)
