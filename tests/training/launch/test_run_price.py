"""The price of a run's machines reaches the run on every launcher, and a limit in USD is rejected where there is
none.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.training.launch.kuberay_launches import EFA, outputs, pool, run_spec
from tests.training.launch.sky_tasks import document, recipe
from tests.training.launch.test_ray_up_cluster_yaml import run_spec as ray_up_spec
from trainfleet.errors import InputError
from trainfleet.training.launch.kuberay.manifest import ray_job, submitted_job
from trainfleet.training.launch.ray_up.cluster_yaml import submitted_job as ray_up_job
from trainfleet.training.launch.sky.plan import PlanOptions, make_plan
from trainfleet.training.run import PASSED_ON
from trainfleet.training.runtime.events import USD_PER_HOUR, price_in

GPUS = ("scaling.use_gpu=true", "scaling.workers=8", "batch.global_batch=32")


def test_the_driver_and_the_workers_get_the_price() -> None:
    spec = run_spec(*GPUS, pool="l4")
    assert spec.pods == 2
    variables = submitted_job(spec).env
    assert price_in(variables) == pytest.approx(2 * 4.6)
    assert USD_PER_HOUR in PASSED_ON, "Ray passes only these on from the driver"
    assert price_in({}) is None
    assert USD_PER_HOUR not in submitted_job(run_spec()).env


def test_kubernetes_ends_a_run_that_does_not_keep_its_limits() -> None:
    def deadline(*overrides: str, **options: Any) -> int | None:
        found: int | None = ray_job(run_spec(*overrides, **options))["spec"].get("activeDeadlineSeconds")
        return found

    assert deadline() is None
    assert deadline("limits.max_hours=2", within_s=600.0) == 7200 + 600 + 900
    assert deadline(*GPUS, "limits.max_usd=9.2", pool="l4", within_s=600.0) == 3600 + 600 + 900
    assert deadline(*GPUS, "limits.max_usd=9.2", "limits.max_hours=0.5", pool="l4", within_s=600.0) == 3300


def test_a_limit_in_usd_needs_a_price() -> None:
    unpriced = outputs(pools=[pool("l4", usd_per_hour=None), EFA])
    with pytest.raises(InputError, match=r"limits.max_usd: the price of pool l4 is not in the contract"):
        run_spec(*GPUS, "limits.max_usd=5", pool="l4", platform=unpriced)
    with pytest.raises(InputError, match=r"limits.max_usd: the price of nodes without a pool"):
        run_spec("limits.max_usd=5")
    with pytest.raises(InputError, match=r"limits.max_usd: the price of these machines"):
        ray_up_spec("local", "limits.max_usd=5")
    plan = make_plan(recipe("scaling.use_gpu=false", "limits.max_usd=5"), [("a", outputs())], PlanOptions())
    assert any("limits.max_usd: the price of a is not" in text for text in plan.refused[0].refusals)


def test_each_alternative_of_skypilot_has_the_price_of_its_pool() -> None:
    options = {"prices": {"aws-prod/h200": 77.0}}
    task = document(recipe("scaling.workers=8"), "aws-prod", **options)
    prices = {}
    for each in task["resources"]["ordered"]:
        (container,) = each["_cluster_config_overrides"]["kubernetes"]["pod_config"]["spec"]["containers"]
        variables = {one["name"]: one["value"] for one in container.get("env", [])}
        prices[each["accelerators"]] = price_in(variables)
    assert prices["H200:8"] == pytest.approx(77.0)
    assert None not in prices.values()
    assert len(set(prices.values())) == len(prices) > 1


def test_the_head_of_ray_up_passes_the_price_on() -> None:
    spec = ray_up_spec("aws", "scaling.use_gpu=true", image="my/trainfleet:1")
    assert spec.pool is not None
    assert spec.pool.usd_per_hour is not None
    assert price_in(ray_up_job(spec).env) == pytest.approx(spec.pool.usd_per_hour * spec.nodes)
    assert USD_PER_HOUR not in json.dumps(ray_up_job(ray_up_spec("local")).env)
