"""Pods that train on a pool with a topology ask the queue for a place in it, and get the pool's own changes:
with KubeRay and SkyPilot alike.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.training.launch.kuberay_launches import EFA, outputs, pool, run_spec
from tests.training.launch.saved_platforms import platforms
from tests.training.launch.sky_tasks import recipe
from trainfleet.infra.outputs.contract import PodPatches
from trainfleet.training.launch.kuberay.fabric_pods import Backend, check_objects, resolve
from trainfleet.training.launch.kuberay.launcher import checked_run
from trainfleet.training.launch.kuberay.manifest import ray_cluster, ray_job, ray_service
from trainfleet.training.launch.kuberay.pods import head_pod, worker_pod
from trainfleet.training.launch.remote.workload_check import workload_check
from trainfleet.training.launch.sky.plan import PlanOptions, make_plan
from trainfleet.training.launch.sky.task import TaskOptions, task_document

PLACE = {"kueue.x-k8s.io/podset-required-topology": "example.com/block"}
GPUS = ("scaling.use_gpu=true", "batch.global_batch=64", "batch.micro_batch=4")


def variable(name: str, value: str) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "trainer", "env": [{"name": name, "value": value}]}]}}


def placed(pool: dict[str, Any]) -> Any:
    return outputs(pools=[{**pool, "queue_annotations": PLACE}])


def annotations(template: dict[str, Any]) -> dict[str, str]:
    return {key: each for key, each in template["metadata"]["annotations"].items() if "kueue" in key}


@pytest.mark.parametrize("workers", [8, 16], ids=["one node", "two nodes"])
def test_every_kind_of_ray_cluster_asks_for_a_place_for_its_workers_only(workers: int) -> None:
    size = (*GPUS, f"scaling.workers={workers}")
    run = run_spec(*size, platform=placed(EFA))
    kept = run_spec(*size, platform=placed(EFA), cluster="shared-ray")
    served = ray_service(run, "model", source="s3://runs/a", which="best", limits={})
    for cluster in (
        ray_job(run)["spec"]["rayClusterSpec"],
        ray_cluster(kept)["spec"],
        served["spec"]["rayClusterConfig"],
    ):
        (group,) = cluster["workerGroupSpecs"]
        assert annotations(group["template"]) == PLACE
        assert annotations(cluster["headGroupSpec"]["template"]) == {}, "the head is on the system pool"


def test_the_pod_of_drivers_needs_no_place() -> None:
    run = run_spec(*GPUS, "scaling.workers=16", platform=placed(EFA), redis="redis://10.0.0.7")
    workers, drivers = ray_job(run)["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert annotations(workers["template"]) == PLACE
    assert annotations(drivers["template"]) == {}


def test_a_run_elsewhere_asks_for_none() -> None:
    assert annotations(worker_pod(run_spec(*GPUS, "scaling.workers=4", pool="l4"))) == {}
    assert annotations(worker_pod(run_spec(platform=placed(pool("l4"))))) == {}, "a run without GPUs"


def test_the_fabric_check_asks_for_the_place_of_a_training() -> None:
    check = resolve(placed({**EFA, "environment": {"NCCL_NET": "ofi"}}), "h100", Backend("nccl"))
    _, *pods = check_objects(check)
    assert [PLACE.items() <= annotations(each).items() for each in pods] == [True, True]


@pytest.mark.parametrize("workers", [8, 16], ids=["one node", "two nodes"])
def test_the_pods_of_skypilot_ask_for_it_too(workers: int) -> None:
    found = recipe(f"scaling.workers={workers}")
    ((name, contract),) = platforms("aws-prod")
    pools = [each.model_copy(update={"queue_annotations": PLACE}) for each in contract.pools]
    stacks = [(name, contract.model_copy(update={"pools": pools}))]
    plan = make_plan(found, stacks, PlanOptions())
    task = task_document(found, plan.possible, dict(stacks), TaskOptions("a", False, "token"))
    resources = task["resources"].get("ordered") or [task["resources"]]
    for each in resources:
        config = each["_cluster_config_overrides"]["kubernetes"]["pod_config"]
        assert annotations(config) == PLACE


def test_the_changes_of_a_pool_are_between_those_of_the_platform_and_of_the_recipe() -> None:
    own = {**variable("WHO", "pool"), "metadata": {"annotations": {"example.com/rack": "near"}}}
    platform = outputs(pools=[{**EFA, "pod_template": own}, pool("l4")]).model_copy(
        update={"pod_template": PodPatches(workers=variable("WHO", "platform"))}
    )
    of_recipe = (
        "pod_template={workers: {spec: {containers: [{name: trainer, env: [{name: WHO, value: recipe}]}]}}}"
    )

    def who(*overrides: str, pool: str) -> str:
        template = worker_pod(run_spec(*GPUS, *overrides, platform=platform, pool=pool))
        assert ("example.com/rack" in template["metadata"]["annotations"]) is (pool == "h100")
        env = template["spec"]["containers"][0]["env"]
        (found,) = [each["value"] for each in env if each["name"] == "WHO"]
        return str(found)

    assert who("scaling.workers=8", pool="h100") == "pool"
    assert who("scaling.workers=4", pool="l4") == "platform"
    assert who("scaling.workers=8", of_recipe, pool="h100") == "recipe"
    run = run_spec(*GPUS, "scaling.workers=8", platform=platform, pool="h100")
    assert "WHO" not in str(head_pod(run)), "a head is not on the pool"
    assert "'WHO', 'value': 'pool'" in str(ray_job(run)), "it is printed"
    check = workload_check(checked_run(run), "always")
    assert check is not None
    assert "'WHO', 'value': 'pool'" in str(check.job)


def test_the_pods_of_skypilot_get_the_changes_of_their_pool() -> None:
    found = recipe("scaling.workers=8")
    ((name, contract),) = platforms("aws-prod")
    pools = [
        each.model_copy(update={"pod_template": variable("WHO", each.name)} if each.name != "h200" else {})
        for each in contract.pools
    ]
    stacks = [(name, contract.model_copy(update={"pools": pools}))]
    plan = make_plan(found, stacks, PlanOptions())
    task = task_document(found, plan.possible, dict(stacks), TaskOptions("a", False, "token"))
    names = [each.pool for each in plan.possible if each.nodes == plan.possible[0].nodes]
    assert len(names) > 1
    resources = task["resources"].get("ordered") or [task["resources"]]
    for pool_name, each in zip(names, resources, strict=True):
        env = each["_cluster_config_overrides"]["kubernetes"]["pod_config"]["spec"]["containers"][0]["env"]
        who = [one["value"] for one in env if one["name"] == "WHO"]
        assert who == ([] if pool_name == "h200" else [pool_name])
