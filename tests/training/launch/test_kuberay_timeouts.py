"""What grows with the number of pods of a run on KubeRay, over 1, 10 and 100 nodes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.training.launch.kuberay_launches import EFA, outputs, run_spec
from trainfleet.infra.kubernetes.queue import NODE_START
from trainfleet.infra.kubernetes.values.operators import ScalerArguments
from trainfleet.training.launch.kuberay.manifest import ray_job, submitted_job
from trainfleet.training.launch.kuberay.pods import head_resources
from trainfleet.training.launch.kuberay.run_spec import RunSpec
from trainfleet.training.launch.kuberay.timeouts import Timeouts, timeouts

SIZES: dict[int, tuple[Timeouts, dict[str, Any]]] = {
    1: (Timeouts(1800, 300, 60, 1.0, 16), {"cpu": "500m", "memory": "2Gi"}),
    10: (Timeouts(1800, 300, 60, 1.0, 16), {"cpu": "500m", "memory": "2Gi"}),
    100: (Timeouts(2700, 570, 150, 5.5, 64), {"cpu": "5000m", "memory": "13Gi"}),
}
PODS = pytest.mark.parametrize("pods", SIZES)


def run_of(pods: int, **options: Any) -> RunSpec:
    """A run on whole nodes of eight GPUs."""
    workers = 8 * pods
    platform = outputs(pools=[{**EFA, "max_nodes": 100}])
    sizes = (f"scaling.workers={workers}", f"batch.global_batch={workers}", "batch.micro_batch=1")
    return run_spec("scaling.use_gpu=true", *sizes, platform=platform, **options)


@PODS
def test_waits_and_the_head_grow_with_the_pods(pods: int) -> None:
    expected, head = SIZES[pods]
    run = run_of(pods)
    assert run.pods == pods
    assert run.timeouts == expected
    assert head_resources(run)["requests"] == head
    assert head_resources(run)["limits"] == {"memory": f"{3 * int(head['memory'][:-2])}Gi"}


@PODS
def test_the_objects_of_a_run_have_the_waits_of_its_size(pods: int) -> None:
    expected, _ = SIZES[pods]
    run = run_of(pods)
    assert run.within_s == expected.machines_s
    assert ray_job(run)["spec"]["preRunningDeadlineSeconds"] == expected.machines_s + 30
    assert submitted_job(run).env["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] == str(
        round(expected.workers_start_s)
    )


@PODS
def test_within_replaces_the_wait_for_machines_of_any_size(pods: int) -> None:
    run = run_of(pods, within_s=77.0)
    assert run.within_s == 77.0
    assert ray_job(run)["spec"]["preRunningDeadlineSeconds"] == 107


def test_waits_never_shrink_with_more_pods_and_end_somewhere() -> None:
    found = [timeouts(pods) for pods in range(1, 2000)]
    for smaller, larger in itertools.pairwise(found):
        assert larger.machines_s >= smaller.machines_s
        assert larger.workers_start_s >= smaller.workers_start_s
        assert larger.deletion_s >= smaller.deletion_s
        assert larger.poll_s >= smaller.poll_s
        assert larger.asked_at_once >= smaller.asked_at_once
    assert found[-1] == Timeouts(2700, 900, 300, 10, 64)


def minutes(text: str) -> float:
    assert text.endswith("m")
    return 60.0 * float(text[:-1])


def test_a_launch_waits_as_long_as_a_node_may_take_and_gives_up_before_the_queue_does() -> None:
    provisioning, queue = minutes(ScalerArguments.max_node_provision_time), minutes(NODE_START)
    for pods in (1, 10, 100, 1000):
        assert provisioning <= timeouts(pods).machines_s <= queue


def test_the_head_is_at_most_what_ray_recommends_for_large_clusters() -> None:
    platform = outputs(pools=[{**EFA, "max_nodes": 500}])
    sizes = ("scaling.workers=4000", "batch.global_batch=4000", "batch.micro_batch=1")
    run = run_spec("scaling.use_gpu=true", *sizes, platform=platform)
    assert head_resources(run)["requests"] == {"cpu": "8000m", "memory": "32Gi"}
