"""What a drained node waits for: the run's disruption budget and its pods' grace periods."""

from __future__ import annotations

import json

import pytest

from tests.training.launch.kuberay_launches import outputs, run_spec
from tests.training.launch.test_kuberay_manifest import RUNS
from trainfleet.infra.cloud_support import support
from trainfleet.infra.clouds import Cloud
from trainfleet.training.launch.kuberay.manifest import (
    cluster_budget,
    disruption_budget,
    ray_cluster,
    ray_job,
)


@pytest.mark.parametrize(
    ("case", "stay", "selected"),
    [
        ("rdma", 2, {"trainfleet.io/run": "lm-tiny"}),
        ("elastic in a queue", 4, {"trainfleet.io/run": "lm-tiny"}),
        ("elastic", 2, {"trainfleet.io/run": "lm-tiny"}),
    ],
)
def test_a_drain_evicts_one_pod_of_a_run_at_a_time(case: str, stay: int, selected: dict[str, str]) -> None:
    """Of the head and the workers. The submitter has no `ray.io/node-type`, and may be evicted at any time."""
    spec = disruption_budget(RUNS[case]())["spec"]
    assert (spec["minAvailable"], spec["selector"]["matchLabels"]) == (stay, selected)
    assert spec["selector"]["matchExpressions"] == [{"key": "ray.io/node-type", "operator": "Exists"}]
    assert "maxUnavailable" not in spec, "which needs a scale that a RayCluster does not have"


@pytest.mark.parametrize(("case", "stay"), [("long-lived", 2), ("long-lived with Redis", 3)])
def test_a_drain_evicts_one_pod_of_a_long_lived_cluster_at_a_time(case: str, stay: int) -> None:
    spec = cluster_budget(ray_cluster(RUNS[case]()))["spec"]
    assert (spec["minAvailable"], spec["selector"]["matchLabels"]) == (stay, {"ray.io/cluster": "shared-ray"})


def test_a_drain_leaves_an_elastic_long_lived_cluster_its_fewest_workers() -> None:
    elastic = ("scaling.workers=4", "scaling.min_workers=2")
    run = run_spec(*elastic, platform=outputs(queue=""), cluster="shared-ray")
    cluster = ray_cluster(run)
    cluster["spec"]["workerGroupSpecs"][0]["replicas"] = 3  # as Ray's autoscaler sets it
    assert cluster_budget(cluster)["spec"]["minAvailable"] == 2


MANAGED = (Cloud.AWS, Cloud.GCP, Cloud.AZURE)
AUTOSCALER_GRACE_S = 600
"""Default of the cluster autoscaler (max-graceful-termination-sec)."""


@pytest.mark.parametrize("cloud", MANAGED)
def test_a_drain_waits_for_a_checkpoint_and_the_cloud_for_the_drain(cloud: Cloud) -> None:
    template = ray_job(RUNS["gpu"]())["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]
    (worker,) = template["spec"]["containers"]
    saving, shutdown = worker["lifecycle"]["preStop"]["exec"]["command"][-1].split("; ")
    waits, stops = (int(command.rsplit(" ", 1)[1]) for command in (saving, shutdown))
    grace = template["spec"]["terminationGracePeriodSeconds"]
    assert waits >= 300, "a checkpoint of a large model takes minutes"
    assert waits + stops < grace
    assert grace < 60 * support(cloud).drain_minutes, "or the node is not upgraded, or the pod is killed"
    assert grace < AUTOSCALER_GRACE_S
    assert {"name": "TRAINFLEET_RANKS", "value": "/tmp/trainfleet-ranks"} in worker["env"]


def test_a_head_has_no_ranks_and_ends_soon() -> None:
    template = ray_job(RUNS["gpu"]())["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]
    assert template["spec"]["terminationGracePeriodSeconds"] < 60
    assert "pod_drain" not in json.dumps(template)
