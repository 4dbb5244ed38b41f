"""A plan sorts pools by the cost of a sample, and reports why each other pool is rejected."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.launch.saved_platforms import FOLDER, outputs, platforms
from trainfleet.errors import InputError
from trainfleet.training.cli.options import prices_of
from trainfleet.training.launch.sky.plan import (
    MFU,
    Candidate,
    Plan,
    PlanOptions,
    Throughput,
    make_plan,
    measured,
    shape,
)
from trainfleet.training.launch.sky.resources import BF16_FLOPS, gpt_parameters, needs_of, vocabulary_size
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.metrics import PEAK_FLOPS
from trainfleet.training.workloads.lm.gpt import Gpt
from trainfleet.training.workloads.lm.settings import LmSettings

Trainfleet = Callable[..., subprocess.CompletedProcess[str]]


def recipe(*overrides: str, name: str = "lm-1b") -> Recipe:
    return load_recipe(name, list(overrides))


def refusals(plan: Plan) -> dict[str, str]:
    return {f"{each.platform}/{each.pool}": "; ".join(each.refusals) for each in plan.refused}


def places(plan: Plan) -> list[str]:
    return [f"{each.platform}/{each.pool}" for each in plan.possible]


def test_pools_are_sorted_by_the_cost_of_a_sample_and_not_of_an_hour() -> None:
    plan = make_plan(recipe(), platforms())
    costs = [each.usd_per_million for each in plan.possible]
    assert all(cost is not None for cost in costs)
    assert costs == sorted(costs, key=lambda cost: cost or 0)
    by_hour = [each.usd_per_hour or 0 for each in plan.possible]
    assert by_hour != sorted(by_hour)
    assert places(plan)[0] == "aws-prod/h100"


def test_hours_and_cost_follow_from_peak_utilization_and_price() -> None:
    found = next(each for each in make_plan(recipe(), platforms("aws-prod")).possible if each.pool == "h100")
    needs = needs_of(recipe())
    assert needs.flops_per_sample is not None
    rate = 989e12 * MFU * 8 / needs.flops_per_sample
    assert found.samples_per_second == pytest.approx(rate)
    assert found.hours == pytest.approx(20000 * 256 / rate / 3600)
    assert found.usd == pytest.approx((found.hours or 0) * 55.04)


def test_a_spot_pool_comes_before_the_same_gpus_on_demand() -> None:
    pool = outputs("aws-dev").pools[0]
    twin = pool.model_copy(update={"name": "sure", "spot": False})
    both = outputs("aws-dev").model_copy(update={"pools": [twin, pool]})
    assert pool.spot
    assert places(make_plan(recipe("scaling.workers=4"), [("here", both)])) == [
        f"here/{pool.name}",
        "here/sure",
    ]
    plan = make_plan(recipe("scaling.workers=4"), [("here", both)], PlanOptions(spot=False))
    assert places(plan) == ["here/sure"]
    assert "spot is excluded" in refusals(plan)[f"here/{pool.name}"]


REFUSED: list[tuple[str, list[str], dict[str, Any], str, str]] = [
    (
        "memory",
        ["strategy=ddp", "sharding.meta_init=false", "workload.model.layers=60"],
        {},
        "aws-prod/l4",
        "memory too small: its L4 has 22.35 GiB",
    ),
    (
        "suggested fix",
        ["strategy=ddp", "sharding.meta_init=false", "workload.model.layers=60"],
        {},
        "aws-prod/l4",
        "strategy=fsdp",
    ),
    (
        "count",
        ["scaling.workers=64", "batch.global_batch=512"],
        {},
        "aws-prod/h100",
        "64 workers need 8 nodes, the pool has at most 4 (32 GPUs)",
    ),
    ("price", [], {}, "azure-prod/a100-spot", "price is not known"),
    ("another GPU", [], {"gpus": ("H100",)}, "aws-prod/l4", "L4 was not requested"),
    ("another pool", [], {"pool": "h100"}, "aws-prod/l4", "--pool h100"),
    ("spot", [], {"spot": False}, "gcp-prod/l4", "--no-spot"),
    ("bf16", ["scaling.workers=1"], {}, "azure-dev/t4", "a T4 has no bf16"),
]


@pytest.mark.parametrize(
    ("overrides", "options", "place", "says"),
    [each[1:] for each in REFUSED],
    ids=[each[0] for each in REFUSED],
)
def test_an_unsuitable_pool_is_rejected_with_the_reason(
    overrides: list[str], options: dict[str, Any], place: str, says: str
) -> None:
    plan = make_plan(
        recipe(*overrides),
        platforms("aws-prod", "gcp-prod", "azure-prod", "azure-dev"),
        PlanOptions(**options),
    )
    assert says in refusals(plan)[place]
    assert place not in places(plan)


def test_a_gpu_that_no_pool_has_leaves_no_candidates() -> None:
    plan = make_plan(recipe(), platforms(), PlanOptions(gpus=("GB300",)))
    assert plan.possible == ()
    assert len(plan.refused) == sum(len(each.pools) for _, each in platforms())


def test_a_user_price_makes_a_pool_comparable() -> None:
    plan = make_plan(recipe(), platforms("azure-prod"), PlanOptions(prices={"azure-prod/a100-spot": 0.5}))
    spot = next(each for each in plan.possible if each.pool == "a100-spot")
    assert spot.usd_per_hour == pytest.approx(0.5 * spot.nodes)


def test_a_price_of_an_unknown_pool_is_rejected() -> None:
    with pytest.raises(
        InputError, match=r"--price gcp-prod/l5: is not a pool of these platforms.*gcp-prod/l4"
    ):
        make_plan(recipe(), platforms(), PlanOptions(prices={"gcp-prod/l5": 1.0}))


def test_without_prices_the_order_is_that_of_the_platforms() -> None:
    bare = [pool.model_copy(update={"usd_per_hour": None}) for pool in outputs("aws-prod").pools]
    plan = make_plan(
        recipe(), [("desk", outputs("aws-prod").model_copy(update={"pools": bare}))], PlanOptions(spot=False)
    )
    assert places(plan) == ["desk/h100", "desk/h200"]
    assert all(each.usd is None for each in plan.possible)


def test_a_pool_of_self_recovering_machines_is_rejected() -> None:
    pool = outputs("aws-prod").pools[0].model_copy(update={"kind": "hyperpod"})
    plan = make_plan(recipe(), [("there", outputs("aws-prod").model_copy(update={"pools": [pool]}))])
    assert "--on kuberay" in refusals(plan)["there/h100"]


def test_a_recipe_without_gpus_runs_anywhere_on_the_requested_number_of_pods() -> None:
    plan = make_plan(recipe(name="lm-small"), platforms("aws-dev"), PlanOptions(nodes=2))
    assert [(each.pool, each.nodes, each.gpus_per_node) for each in plan.possible] == [("", 2, 0)]
    assert (
        "divisor"
        in refusals(make_plan(recipe(name="lm-small"), platforms("aws-dev"), PlanOptions(nodes=3)))[
            "aws-dev/"
        ]
    )


@pytest.mark.parametrize(
    ("workers", "per_node", "nodes", "each"),
    [(1, 8, 1, 1), (8, 8, 1, 8), (16, 8, 2, 8), (12, 8, 2, 6), (7, 4, 7, 1), (8, 1, 8, 1), (3, 0, 3, 1)],
)
def test_workers_are_spread_evenly_over_the_fewest_nodes(
    workers: int, per_node: int, nodes: int, each: int
) -> None:
    assert shape(workers, per_node) == (nodes, each)


@pytest.mark.parametrize("name", ["lm-tiny", "lm-small", "lm-124m", "lm-1b"])
def test_a_model_s_size_is_reported_without_building_it(name: str) -> None:
    workload = recipe(name=name).workload
    assert isinstance(workload, LmSettings)
    with torch.device("meta"):
        model = Gpt(workload.model, vocabulary_size(workload))
    assert gpt_parameters(workload.model, vocabulary_size(workload)) == sum(
        each.numel() for each in model.parameters()
    )


def test_peaks_are_those_of_the_mfu_of_a_run() -> None:
    for accelerator, peak in BF16_FLOPS.items():
        name = accelerator.partition("-")[0]
        if name in PEAK_FLOPS:
            assert peak == PEAK_FLOPS[name], accelerator


def test_memory_per_gpu_shrinks_with_shards() -> None:
    whole, shared = recipe("strategy=ddp", "sharding.meta_init=false"), recipe("strategy=fsdp")
    assert (needs_of(whole).gpu_bytes(whole, 8) or 0) > 2 * (needs_of(shared).gpu_bytes(shared, 8) or 0)
    muon = recipe("strategy=ddp", "sharding.meta_init=false", "optimizer.name=muon")
    moment = 4 * (needs_of(whole).parameters or 0)
    assert (needs_of(whole).gpu_bytes(whole, 8) or 0) - (needs_of(muon).gpu_bytes(muon, 8) or 0) == moment
    averaged = recipe("strategy=ddp", "sharding.meta_init=false", "ema.decay=0.999")
    assert (needs_of(averaged).gpu_bytes(averaged, 8) or 0) - (
        needs_of(whole).gpu_bytes(whole, 8) or 0
    ) == moment
    assert needs_of(recipe(name="vision-small")).gpu_bytes(recipe(name="vision-small"), 1) is None, (
        "its size is unknown"
    )


def test_memory_per_gpu_counts_the_logits_of_one_chunk() -> None:
    def activations(chunk: int) -> float:
        return needs_of(recipe(f"workload.model.loss_chunk={chunk}")).activation_bytes

    settings = recipe().workload
    assert isinstance(settings, LmSettings)
    tokens = recipe().batch.micro_batch * settings.model.context
    assert activations(512) - activations(256) == 256 * vocabulary_size(settings) * (2 + 4)
    assert activations(tokens) == activations(2 * tokens)


def test_the_throughput_is_that_of_a_measured_run() -> None:
    rows = [{"mfu": share, "samples_per_second": 1.0} for share in (0.01, 0.02, 0.4, 0.41, 0.42)]
    assert measured(rows, 8, "runs/x").mfu == 0.41
    assert measured([{"samples_per_second": 8.0}], 4, "runs/x") == Throughput(
        None, None, 2.0, "measured: 2 samples per second and worker, as runs/x reached on its own machine"
    )
    plan = make_plan(
        recipe(name="lm-small"),
        platforms("aws-dev"),
        throughput=measured([{"samples_per_second": 8.0}], 4, "x"),
    )
    assert plan.possible[0].hours == pytest.approx(200 * 32 / 4.0 / 3600)


@pytest.mark.parametrize("text", ["x", "x=", "x=free", "=1", "x=-1", "x=inf", "x=nan"])
def test_an_invalid_price_is_rejected(text: str) -> None:
    with pytest.raises(InputError, match="is not a price"):
        prices_of([text])
    assert prices_of(["a/b=0.5", "c=0"]) == {"a/b": 0.5, "c": 0.0}


def test_the_command_shows_candidates_and_refusals(trainfleet: Trainfleet) -> None:
    stacks = [
        text for stack in ("aws-prod", "azure-prod") for text in ("--stack", str(FOLDER / f"{stack}.json"))
    ]
    done = trainfleet("plan", "lm-1b", *stacks, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["candidates"][0]["pool"] == "h100"
    assert {each["pool"] for each in document["refused"]} == {"a100-spot", "a10g"}
    assert document["candidates"][0]["usd"] > 0


def test_the_command_reports_all_unreadable_platforms_at_once(trainfleet: Trainfleet, tmp_path: Path) -> None:
    never = tmp_path / "never.json"
    never.write_text("{}")
    done = trainfleet("plan", "lm-1b", "--stack", str(never), "--stack", "nowhere.json", cwd=tmp_path)
    assert done.returncode == 2
    assert "never.json" in done.stderr
    assert "there is no such file" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_candidate_is_unchanged_by_json() -> None:
    each = Candidate("p", "c", "pool", "L4", 1, 4, False, None)
    assert json.loads(json.dumps(each.as_json()))["usd"] is None
