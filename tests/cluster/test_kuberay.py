"""The KubeRay operator creates a Ray cluster from the training image, and it runs a task."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.conftest import Cluster, until
from trainfleet.local_cluster.images import LOCAL

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3000)]
RAY = "2.60.0"


def group(cpus: str) -> dict[str, Any]:
    container = {
        "name": "ray",
        "image": LOCAL,
        "imagePullPolicy": "IfNotPresent",
        "resources": {"requests": {"cpu": cpus, "memory": "1Gi"}},
    }
    return {"spec": {"containers": [container]}}


def test_the_image_has_the_locked_versions_and_the_project(cluster: Cluster) -> None:
    script = (
        "import torch, ray, trainfleet.training.run, trainfleet; "
        "print(ray.__version__, torch.__version__.split('+')[0], torch.cuda.is_available())"
    )
    flags = (
        "--image",
        LOCAL,
        "--image-pull-policy=IfNotPresent",
        "--restart=Never",
        "--attach",
        "--rm",
        "--quiet",
    )
    until(lambda: cluster.kubectl("get", "serviceaccount", "default", check=False), "the default account")
    versions = cluster.kubectl("run", "versions", *flags, "--command", "--", "python", "-c", script)
    assert versions.split()[:3] == [RAY, "2.15.0", "False"]


@pytest.mark.slow
def test_a_ray_cluster_becomes_ready_and_runs_a_task_on_its_worker(cluster: Cluster) -> None:
    cluster.apply(
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "metadata": {"name": "small", "namespace": "default"},
            "spec": {
                "rayVersion": RAY,
                "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": group("200m")},
                "workerGroupSpecs": [
                    {
                        "groupName": "one",
                        "replicas": 1,
                        "minReplicas": 1,
                        "maxReplicas": 1,
                        "rayStartParams": {"num-cpus": "1"},
                        "template": group("200m"),
                    }
                ],
            },
        }
    )

    def state() -> str:
        return cluster.kubectl("get", "raycluster", "small", "-o", "jsonpath={.status.state}")

    until(lambda: state() == "ready", "the Ray cluster", 300)
    head = cluster.kubectl(
        "get", "pod", "-l", "ray.io/node-type=head", "-o", "jsonpath={.items[0].metadata.name}"
    )
    script = (
        "import ray; ray.init('auto', log_to_driver=False); "
        "print(ray.get(ray.remote(lambda: 6 * 7).remote()))"
    )
    assert "42" in cluster.kubectl("exec", head, "--", "python", "-c", script)
    cluster.kubectl("delete", "raycluster", "small")
