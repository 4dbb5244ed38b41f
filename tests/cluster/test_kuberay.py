"""KubeRay's operator makes a Ray cluster out of the training image, and it computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rehearsal.cluster.images import LOCAL
from tests.cluster.conftest import Cluster, trainfleet, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3000)]
RAY = "2.60.0"


@pytest.fixture(scope="module")
def with_image() -> Iterator[Cluster]:
    """A cluster with the training image."""
    trainfleet("cluster", "down", "--name", "ray")
    done = trainfleet("cluster", "up", "--name", "ray", timeout=2700)
    assert done.returncode == 0, done.stderr
    yield Cluster("ray", trainfleet)
    trainfleet("cluster", "down", "--name", "ray")


def group(cpus: str) -> dict[str, Any]:
    container = {"name": "ray", "image": LOCAL, "imagePullPolicy": "IfNotPresent", "resources": {"requests": {"cpu": cpus, "memory": "1Gi"}}}
    return {"spec": {"containers": [container]}}


def test_the_image_holds_the_locks_versions_and_the_project(with_image: Cluster) -> None:
    script = "import torch, ray, training.run, trainfleet; print(ray.__version__, torch.__version__.split('+')[0], torch.cuda.is_available())"
    flags = ("--image", LOCAL, "--image-pull-policy=IfNotPresent", "--restart=Never", "--attach", "--rm", "--quiet")
    until(lambda: with_image.kubectl("get", "serviceaccount", "default", check=False), "the default account")
    said = with_image.kubectl("run", "versions", *flags, "--command", "--", "python", "-c", script)
    assert said.split()[:3] == [RAY, "2.15.0", "False"]


def test_a_ray_cluster_becomes_ready_and_runs_a_task_on_its_worker(with_image: Cluster) -> None:
    with_image.apply(
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
        return with_image.kubectl("get", "raycluster", "small", "-o", "jsonpath={.status.state}")

    until(lambda: state() == "ready", "the Ray cluster", 300)
    head = with_image.kubectl("get", "pod", "-l", "ray.io/node-type=head", "-o", "jsonpath={.items[0].metadata.name}")
    script = "import ray; ray.init('auto', log_to_driver=False); print(ray.get(ray.remote(lambda: 6 * 7).remote()))"
    assert "42" in with_image.kubectl("exec", head, "--", "python", "-c", script)
    with_image.kubectl("delete", "raycluster", "small")
