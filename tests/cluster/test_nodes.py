"""The scheduler treats simulated nodes as real ones: selectors, taints and GPUs decide."""

from __future__ import annotations

import pytest

from tests.cluster.conftest import Cluster, until
from tests.cluster.pods import pod
from trainfleet.errors import InputError
from trainfleet.local_cluster import fake_nodes
from trainfleet.local_cluster.fake_nodes import FakeNode


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("big:8", FakeNode("big", 8)),
        ("cpu:0:", FakeNode("cpu", 0)),
        (
            "l4:1:skypilot.co/accelerator=l4,a=b",
            FakeNode("l4", 1, {"skypilot.co/accelerator": "l4", "a": "b"}),
        ),
    ],
)
def test_a_node_is_read_from_its_short_form(text: str, node: FakeNode) -> None:
    assert fake_nodes.parse(text) == node


@pytest.mark.parametrize("text", ["", "big", "big:x", "Big:1", "big:1:label", "big:1:=x"])
def test_an_invalid_node_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="NAME:GPUS"):
        fake_nodes.parse(text)


def test_a_node_without_a_taint_gets_one() -> None:
    assert fake_nodes.as_object(FakeNode("big", 8))["spec"]["taints"] == [
        {"key": fake_nodes.LABEL, "value": "true", "effect": "NoSchedule"}
    ]


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
def test_gpu_labels_are_those_of_the_cloud(cloud: str) -> None:
    labels = fake_nodes.accelerator_labels(cloud, "H100", 8)
    assert labels[{"gcp": "cloud.google.com/gke-accelerator"}.get(cloud, "skypilot.co/accelerator")] in (
        "h100",
        "nvidia-h100-80gb",
    )


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_scheduler_respects_simulated_nodes(cluster: Cluster) -> None:
    done = cluster.call(
        "cluster", "up", "--name", cluster.name, "--no-image", "--fake-node", "fake-big:8:pool=big"
    )
    assert done.returncode == 0, done.stderr
    seen = {row["name"]: row for row in cluster.status()["nodes"]}
    assert (seen["fake-big"]["ready"], seen["fake-big"]["simulated"], seen["fake-big"]["gpus"]) == (
        True,
        True,
        8,
    )
    tolerations = [{"key": fake_nodes.LABEL, "operator": "Exists"}]

    def asks(name: str, gpus: int, **spec: object) -> dict[str, object]:
        each = pod(name, "true", container={"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}, **spec)
        return {**each, "metadata": {**each["metadata"], "namespace": "default"}}

    fits = asks("fits", 8, nodeSelector={"pool": "big"}, tolerations=tolerations)
    cluster.apply(fits, asks("untolerated", 1), asks("too-many", 9, tolerations=tolerations))

    def about(name: str, path: str) -> str:
        return cluster.kubectl("get", "pod", name, "-o", f"jsonpath={path}")

    until(lambda: about("fits", "{.spec.nodeName}") == "fake-big", "the pod that fits")
    until(lambda: about("fits", "{.status.phase}") in ("Running", "Succeeded"), "the pod that fits, running")
    why = "{.status.conditions[?(@.type=='PodScheduled')].message}"
    assert "untolerated taint" in until(lambda: about("untolerated", why), "why not")
    assert "Insufficient nvidia.com/gpu" in until(lambda: about("too-many", why), "why not")
    cluster.kubectl("delete", "pod", "fits", "untolerated", "too-many", "--grace-period=0", "--force")
    cluster.kubectl("delete", "node", "fake-big")
