"""One recipe with ddp, fsdp and hsdp on one, two and three ranks has the same losses.

The tolerance is that of rounding, because sums have another order: 2e-5 of a loss over twelve steps of a
model that learns fast.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.training.training_runs import Rows, agrees, metric_values, on_ranks, recipe_on, train_all
from trainfleet.errors import InputError
from trainfleet.training.recipe.schema import Optimizer, Recipe
from trainfleet.training.runtime.process_group import single_process_group
from trainfleet.training.trainer.context import RunContext
from trainfleet.training.trainer.optimizer import make_optimizer
from trainfleet.training.trainer.strategies import make_strategy
from trainfleet.training.trainer.strategies.wrap import find_blocks

Make = Callable[..., Recipe]
VARIANTS: dict[str, tuple[str, ...]] = {
    "ddp": ("strategy=ddp",),
    "fsdp": ("strategy=fsdp",),
    "hsdp": ("strategy=hsdp",),
    "ddp, accumulated": ("strategy=ddp", "batch.micro_batch=2"),
    "ddp, the loss in parts": ("strategy=ddp", "workload.model.loss_chunk=48"),
    "fsdp, the loss in parts": ("strategy=fsdp", "workload.model.loss_chunk=48"),
    "fsdp, accumulated": ("strategy=fsdp", "batch.micro_batch=2"),
    "fsdp, exchanged in every micro batch": (
        "strategy=fsdp",
        "batch.micro_batch=2",
        "sharding.reduce_every=true",
    ),
}
ON_TWO: dict[str, tuple[str, ...]] = {
    "hsdp, accumulated": ("strategy=hsdp", "batch.micro_batch=2"),
    "hsdp, one replica": ("strategy=hsdp", "sharding.replicas=1"),
    "fsdp, gathered once": ("strategy=fsdp", "sharding.reshard=false"),
    "fsdp, offloaded": ("strategy=fsdp", "sharding.cpu_offload=true"),
    "fsdp, recomputed": ("strategy=fsdp", "activation_checkpointing=full"),
    "fsdp, recomputed in part": ("strategy=fsdp", "activation_checkpointing=selective"),
    "ddp, recomputed": ("strategy=ddp", "activation_checkpointing=full"),
    "fsdp, blocks named": ("strategy=fsdp", "sharding.blocks=[Attention, Mlp]"),
}


@pytest.fixture(scope="module")
def single_rank_rows(text_folder: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """The rows of one rank that holds the whole model."""
    from trainfleet.training.trainer.loop import train

    folder = tmp_path_factory.mktemp("single_rank_rows")
    train(recipe_on(text_folder), RunContext(folder, cache=cache))
    from tests.training.training_runs import rows_of

    return rows_of(folder)


@pytest.mark.parametrize(
    ("world_size", "variants"),
    [
        pytest.param(1, VARIANTS, marks=pytest.mark.deep, id="1"),
        pytest.param(2, VARIANTS, id="2"),
        pytest.param(2, ON_TWO, marks=pytest.mark.deep, id="2, more"),
        pytest.param(3, VARIANTS, marks=pytest.mark.deep, id="3"),
    ],
)
def test_every_strategy_has_the_losses_of_one_rank(
    tmp_path: Path,
    text_folder: Path,
    cache: Path,
    single_rank_rows: Rows,
    world_size: int,
    variants: dict[str, tuple[str, ...]],
) -> None:
    found = train_all(
        {name: recipe_on(text_folder, *overrides) for name, overrides in variants.items()},
        tmp_path,
        cache,
        world_size,
    )
    assert metric_values(single_rank_rows, "loss")[-1] < metric_values(single_rank_rows, "loss")[0] - 1
    assert (
        min(metric_values(single_rank_rows, "grad_norm")) > 1.0
    )  # so gradients are clipped, at 1.0, in every step
    for rows in found.values():
        agrees(rows, single_rank_rows)


@pytest.mark.deep
def test_each_strategy_resumes_exactly(tmp_path: Path, text_folder: Path, cache: Path) -> None:
    overrides = ("workload.model.dropout=0.1", "log.every=3", "batch.micro_batch=4")
    recipes = {
        strategy: recipe_on(text_folder, f"strategy={strategy}", *overrides)
        for strategy in ("ddp", "fsdp", "hsdp")
    }
    recipes |= {
        "ddp, muon": recipe_on(text_folder, "optimizer.name=muon", *overrides),
        "fsdp, muon": recipe_on(text_folder, "strategy=fsdp", "optimizer.name=muon", *overrides),
        "ddp, averaged": recipe_on(text_folder, "ema.decay=0.8", *overrides),
        "fsdp, averaged": recipe_on(text_folder, "strategy=fsdp", "ema.decay=0.8", *overrides),
        "fsdp, made late": recipe_on(text_folder, "strategy=fsdp", "sharding.meta_init=true", *overrides),
    }
    whole = train_all(recipes, tmp_path / "whole", cache, 2)
    cut = train_all(recipes, tmp_path / "cut", cache, 2, stop_first=5)
    for name in recipes:
        for key, kind in (
            ("loss", "train"),
            ("grad_norm", "train"),
            ("validation/loss", "validation"),
            ("test/loss", "test"),
        ):
            assert metric_values(cut[name], key, kind) == metric_values(whole[name], key, kind), (name, key)
    for name in ("ddp", "fsdp"):
        assert metric_values(whole[f"{name}, averaged"], "loss") == metric_values(whole[name], "loss")


@pytest.mark.deep
def test_half_precision_is_close_to_full_precision_with_every_strategy(
    tmp_path: Path, text_folder: Path, cache: Path, single_rank_rows: Rows
) -> None:
    recipes = {
        strategy: recipe_on(text_folder, f"strategy={strategy}", "precision=bf16")
        for strategy in ("ddp", "fsdp")
    }
    for name, rows in train_all(recipes, tmp_path, cache, 2).items():
        assert metric_values(rows, "loss") == pytest.approx(
            metric_values(single_rank_rows, "loss"), rel=5e-3
        ), name
        assert metric_values(rows, "loss") != metric_values(single_rank_rows, "loss"), name


@pytest.mark.deep
def test_gradients_exchanged_in_half_precision_have_close_losses(
    tmp_path: Path, text_folder: Path, cache: Path, single_rank_rows: Rows
) -> None:
    recipes = {
        strategy: recipe_on(text_folder, f"strategy={strategy}", "reduce_precision=bf16")
        for strategy in ("ddp", "fsdp", "hsdp")
    }
    whole = metric_values(single_rank_rows, "loss")
    for name, rows in train_all(recipes, tmp_path, cache, 2).items():
        assert metric_values(rows, "loss") == pytest.approx(whole, rel=5e-3), name
        assert metric_values(rows, "loss")[-1] != pytest.approx(whole[-1], rel=1e-6), name


@pytest.mark.deep
@pytest.mark.timeout(1500)
def test_compiled_blocks_have_the_same_losses(
    tmp_path: Path, text_folder: Path, cache: Path, single_rank_rows: Rows
) -> None:
    recipes = {
        strategy: recipe_on(text_folder, f"strategy={strategy}", "compile=true")
        for strategy in ("ddp", "fsdp")
    }
    # Compile in the rank itself. Otherwise, each starts a pool of processes that import torch, on the cores
    # that the ranks need.
    alone = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "compiled")}
    for rows in train_all(recipes, tmp_path, cache, 2, limit_s=600, environment=alone).values():
        assert metric_values(rows, "loss") == pytest.approx(metric_values(single_rank_rows, "loss"), rel=1e-4)


class Twice(nn.Module):
    """Two stacks of different classes, as in an encoder and a decoder, with single layers between them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(1, 4, 3), nn.GELU(), nn.Conv1d(4, 4, 3))
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16) for _ in range(3))
        self.decoder = nn.ModuleDict(
            {"layers": nn.ModuleList(nn.TransformerDecoderLayer(8, 2, 16) for _ in range(2))}
        )
        self.head = nn.ModuleList([nn.Sequential(nn.Linear(8, 8))])


def test_blocks_are_the_elements_of_lists_of_one_class() -> None:
    model = Twice()
    assert find_blocks(model) == [*model.encoder, *model.decoder["layers"], model.head[0]]  # type: ignore[misc]
    assert find_blocks(model, ["TransformerDecoderLayer"]) == list(model.decoder["layers"])  # type: ignore[call-overload]
    assert find_blocks(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == []
    with pytest.raises(InputError, match="no such block") as caught:
        find_blocks(model, ["TransformerEncodeLayer"])
    assert "TransformerEncoderLayer" in caught.value.problems[0].fix


def test_weight_decay_applies_to_tensors_that_were_matrices_before_sharding(
    tmp_path: Path, tiny: Make, cache: Path
) -> None:
    def groups(strategy: str) -> list[list[str]]:
        context = RunContext(tmp_path, cache=cache)
        made = make_strategy(
            tiny(f"strategy={strategy}"), lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), context
        )
        names = {id(each): name for name, each in made.module.named_parameters()}
        groups = make_optimizer(Optimizer(), made.module).param_groups
        return [
            [names[id(each)] for each in group["params"]] for group in groups if group["weight_decay"] > 0
        ]

    with single_process_group():
        assert groups("fsdp") == groups("ddp") == [["0.weight"]]


def count_collectives(
    tiny: Make, cache: Path, folder: Path, strategy: str, micro_batch: int, *overrides: str
) -> dict[str, int]:
    """The number of collectives of each kind in one step."""
    from torch.profiler import ProfilerActivity, profile

    from trainfleet.training.trainer.step import Stepper
    from trainfleet.training.workloads import make_workload

    recipe = tiny(f"strategy={strategy}", f"batch.micro_batch={micro_batch}", *overrides)
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    context = RunContext(folder, rank, world_size, rank, world_size, cache=cache)
    workload = make_workload(recipe, cache)
    made = make_strategy(recipe, workload.build_model, context)
    stepper = Stepper(recipe, context, workload, made)
    made.warm_up(stepper.warmup_pass)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        stepper.compute_gradients(list(range(16)))
    counted: dict[str, int] = {}
    for event in seen.key_averages():
        if event.key.startswith(("gloo:", "c10d::")):
            counted[event.key] = event.count
    return counted


@pytest.mark.deep
def test_gradients_are_reduced_once_per_step_with_any_number_of_micro_batches(
    tmp_path: Path, tiny: Make, cache: Path
) -> None:
    def check(_: int) -> dict[str, Any]:
        cases = {
            "ddp": ("ddp", 8),
            "ddp, 4": ("ddp", 2),
            "fsdp": ("fsdp", 8),
            "fsdp, 4": ("fsdp", 2),
            "fsdp, 4, gathered once": ("fsdp", 2, "sharding.reshard=false"),
            "fsdp, every": ("fsdp", 2, "sharding.reduce_every=true"),
        }
        return {
            name: count_collectives(tiny, cache, tmp_path, *overrides) for name, overrides in cases.items()
        }  # type: ignore[arg-type]

    counted = on_ranks(check, 2, tmp_path)[0]
    assert counted["ddp"]["gloo:all_reduce"] > 1  # one of them is that of the loss
    assert counted["ddp, 4"]["gloo:all_reduce"] == counted["ddp"]["gloo:all_reduce"]
    scattered = {
        name: sum(count for key, count in row.items() if key.startswith("c10d::_reduce_scatter"))
        for name, row in counted.items()
        if "fsdp" in name
    }
    assert scattered["fsdp"] > 0
    assert scattered["fsdp, 4"] == scattered["fsdp"]
    gathered = {
        name: sum(count for key, count in row.items() if key.startswith("c10d::_allgather"))
        for name, row in counted.items()
        if "fsdp" in name
    }
    assert gathered["fsdp, 4, gathered once"] < gathered["fsdp"] < gathered["fsdp, 4"]
    assert scattered["fsdp, every"] == 4 * scattered["fsdp"]


def test_the_faster_rank_waits_for_the_gradients_of_the_slower_one(
    tmp_path: Path, tiny: Make, cache: Path
) -> None:
    recipe = tiny("strategy=ddp")

    def check(rank: int) -> float | None:
        strategy = make_strategy(
            recipe, lambda: nn.Linear(64, 64), RunContext(tmp_path, rank, 2, rank, 2, cache=cache)
        )
        for _ in range(12):
            if rank == 1:
                _busy(0.02)
            strategy.parallel(torch.ones(4, 64)).sum().backward()
        return strategy.grad_sync_seconds()

    early, late = on_ranks(check, 2, tmp_path)
    assert early > late >= 0.0


def _busy(seconds: float) -> None:
    """Compute for `seconds`. A rank is delayed by work, because tests do not sleep."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        torch.ones(64, 64) @ torch.ones(64, 64)


def test_a_single_rank_does_not_wait(tmp_path: Path, tiny: Make, cache: Path) -> None:
    made = make_strategy(
        tiny("strategy=ddp"), lambda: nn.Linear(4, 4), RunContext(tmp_path, 0, 1, 0, 1, cache=cache)
    )
    assert made.grad_sync_seconds() is None


def test_ranks_that_cannot_be_divided_into_replicas_are_rejected(
    tmp_path: Path, tiny: Make, cache: Path
) -> None:
    recipe = tiny(
        "strategy=hsdp", "sharding.replicas=2", "scaling.workers=2"
    )  # and then only one rank starts
    with single_process_group(), pytest.raises(InputError, match="replicas"):
        make_strategy(recipe, lambda: nn.Linear(2, 2), RunContext(tmp_path, cache=cache))
