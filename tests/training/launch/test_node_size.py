"""A pod that no node of its pool holds is rejected before the launch, with the value that fits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.training.launch.saved_platforms import FOLDER, STACKS, outputs
from trainfleet.errors import InputError
from trainfleet.infra.outputs.contract import PlatformOutputs, PoolOutput
from trainfleet.training.launch.kuberay.options import KubeRayOptions
from trainfleet.training.launch.kuberay.pods import worker_resources
from trainfleet.training.launch.kuberay.run_spec import resolve
from trainfleet.training.launch.kuberay.worker_size import worker_size
from trainfleet.training.launch.platform_outputs import NamedPlatform
from trainfleet.training.launch.remote.node_size import PodSize, too_large
from trainfleet.training.launch.request import Request, Target
from trainfleet.training.launch.sky.plan import PlanOptions, make_plan
from trainfleet.training.launch.sky.pod_size import pod_size
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe

POOLS = [(stack, pool) for stack in STACKS for pool in outputs(stack).pools]


def recipe(workers: int, cpus: float) -> Recipe:
    overrides = [f"scaling.workers={workers}", f"scaling.cpus_per_worker={cpus}", "storage=s3://runs"]
    return load_recipe("lm-124m", [*overrides, "precision=fp32", "scaling.use_gpu=true"])


def target(platform: PlatformOutputs, folder: Path) -> Target:
    return Target(Request("lm-124m"), (NamedPlatform(platform, FOLDER / "outputs.json"),), folder)


def on_kuberay(found: Recipe, platform: PlatformOutputs, pool: str, folder: Path) -> list[str]:
    """What a launch on KubeRay rejects."""
    try:
        resolve(found, target(platform, folder), KubeRayOptions(pool=pool), {})
    except InputError as error:
        return [str(each) for each in error.problems]
    return []


def on_sky(found: Recipe, platform: PlatformOutputs, pool: str, folder: Path) -> list[str]:
    """What a launch by SkyPilot rejects."""
    plan = make_plan(found, [("here", platform)], PlanOptions(pool=pool))
    return [why for each in plan.candidates if each.pool == pool for why in each.refusals]


@pytest.mark.parametrize("rejections", [on_kuberay, on_sky])
@pytest.mark.parametrize(("stack", "pool"), POOLS, ids=lambda value: getattr(value, "name", value))
def test_the_value_that_a_rejection_names_is_accepted(
    rejections: Callable[..., list[str]], stack: str, pool: PoolOutput, tmp_path: Path
) -> None:
    def about_cpus(cpus: float) -> list[str]:
        found = rejections(recipe(pool.per_node, cpus), outputs(stack), pool.name, tmp_path)
        return [text for text in found if "scaling.cpus_per_worker" in text]

    (text,) = about_cpus(pool.pod_cpus + 1)
    assert f"({pool.instance_type}) have at most {pool.pod_cpus:g} for pods" in text
    _, _, rest = text.partition("at most ")
    fitting = int(rest.rpartition("at most ")[2].partition(",")[0])
    assert about_cpus(fitting) == []
    assert about_cpus(fitting + 1) != []


def test_a_launch_without_a_named_pool_takes_one_that_holds_its_pods(tmp_path: Path) -> None:
    """The cheapest pool has four CPUs on each node, of which some are reserved."""
    platform = outputs("aws-prod")
    chosen = []
    for cpus in (2, 4):
        found = resolve(recipe(1, cpus), target(platform, tmp_path), KubeRayOptions(), {})
        assert found.pool is not None
        chosen.append(found.pool)
    assert [each.name for each in chosen] == ["a10g", "l4"]
    assert chosen[0].pod_cpus < 4 < chosen[1].pod_cpus


def test_a_pool_of_unknown_size_holds_every_pod() -> None:
    pool = outputs("aws-prod").pools[0].model_copy(update={"pod_cpus": 0.0, "pod_memory_gib": 0.0})
    assert too_large(pool, PodSize(10_000, 10_000, 8), 1) == []
    assert too_large(None, PodSize(10_000, 10_000, 8), 1) == []


def test_too_much_memory_is_rejected_and_a_pod_of_exactly_the_limit_is_not() -> None:
    pool = outputs("gcp-dev").pools[0]
    assert too_large(pool, PodSize(pool.pod_cpus, pool.pod_memory_gib, 1), 1) == []
    (problem,) = too_large(pool, PodSize(1, pool.pod_memory_gib + 0.01, 1), 1)
    assert f"at most {pool.pod_memory_gib:g} for pods" in problem.what


@pytest.mark.parametrize(("stack", "pool"), POOLS, ids=lambda value: getattr(value, "name", value))
def test_what_is_compared_is_what_the_pods_request(stack: str, pool: PoolOutput, tmp_path: Path) -> None:
    found = recipe(pool.per_node, 1)
    run = resolve(found, target(outputs(stack), tmp_path), KubeRayOptions(pool=pool.name), {})
    size = worker_size(found, pool, run.per_pod)
    requests = worker_resources(run)["requests"]
    assert (requests["cpu"], requests["memory"]) == (
        f"{size.cpus * 1000:.0f}m",
        f"{size.memory_gib * 1024:.0f}Mi",
    )
    assert too_large(pool, pod_size(found, 1), 1) == []
