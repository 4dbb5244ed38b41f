"""With how many workers an elastic run restarts: as many as the nodes that are left can hold."""

from __future__ import annotations

import contextlib
import time
from typing import Any

ANSWER_S = 5.0
"""How long to wait for Ray's coordinator; Ray Train then decides by what it knows."""


def with_live_nodes(policy: Any) -> Any:
    """Ray Train's elastic policy, which looks at the nodes as they are at each decision.

    Ray's coordinator looks every 20 s (`TICK_INTERVAL_S` of ray.data's autoscaling coordinator). After a lost
    node, Ray Train would thus ask for all workers again, and wait until the node is replaced, however many
    workers `scaling.min_workers` allows.

    NOTE: private to Ray 2.60. Another policy, or that of a Ray without these parts, is returned as it is.
    """
    try:
        from ray.train.v2._internal.execution.scaling_policy import ElasticScalingPolicy
    except ImportError:
        return policy
    if type(policy) is not ElasticScalingPolicy:
        return policy

    class LiveElasticPolicy(ElasticScalingPolicy):
        def _get_reserved_resources(self) -> Any:
            # It does not answer, or another Ray lacks one of these parts.
            with contextlib.suppress(Exception):
                import ray

                age = time.monotonic() - self._latest_reserved_resources_query_time
                if age >= self.GET_RESERVED_RESOURCES_INTERVAL_S:
                    reserved = self._autoscaling_coordinator.get_reserved_resources
                    ray.get(reserved.remote(self._requester_id, recompute=True), timeout=ANSWER_S)
            return super()._get_reserved_resources()

    return LiveElasticPolicy(policy.scaling_config)
