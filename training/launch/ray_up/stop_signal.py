"""What a small job on the head does: have every rank on every machine find the file that asks it to save and
end.

Submitted by `trainfleet.training.launch.ray_up.follow`. Easy to get wrong: ranks look on their own machine,
so the file must appear on each.
"""

from __future__ import annotations

import sys
from pathlib import Path

LIMIT_S = 60


def main() -> int:
    """Make the file on every machine of the cluster; 1 when none took it."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    name = sys.argv[1]
    ray.init(log_to_driver=False)
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]  # ray is typed in part
    touch = ray.remote(Path.touch)
    asked = [
        touch.options(
            num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
        ).remote(Path(name))
        for node in nodes
    ]
    done, _ = ray.wait(asked, num_returns=len(asked), timeout=LIMIT_S)
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
