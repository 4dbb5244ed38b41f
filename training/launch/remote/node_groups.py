"""How the workers of a run choose among the node groups of their pool. Every launcher applies it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainfleet.infra.outputs.contract import PoolOutput

HEAVIEST, STEP = 100, 3
"""The largest weight that Kubernetes accepts, and how much lighter the next group is.

The scheduler scales the weights so that the best node that fits has 100 points. A factor between them keeps
the distance at 67 points whichever groups are full; equal steps would let the balance of CPUs win.
"""


def group_affinity(pool: PoolOutput, workers: Mapping[str, str], pods: int) -> dict[str, Any]:
    """The affinity of a worker on a pool with several capacities; empty for other pools.

    A worker runs on any group of the pool, and on existing nodes it prefers the groups in their order. Which
    nodes are added is up to the autoscaler, which does not read preferences (cluster autoscaler FAQ: it
    simulates the scheduler's filters, not its scores). On a pool whose fabric or placement ends at the group,
    all workers require the group of the first.

    Args:
        pool: the pool that the workers run on.
        workers: labels that the workers of this run have, and no other pod.
        pods: the number of workers.
    """
    found: dict[str, Any] = {}
    if terms := _preferences(pool):
        found["nodeAffinity"] = {"preferredDuringSchedulingIgnoredDuringExecution": terms}
    if pool.one_group_label and pods > 1:
        # The scheduler admits the first of pods that only wait for one another.
        together = {"labelSelector": {"matchLabels": dict(workers)}, "topologyKey": pool.one_group_label}
        found["podAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [together]}
    return found


def _preferences(pool: PoolOutput) -> list[dict[str, Any]]:
    """Terms with falling weights. Groups that differ by zone only have the same labels, so they are one."""
    order: list[dict[str, str]] = []
    for group in pool.groups:
        if group.node_selector not in order:
            order.append(group.node_selector)
    return [
        {
            "weight": max(1, HEAVIEST // STEP**place),
            "preference": {
                "matchExpressions": [
                    {"key": key, "operator": "In", "values": [value]} for key, value in labels.items()
                ]
            },
        }
        for place, labels in enumerate(order)
    ]
