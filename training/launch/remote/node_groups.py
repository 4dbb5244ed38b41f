"""How the pods of a run choose among the node groups of their pool. Every launcher applies the same. Pure."""

from __future__ import annotations

from typing import Any

from trainfleet.infra.outputs.contract import PoolOutput

HEAVIEST = 100
"""The largest weight that Kubernetes accepts."""


def group_affinity(pool: PoolOutput) -> dict[str, Any]:
    """The affinity of a pod on a pool with several capacities; empty for other pools.

    The pod runs on any group of the pool, and on nodes that exist it prefers the groups in their order. Which
    nodes are added is up to the autoscaler, which does not read preferences (cluster autoscaler FAQ: it
    simulates the scheduler's filters, not its scores).
    """
    order: list[dict[str, str]] = []
    for group in pool.groups:
        if group.node_selector not in order:
            order.append(group.node_selector)
    terms = [
        {
            "weight": HEAVIEST * (len(order) - place) // len(order),
            "preference": {
                "matchExpressions": [
                    {"key": key, "operator": "In", "values": [value]} for key, value in labels.items()
                ]
            },
        }
        for place, labels in enumerate(order)
    ]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}} if terms else {}
