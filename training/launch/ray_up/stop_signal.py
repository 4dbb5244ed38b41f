"""A small job on the head: creates the stop file on every machine, which asks the ranks there to save and
end.
"""

from __future__ import annotations

import sys
from pathlib import Path

TIMEOUT_S = 60


def main() -> int:
    """Create the file on every machine of the cluster; 1 if it succeeded on none."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    name = sys.argv[1]
    ray.init(log_to_driver=False)
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]  # ray is typed in part
    touch = ray.remote(Path.touch)
    tasks = [
        touch.options(
            num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
        ).remote(Path(name))
        for node in nodes
    ]
    done, _ = ray.wait(tasks, num_returns=len(tasks), timeout=TIMEOUT_S)
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
