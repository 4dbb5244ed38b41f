"""Optimizers, schedules, and the settings of torch that a recipe selects."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.training.checkpoint_reader import tensors_of
from tests.training.training_runs import StopAfter, metric_values, rows_of
from trainfleet.errors import InputError
from trainfleet.training.checkpoint import step_name
from trainfleet.training.recipe.schema import Optimizer, Recipe
from trainfleet.training.trainer.context import RunResult
from trainfleet.training.trainer.optimizer import learning_rate, make_optimizer, set_learning_rate
from trainfleet.training.trainer.state import torch_settings
from trainfleet.training.workloads.lm.gpt import Gpt
from trainfleet.training.workloads.lm.settings import GptSettings

Make = Callable[..., Recipe]
Run = Callable[..., RunResult]
MUON = Optimizer(name="muon", lr=1e-2, betas=(0.8, 0.9), momentum=0.9, weight_decay=0.05)


def gpt() -> Gpt:
    torch.manual_seed(0)
    return Gpt(GptSettings(layers=2, width=16, heads=2, context=8), 40)


def set_gradients(model: nn.Module, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    for each in model.parameters():
        each.grad = torch.randn(each.shape, generator=random)


def test_muon_updates_the_matrices_of_the_blocks_and_adamw_all_others() -> None:
    model = gpt()
    other = copy.deepcopy(model)
    optimizer = make_optimizer(MUON, model)
    matrices, rest, vectors = [], [other.embedding.weight], []
    for name, each in other.named_parameters():
        if each.ndim == 2 and name.startswith("blocks."):
            matrices.append(each)
        elif each.ndim == 1:
            vectors.append(each)
    assert len(matrices) == 2 * 4
    muon = torch.optim.Muon(matrices, 1e-2, 0.05, 0.9, adjust_lr_fn="match_rms_adamw")
    groups = [{"params": rest, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=1e-2, betas=(0.8, 0.9), eps=1e-8, fused=True)
    for step in range(3):
        for each in (model, other):
            set_gradients(each, step)
        for each in (optimizer, muon, adamw):
            set_learning_rate(each, 1e-2 / (step + 1))
            each.step()
    for (name, mine), right in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, right), name


def test_muon_without_blocks_names_what_to_change() -> None:
    with pytest.raises(InputError) as caught:
        make_optimizer(MUON, nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)))
    (problem,) = caught.value.problems
    assert (problem.where, problem.fix) == (
        "optimizer.name",
        "optimizer.name=adamw, or name its blocks in sharding.blocks",
    )


def test_a_run_with_muon_learns_and_resumes_with_the_same_bits(tmp_path: Path, tiny: Make, run: Run) -> None:
    recipe = tiny("optimizer.name=muon", "workload.model.layers=2", "workload.model.dropout=0.1")
    run(recipe, tmp_path / "whole")
    run(recipe, tmp_path / "cut", should_stop=StopAfter(5))
    run(recipe, tmp_path / "cut")
    whole, cut = (metric_values(rows_of(tmp_path / name), "loss") for name in ("whole", "cut"))
    assert cut == whole
    assert whole[-1] < whole[0] - 1
    tensors, others = (
        tensors_of(tmp_path / each / "checkpoints" / step_name(12)) for each in ("whole", "cut")
    )
    assert any("momentum_buffer" in name for name in tensors)
    assert any("exp_avg_sq" in name for name in tensors)
    assert tensors.keys() == others.keys()
    for name, value in tensors.items():
        assert torch.equal(value, others[name]), name


def test_wsd_is_constant_and_then_falls_linearly() -> None:
    settings = Optimizer(schedule="wsd", lr=1.0, warmup=4, decay=0.2, min_ratio=0.1)
    rates = [learning_rate(settings, step, 100) for step in range(100)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert set(rates[4:80]) == {1.0}
    assert rates[-1] == pytest.approx(0.1)
    falls = [before - after for before, after in itertools.pairwise(rates[79:])]
    assert falls == pytest.approx([0.9 / 20] * 20)


def test_a_longer_run_with_wsd_has_the_same_rates_until_its_decay() -> None:
    settings = Optimizer(schedule="wsd", lr=1.0)
    assert [learning_rate(settings, step, 100) for step in range(90)] == [
        learning_rate(settings, step, 200) for step in range(90)
    ]
    assert learning_rate(settings, 0, 1) == pytest.approx(settings.min_ratio)


@pytest.mark.parametrize(
    ("value", "device", "enabled"),
    [
        ("auto", "cpu", True),
        ("auto", "cuda:0", False),
        ("true", "cuda:0", True),
        ("true", "cpu", True),
        ("false", "cpu", False),
    ],
)
def test_operations_are_deterministic_where_the_recipe_says(
    tiny: Make, value: str, device: str, enabled: bool
) -> None:
    with torch_settings(tiny(f"deterministic={value}"), device):
        assert torch.are_deterministic_algorithms_enabled() == enabled
    assert not torch.are_deterministic_algorithms_enabled()
