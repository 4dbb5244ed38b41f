"""The names, machines and pool of a run on KubeRay, and the launches that are rejected before any request."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from tests.training.launch.kuberay_launches import EFA, outputs, pool, run_spec
from trainfleet.errors import InputError
from trainfleet.training.launch.kuberay.manifest import ray_job, submitted_job
from trainfleet.training.launch.kuberay.options import KubeRayOptions
from trainfleet.training.launch.kuberay.run_spec import MAX_NAME_LENGTH, job_name, resolve
from trainfleet.training.launch.request import Request, Target
from trainfleet.training.recipe.load import load_recipe


@pytest.mark.parametrize("length", [1, 30, 44, 45, 63])
def test_every_run_name_gives_a_name_that_is_valid_for_kuberay(length: int) -> None:
    name = job_name("a" * length)
    assert len(name) <= MAX_NAME_LENGTH
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)


def test_runs_with_long_names_do_not_collide() -> None:
    names = [job_name("a" * 60 + end) for end in ("one", "two")]
    assert names[0] != names[1]


@pytest.mark.parametrize(
    ("workers", "per_pod", "pods"), [(1, 1, 1), (3, 3, 1), (4, 4, 1), (5, 4, 2), (8, 4, 2)]
)
def test_workers_fill_machines(workers: int, per_pod: int, pods: int) -> None:
    found = run_spec(
        "scaling.use_gpu=true", f"scaling.workers={workers}", f"batch.global_batch={workers * 4}", pool="l4"
    )
    assert (found.per_pod, found.pods) == (per_pod, pods)


REFUSED = {
    "no image for a context": ({"context": "kind", "namespace": "training"}, "--image"),
    "no namespace for a context": ({"context": "kind", "image": "me/it:1"}, "--namespace"),
    "a pool that is not there": ({"pool": "l5"}, "no pool `l5`"),
    "a folder as storage": ({"overrides": ["storage=runs"]}, "pods do not have"),
    "a file URL as storage": ({"overrides": ["storage=file:///mnt/runs"]}, "pods do not have"),
    "a store on this machine": (
        {"env": {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"}},
        "this machine itself",
    ),
    "a store at localhost": ({"env": {"STORAGE_EMULATOR_HOST": "localhost:9000"}}, "this machine itself"),
    "GPUs on a platform without": (
        {"overrides": ["scaling.use_gpu=true"], "platform": outputs(pools=[])},
        "no pool of prod has GPUs",
    ),
    "more GPUs than any pool": (
        {
            "overrides": ["scaling.use_gpu=true", "scaling.workers=64", "batch.global_batch=256"],
            "platform": outputs(pools=[pool("l4"), EFA]),
        },
        "the largest has 16",
    ),
    "a stack without a cluster": (
        {"platform": outputs(kubeconfig="{}", kube_context="")},
        "--stack outputs: its outputs have no cluster",
    ),
    "more nodes than the pool": (
        {"overrides": ["scaling.use_gpu=true", "scaling.workers=16", "batch.global_batch=64"], "pool": "l4"},
        "which grows to 2",
    ),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_an_impossible_launch_is_rejected_before_any_request(case: str) -> None:
    asked, output = REFUSED[case]
    with pytest.raises(InputError, match=re.escape(output)):
        run_spec(
            *asked.get("overrides", []), **{key: value for key, value in asked.items() if key != "overrides"}
        )


FOLLOWED = {
    "a variable that only --from-secret had": {"overrides": ["notifications.slack=SLACK_URL"]},
    "a price that only --pool had": {
        "overrides": ["limits.max_usd=5"],
        "platform": outputs(pools=[pool("cpu", per_node=1, gpu_memory_gib=0.0)]),
    },
    "a store that is forwarded to this machine": {"env": {"TRAINFLEET_S3_ENDPOINT": "http://127.0.0.1:9000"}},
    "a CA that is not on this machine": {"env": {"AWS_CA_BUNDLE": "nowhere.pem"}},
    "a platform that has become smaller": {
        "overrides": ["scaling.use_gpu=true", "scaling.workers=64", "batch.global_batch=256"]
    },
}


@pytest.mark.parametrize("case", sorted(FOLLOWED))
def test_a_run_is_followed_with_what_would_reject_its_launch(case: str) -> None:
    given = dict(FOLLOWED[case])
    overrides = given.pop("overrides", [])
    with pytest.raises(InputError, match="cannot run this as requested"):
        run_spec(*overrides, **given)
    run = run_spec(*overrides, **given, attach=True, launch="one", image="as-launched")
    assert (run.launch, run.job) == ("one", "tf-lm-tiny")


def test_the_cluster_of_a_run_that_is_followed_is_checked() -> None:
    with pytest.raises(InputError, match="--namespace"):
        run_spec(context="kind", attach=True, launch="one", image="as-launched")


def test_without_a_cluster_the_options_that_name_one_are_reported() -> None:
    recipe = load_recipe("lm-tiny", ["storage=s3://prod-runs/runs"])
    with pytest.raises(InputError, match="--stack"):
        resolve(recipe, Target(Request("lm-tiny"), (), Path()), KubeRayOptions(), {})


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(InputError) as caught:
        run_spec("storage=runs", context="kind")
    assert len(caught.value.problems) == 3


def test_the_cheapest_pool_that_is_large_enough_trains() -> None:
    prices = {"l4": 4.6, "h100": 55.04}
    for workers, expected in ((1, "l4"), (8, "l4"), (16, "h100")):
        found = run_spec(
            "scaling.use_gpu=true", f"scaling.workers={workers}", f"batch.global_batch={workers * 4}"
        )
        assert found.pool is not None
        assert found.pool.name == expected, prices


@pytest.mark.parametrize("cpus", [0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 6.5, 30.0])
@pytest.mark.parametrize("workers", [1, 3, 4, 6, 7, 8])
def test_the_ranks_of_one_pod_fit_into_it_and_no_other_rank_does(workers: int, cpus: float) -> None:
    run = run_spec(f"scaling.cpus_per_worker={cpus}", context="kind", namespace="t", image="me/t:1")
    run = replace(run, per_pod=workers, pods=1)
    group = ray_job(run)["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    there = Decimal(group["rayStartParams"]["num-cpus"])
    rank = Decimal(submitted_job(run).env["TRAINFLEET_RANK_CPUS"])
    assert rank == round(rank, 4), "Ray counts in ten thousandths (src/ray/common/scheduling/fixed_point.h)"
    assert there // rank == workers
    assert rank >= Decimal(str(cpus)) - Decimal("0.0001")


def test_a_long_lived_cluster_may_be_sized_for_another_recipe() -> None:
    assert "TRAINFLEET_RANK_CPUS" not in submitted_job(run_spec(cluster="shared-ray")).env
