"""Pods of a run prefer the node groups of their pool in order, whichever launcher creates them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.training.launch.kuberay_launches import outputs, pool, run_spec
from tests.training.launch.sky_tasks import TOKEN, recipe
from trainfleet.infra.outputs.contract import PlatformOutputs
from trainfleet.training.launch.kuberay.manifest import ray_job
from trainfleet.training.launch.sky.plan import PlanOptions, make_plan
from trainfleet.training.launch.sky.task import TaskOptions, task_document

SPOT_TAINT = {
    "key": "kubernetes.azure.com/scalesetpriority",
    "operator": "Equal",
    "value": "spot",
    "effect": "NoSchedule",
}


def group(capacity: str, zone: str = "", price: float | None = 4.6) -> dict[str, Any]:
    return {
        "name": f"l4-{capacity}{zone[-1:]}",
        "capacity": capacity,
        "zone": zone,
        "node_selector": {"trainfleet.io/capacity": capacity},
        "spot": capacity == "spot",
        "max_nodes": 2,
        "usd_per_hour": price,
    }


def platform(*groups: dict[str, Any]) -> PlatformOutputs:
    taints = pool("l4")["tolerations"]
    return outputs(
        pools=[
            pool(
                "l4",
                groups=list(groups),
                spot=any(each["spot"] for each in groups),
                tolerations=[*taints, SPOT_TAINT],
            )
        ]
    )


ORDER = (group("reserved"), group("spot", "us-east-2a"), group("spot", "us-east-2b"), group("on-demand"))


def preferred(pod: dict[str, Any]) -> list[tuple[int, str]]:
    terms = pod["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    found = []
    for term in terms:
        (expression,) = term["preference"]["matchExpressions"]
        assert (expression["key"], expression["operator"]) == ("trainfleet.io/capacity", "In")
        found.append((term["weight"], *expression["values"]))
    return found


def kuberay_pod(of: PlatformOutputs) -> dict[str, Any]:
    (workers,) = ray_job(run_spec("scaling.workers=4", "scaling.use_gpu=true", platform=of))["spec"][
        "rayClusterSpec"
    ]["workerGroupSpecs"]
    spec: dict[str, Any] = workers["template"]["spec"]
    return spec


def sky_pod(of: PlatformOutputs) -> dict[str, Any]:
    found = recipe("scaling.workers=4")
    plan = make_plan(found, [("lab", of)], PlanOptions())
    document = task_document(found, plan.possible, {"lab": of}, TaskOptions(found.name, False, TOKEN))
    overrides = document["resources"]["_cluster_config_overrides"]["kubernetes"]
    spec: dict[str, Any] = overrides["pod_config"]["spec"]
    return spec


@pytest.mark.parametrize("pod_of", [kuberay_pod, sky_pod])
def test_a_pod_prefers_the_capacities_in_their_order_and_may_run_on_all(pod_of: Any) -> None:
    pod = pod_of(platform(*ORDER))
    assert preferred(pod) == [(100, "reserved"), (66, "spot"), (33, "on-demand")]
    assert pod["nodeSelector"] == {"trainfleet.io/pool": "l4"}, "any group of the pool"
    assert SPOT_TAINT in pod["tolerations"]


@pytest.mark.parametrize("pod_of", [kuberay_pod, sky_pod])
def test_a_pod_on_a_pool_with_one_capacity_has_no_affinity(pod_of: Any) -> None:
    assert "affinity" not in pod_of(platform())


def test_without_spot_a_pool_that_may_use_spot_nodes_is_refused() -> None:
    found = recipe("scaling.workers=4")
    plan = make_plan(found, [("lab", platform(*ORDER))], PlanOptions(spot=False))
    assert [each.refusals for each in plan.refused] == [("spot is excluded: --no-spot",)]
    allowed = make_plan(
        found, [("lab", platform(group("reserved"), group("on-demand")))], PlanOptions(spot=False)
    )
    assert not allowed.refused
