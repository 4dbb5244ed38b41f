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


def platform(*groups: dict[str, Any], one_group_label: str = "") -> PlatformOutputs:
    taints = pool("l4")["tolerations"]
    return outputs(
        pools=[
            pool(
                "l4",
                groups=list(groups),
                one_group_label=one_group_label,
                spot=any(each["spot"] for each in groups),
                tolerations=[*taints, SPOT_TAINT],
            )
        ]
    )


ORDER = (group("reserved"), group("spot", "us-east-2a"), group("spot", "us-east-2b"), group("on-demand"))


Pod = tuple[dict[str, Any], dict[str, str]]
"""The specification and the labels of a worker."""


def preferred(pod: dict[str, Any]) -> list[tuple[int, str]]:
    terms = pod["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    found = []
    for term in terms:
        (expression,) = term["preference"]["matchExpressions"]
        assert (expression["key"], expression["operator"]) == ("trainfleet.io/capacity", "In")
        found.append((term["weight"], *expression["values"]))
    return found


def kuberay_pod(of: PlatformOutputs, workers: int = 4) -> Pod:
    scaling = (f"scaling.workers={workers}", "scaling.use_gpu=true", "batch.global_batch=32")
    run = run_spec(*scaling, platform=of)
    (group,) = ray_job(run)["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    template = group["template"]
    # KubeRay adds this label to the pods of worker groups.
    return template["spec"], {**template["metadata"]["labels"], "ray.io/node-type": "worker"}


def sky_pod(of: PlatformOutputs, workers: int = 4) -> Pod:
    found = recipe(f"scaling.workers={workers}")
    plan = make_plan(found, [("lab", of)], PlanOptions())
    document = task_document(found, plan.possible, {"lab": of}, TaskOptions(found.name, False, TOKEN))
    resources = document["resources"]
    overrides = resources["_cluster_config_overrides"]["kubernetes"]
    return overrides["pod_config"]["spec"], resources["labels"]


@pytest.mark.parametrize("pod_of", [kuberay_pod, sky_pod])
def test_a_pod_prefers_the_capacities_in_their_order_and_may_run_on_all(pod_of: Any) -> None:
    pod, _ = pod_of(platform(*ORDER))
    assert preferred(pod) == [(100, "reserved"), (33, "spot"), (11, "on-demand")]
    assert pod["nodeSelector"] == {"trainfleet.io/pool": "l4"}, "any group of the pool"
    assert SPOT_TAINT in pod["tolerations"]


@pytest.mark.parametrize("pod_of", [kuberay_pod, sky_pod])
def test_a_pod_on_a_pool_with_one_capacity_prefers_no_node(pod_of: Any) -> None:
    assert not {"nodeAffinity", "podAffinity"} & pod_of(platform())[0].get("affinity", {}).keys()


@pytest.mark.parametrize("pod_of", [kuberay_pod, sky_pod])
def test_workers_stay_in_one_group_where_the_fabric_ends_at_it(pod_of: Any) -> None:
    pod, labels = pod_of(platform(*ORDER, one_group_label="trainfleet.io/capacity"), 8)
    (term,) = pod["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "trainfleet.io/capacity"
    selected = term["labelSelector"]["matchLabels"]
    assert selected.items() <= labels.items(), "the first worker must match, or none is ever scheduled"
    assert "trainfleet.io/run" in selected, "workers of other runs do not count"
    assert preferred(pod), "and the order chooses the group"


@pytest.mark.parametrize("pod_of", [kuberay_pod, sky_pod])
@pytest.mark.parametrize(
    ("label", "workers"), [("", 8), ("trainfleet.io/capacity", 4)], ids=["several groups", "one worker pod"]
)
def test_workers_may_use_several_groups_elsewhere(pod_of: Any, label: str, workers: int) -> None:
    pod, _ = pod_of(platform(*ORDER, one_group_label=label), workers)
    assert "podAffinity" not in pod["affinity"]


def test_the_spread_over_machines_does_not_outweigh_the_order() -> None:
    assert "topologySpreadConstraints" in kuberay_pod(platform(), 8)[0]
    assert "topologySpreadConstraints" not in kuberay_pod(platform(*ORDER), 8)[0]


def test_without_spot_a_pool_that_may_use_spot_nodes_is_refused() -> None:
    found = recipe("scaling.workers=4")
    plan = make_plan(found, [("lab", platform(*ORDER))], PlanOptions(spot=False))
    assert [each.refusals for each in plan.refused] == [("spot is excluded: --no-spot",)]
    allowed = make_plan(
        found, [("lab", platform(group("reserved"), group("on-demand")))], PlanOptions(spot=False)
    )
    assert not allowed.refused
