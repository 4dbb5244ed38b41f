"""What the pods of a run get to use a fabric: the same from every launcher, and only whole nodes of several."""

from __future__ import annotations

from typing import Any

import pytest

from tests.training.launch.kuberay_launches import run_spec
from tests.training.launch.saved_platforms import outputs
from tests.training.launch.sky_tasks import document, recipe
from trainfleet.errors import InputError
from trainfleet.infra.outputs.contract import PoolOutput
from trainfleet.training.launch.kuberay.pods import worker_pod
from trainfleet.training.launch.remote.fabric import fabric_settings, unusable_fabric

FABRICS = [("aws-prod", "h100"), ("gcp-prod", "h200"), ("azure-prod", "h100")]


def pool_of(stack: str, name: str) -> PoolOutput:
    return next(pool for pool in outputs(stack).pools if pool.name == name)


def settings_of(container: dict[str, Any], annotations: dict[str, str], pool: PoolOutput) -> dict[str, Any]:
    """The part of a pod that is the pool's fabric."""
    environment = {each["name"]: each.get("value") for each in container.get("env", ())}
    requests, limits = (container["resources"].get(key, {}) for key in ("requests", "limits"))
    return {
        "environment": {name: environment[name] for name in pool.environment if name in environment},
        "annotations": {name: annotations[name] for name in pool.pod_annotations if name in annotations},
        "requests": int(requests.get(pool.rdma_resource, 0)),
        "limits": int(limits.get(pool.rdma_resource, 0)),
    }


def on_kuberay(stack: str, pool: PoolOutput, workers: int) -> dict[str, Any]:
    overrides = ("scaling.use_gpu=true", f"scaling.workers={workers}", f"batch.global_batch={workers * 4}")
    pod = worker_pod(run_spec(*overrides, platform=outputs(stack), pool=pool.name))
    return settings_of(pod["spec"]["containers"][0], pod["metadata"]["annotations"], pool)


def on_sky(stack: str, pool: PoolOutput, workers: int) -> dict[str, Any]:
    found = document(recipe(f"scaling.workers={workers}"), stack, pool=pool.name)["resources"]
    config = found["_cluster_config_overrides"]["kubernetes"]["pod_config"]
    annotations = config.get("metadata", {}).get("annotations", {})
    return settings_of(config["spec"]["containers"][0], annotations, pool)


@pytest.mark.parametrize(("stack", "name"), FABRICS)
def test_both_launchers_apply_the_whole_fabric_to_whole_nodes(stack: str, name: str) -> None:
    pool = pool_of(stack, name)
    amount = pool.rdma_nics if pool.rdma_resource else 0
    expected = {
        "environment": pool.environment,
        "annotations": pool.pod_annotations,
        "requests": amount,
        "limits": amount,
    }
    assert pool.environment or pool.pod_annotations
    assert on_kuberay(stack, pool, 16) == on_sky(stack, pool, 16) == expected


@pytest.mark.parametrize("workers", [1, 4, 8])
@pytest.mark.parametrize(("stack", "name"), FABRICS)
def test_neither_launcher_applies_any_of_it_to_one_node_or_a_part(
    stack: str, name: str, workers: int
) -> None:
    pool = pool_of(stack, name)
    nothing = {"environment": {}, "annotations": {}, "requests": 0, "limits": 0}
    assert on_kuberay(stack, pool, workers) == on_sky(stack, pool, workers) == nothing


@pytest.mark.parametrize(
    ("rdma", "gpus", "pods", "used"),
    [("efa", 8, 2, True), ("efa", 4, 2, False), ("efa", 8, 1, False), ("none", 8, 2, False)],
)
def test_only_whole_nodes_of_several_use_a_fabric(rdma: str, gpus: int, pods: int, *, used: bool) -> None:
    pool = pool_of("aws-prod", "h100").model_copy(update={"rdma": rdma})
    assert bool(fabric_settings(pool, gpus, pods).resources) is used
    assert fabric_settings(None, gpus, pods).resources == {}


def test_kuberay_rejects_a_fabric_that_needs_a_privileged_daemon() -> None:
    platform = outputs("gcp-prod")
    overrides = ("scaling.use_gpu=true", "scaling.workers=16", "batch.global_batch=64")
    with pytest.raises(InputError) as caught:
        run_spec(*overrides, platform=platform, pool="h100")
    assert "--pool: gpudirect-tcpx of pool h100 needs a daemon with access to the node" in str(caught.value)
    assert unusable_fabric(pool_of("gcp-prod", "h100"), 8, 1) == ""
    alone = ("scaling.use_gpu=true", "scaling.workers=8", "batch.global_batch=32")
    assert run_spec(*alone, platform=platform, pool="h100").pods == 1
