"""The scheduler fills the node groups of a pool in the order of its capacities, and keeps a run in one where the
fabric ends there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Cluster, until
from tests.cluster.pods import pod
from tests.training.launch.kuberay_launches import outputs, run_spec
from tests.training.launch.kuberay_launches import pool as pool_of
from trainfleet.infra.outputs.contract import PlatformOutputs
from trainfleet.local_cluster import fake_nodes
from trainfleet.training.launch.kuberay.pods import worker_pod

pytestmark = [pytest.mark.cluster, pytest.mark.deep, pytest.mark.timeout(1800)]

ORDER = ("reserved", "spot", "on-demand")
LABEL = "trainfleet.io/capacity"
PLACEMENT = ("nodeSelector", "tolerations", "affinity", "topologySpreadConstraints")
"""What the scheduler reads of a worker's pod, apart from its labels and requests."""
Start = Callable[[str], PlatformOutputs]


def platform(one_group_label: str) -> PlatformOutputs:
    """A pool with a node of four GPUs in each group."""
    groups = [
        {
            "name": f"l4-{capacity}",
            "capacity": capacity,
            "zone": "",
            "node_selector": {LABEL: capacity},
            "spot": capacity == "spot",
            "max_nodes": 2,
            "usd_per_hour": None,
        }
        for capacity in ORDER
    ]
    return outputs(name="ordered", pools=[pool_of("l4", groups=groups, one_group_label=one_group_label)])


@pytest.fixture
def nodes_of(cluster: Cluster, tmp_path: Path) -> Iterator[Start]:
    """Starts the simulated nodes of a platform. They and the pods of the test are deleted at the end."""

    def start(one_group_label: str) -> PlatformOutputs:
        of = platform(one_group_label)
        file = tmp_path / "outputs.json"
        file.write_text(of.model_dump_json())
        done = cluster.call("cluster", "up", "--name", cluster.name, "--no-image", "--nodes-like", str(file))
        assert done.returncode == 0, done.stderr
        return of

    yield start
    cluster.kubectl("delete", "pod", "--selector", "trainfleet.io/run", "--grace-period=0", "--force")
    cluster.kubectl("delete", "node", "--selector", f"{LABEL},{fake_nodes.LABEL}")


def worker(of: PlatformOutputs, run: str, name: str, workers: int) -> dict[str, Any]:
    """A pod that the scheduler sees as it sees a worker that KubeRay created."""
    changes = (f"name={run}", f"scaling.workers={workers}", "scaling.use_gpu=true", "batch.global_batch=32")
    template = worker_pod(run_spec(*changes, platform=of))
    spec = template["spec"]
    placement = {key: spec[key] for key in PLACEMENT if key in spec}
    found = pod(name, "true", container={"resources": spec["containers"][0]["resources"]}, **placement)
    labels = {**template["metadata"]["labels"], "ray.io/node-type": "worker"}  # KubeRay adds the last one
    return {**found, "metadata": {"name": name, "namespace": "default", "labels": labels}}


def about(cluster: Cluster, name: str, path: str) -> str:
    return cluster.kubectl("get", "pod", name, "--namespace", "default", "-o", f"jsonpath={path}")


def node_of(cluster: Cluster, name: str) -> str:
    found: str = until(lambda: about(cluster, name, "{.spec.nodeName}"), f"a node for {name}")
    return found


def why_pending(cluster: Cluster, name: str) -> str:
    message = "{.status.conditions[?(@.type=='PodScheduled')].message}"
    found: str = until(lambda: about(cluster, name, message), f"why {name} is pending")
    return found


def test_workers_fill_the_preferred_group_before_the_next(cluster: Cluster, nodes_of: Start) -> None:
    of = nodes_of("")
    placed = []
    # Two workers of half a node show that the order outweighs an even use of CPUs and memory.
    for number, workers in enumerate((2, 2, 4, 4)):
        name = f"run-{number}-worker"
        cluster.apply(worker(of, f"run-{number}", name, workers))
        placed.append(node_of(cluster, name))
    assert placed == [f"ordered-l4-{each}" for each in ("reserved", "reserved", "spot", "on-demand")]
    cluster.apply(worker(of, "run-4", "run-4-worker", 4))
    assert "Insufficient nvidia.com/gpu" in why_pending(cluster, "run-4-worker"), "every group is full"


def test_a_run_stays_in_the_group_of_its_first_worker_where_the_fabric_ends_there(
    cluster: Cluster, nodes_of: Start
) -> None:
    of = nodes_of(LABEL)
    cluster.apply(worker(of, "first", "first-worker-0", 8))
    assert node_of(cluster, "first-worker-0") == "ordered-l4-reserved"
    cluster.apply(worker(of, "first", "first-worker-1", 8))
    assert "didn't match pod affinity rules" in why_pending(cluster, "first-worker-1")
    cluster.apply(worker(of, "second", "second-worker-0", 8))
    assert node_of(cluster, "second-worker-0") == "ordered-l4-spot", "another run is not bound to it"

    (reserved, *_) = fake_nodes.of_pool(of, of.pools[0])
    fake_nodes.apply(cluster.state, [replace(reserved, name="ordered-l4-reserved-2")])
    assert node_of(cluster, "first-worker-1") == "ordered-l4-reserved-2", "as the autoscaler would add it"
