"""Buffers, such as BatchNorm's running means: every rank has its own, and a checkpoint has those of rank 0."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.training.training_runs import on_ranks
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.context import RunContext
from trainfleet.training.trainer.optimizer import make_optimizer
from trainfleet.training.trainer.strategies import make_strategy


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_a_checkpoint_has_the_buffers_of_rank_0_on_every_rank(
    tiny: Callable[..., Recipe], tmp_path: Path, name: str
) -> None:
    recipe = tiny(f"strategy={name}", "sharding.blocks=[BatchNorm1d]")

    def check(rank: int) -> list[float]:
        strategy = make_strategy(
            recipe, lambda: nn.Sequential(nn.BatchNorm1d(4)), RunContext(tmp_path, rank, 2)
        )
        with torch.no_grad():
            for each in strategy.module.buffers():
                each.fill_(rank + 1)
        state = strategy.state_dict(make_optimizer(recipe.optimizer, strategy.module))["model"]
        return [float(state[f"0.{buffer}"].sum()) for buffer in ("running_mean", "num_batches_tracked")]

    assert on_ranks(check, 2, tmp_path) == [[4.0, 1.0]] * 2


def test_buffers_of_every_type_and_layout_are_those_of_rank_0(
    tiny: Callable[..., Recipe], tmp_path: Path
) -> None:
    recipe = tiny("strategy=fsdp", "sharding.blocks=[Linear]")
    types = ("bool", "int16", "int64", "float8_e4m3fn", "bfloat16", "float64", "complex64")

    def check(rank: int) -> list[float]:
        module = nn.Sequential(nn.Linear(2, 2))
        for name in types:
            module.register_buffer(f"of_{name}", torch.full((2, 3), 1.0 - rank).to(getattr(torch, name)))
        module.register_buffer("transposed", torch.full((2, 3), 1.0 - rank).t())
        module.register_buffer("scalar", torch.tensor(1 - rank))
        module.register_buffer("empty", torch.ones(0))
        module.register_buffer("expanded", torch.ones(1).expand(3))
        strategy = make_strategy(recipe, lambda: module, RunContext(tmp_path, rank, 2))
        strategy.sync_buffers()
        return [float(each.to(torch.complex64).real.sum()) for each in module.buffers()]

    assert on_ranks(check, 2, tmp_path) == [[6.0] * len(types) + [6.0, 1.0, 0.0, 3.0]] * 2
