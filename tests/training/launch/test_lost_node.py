"""The pods of a run leave a lost node soon, so that others replace them."""

from __future__ import annotations

from typing import Any

from tests.training.launch.kuberay_launches import run_spec
from tests.training.launch.sky_tasks import document, recipe
from tests.training.launch.test_sky_task import alternatives
from trainfleet.training.launch.kuberay.manifest import ray_job

SECONDS = {"node.kubernetes.io/not-ready": 0, "node.kubernetes.io/unreachable": 0}


def seconds(pod: dict[str, Any]) -> dict[str, int]:
    """How long a pod stays on a node with each taint that evicts."""
    return {
        each["key"]: each["tolerationSeconds"]
        for each in pod["tolerations"]
        if each.get("effect") == "NoExecute"
    }


def test_every_pod_of_kuberay_leaves_a_lost_node() -> None:
    spec = ray_job(run_spec())["spec"]
    cluster = spec["rayClusterSpec"]
    templates = [cluster["headGroupSpec"]["template"], spec["submitterPodTemplate"]]
    templates += [group["template"] for group in cluster["workerGroupSpecs"]]
    assert [seconds(each["spec"]) for each in templates] == [SECONDS] * 3


def test_every_pod_of_skypilot_leaves_a_lost_node() -> None:
    for each in alternatives(document(recipe(), "aws-prod", "azure-prod")):
        pod = each["_cluster_config_overrides"]["kubernetes"]["pod_config"]["spec"]
        assert seconds(pod) == SECONDS
