"""A checkpoint of any number of ranks and any strategy goes on with any other: the same samples, the same losses."""

from __future__ import annotations

import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.kept import tensors_of
from tests.training.test_loop import StopAfter, losses, results, strike
from training.checkpoint import step_name
from training.context import RunResult
from training.recipe import Recipe

Make = Callable[..., Recipe]
Run = Callable[..., RunResult]
RunRanks = Callable[..., list[int]]

LEGS = {
    "2 to 1 to 3 to 2 ranks": [("ddp", 2), ("ddp", 1), ("ddp", 3), ("ddp", 2)],
    "ddp to fsdp to hsdp to ddp": [("ddp", 2), ("fsdp", 2), ("hsdp", 2), ("ddp", 1)],
    "fsdp on 2 to 1 to 3 to 2 ranks": [("fsdp", 2), ("fsdp", 1), ("fsdp", 3), ("fsdp", 2)],
}
SAMPLED = ("2 to 1 to 3 to 2 ranks", "ddp to fsdp to hsdp to ddp")


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in SAMPLED else pytest.mark.deep) for name in LEGS])
def test_ranks_and_strategies_change_and_the_losses_do_not(tmp_path: Path, tiny: Make, run: Run, run_ranks: RunRanks, name: str) -> None:
    run(tiny(), tmp_path / "whole")
    legs = LEGS[name]
    for number, (strategy, ranks) in enumerate(legs):
        recipe = tiny(f"strategy={strategy}")
        end = {} if number == len(legs) - 1 else {"should_stop": StopAfter(3)}
        assert run_ranks(recipe, tmp_path / "moved", ranks, **end) == [0] * ranks
    assert len(losses(tmp_path / "moved")) == 12
    assert losses(tmp_path / "moved") == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)
    whole, moved = (tensors_of(tmp_path / each / "checkpoints" / step_name(12)) for each in ("whole", "moved"))
    assert whole.keys() == moved.keys()
    for key, value in whole.items():
        torch.testing.assert_close(moved[key], value, rtol=1e-3, atol=1e-4)


def test_a_checkpoint_is_equal_to_the_bit_whichever_strategy_takes_it_on(tmp_path: Path, tiny: Make, run_ranks: RunRanks) -> None:
    """Read by one strategy and written again by it at once: resharding moves numbers and never changes them."""
    first = tiny("scaling.workers=2", "steps=3", "checkpoint.every=3", "checkpoint.keep_last=9")
    assert run_ranks(first, tmp_path, 2) == [0, 0]
    for step, (strategy, ranks) in enumerate([("fsdp", 2), ("fsdp", 3), ("hsdp", 2), ("ddp", 1)], start=4):
        recipe = tiny(f"strategy={strategy}", f"steps={step}", "checkpoint.every=1", "checkpoint.keep_last=9", "optimizer.lr=1e-30")
        assert run_ranks(recipe, tmp_path, ranks, allow_changes=("steps", "optimizer.lr", "checkpoint.every")) == [0] * ranks
    kept = [tensors_of(tmp_path / "checkpoints" / step_name(step)) for step in range(3, 8)]
    for before, after in pairwise(kept):
        for key, value in before.items():
            if key.startswith("model."):
                assert torch.equal(after[key], value), key


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("before-marker:8", id="before the marker"),
        *(pytest.param(point, marks=pytest.mark.deep) for point in ("in-step:7", "staged:4", "partly-written:8", "in-save:8", "in-purge:2")),
    ],
)
@pytest.mark.parametrize("strategy", [pytest.param("ddp", marks=pytest.mark.deep), "fsdp"])
def test_two_ranks_killed_at_any_point_end_equal_to_the_bit(tmp_path: Path, tiny: Make, run_ranks: RunRanks, strategy: str, point: str) -> None:
    recipe = tiny("scaling.workers=2", f"strategy={strategy}", "workload.model.dropout=0.1", "log.every=3", "checkpoint.every=2")
    assert run_ranks(recipe, tmp_path / "whole", 2) == [0, 0]

    def before(_: int) -> Any:
        strike(point)

    assert -signal.SIGKILL in run_ranks(recipe, tmp_path / "killed", 2, before=before)
    assert run_ranks(recipe, tmp_path / "killed", 2) == [0, 0]
    assert results(tmp_path / "killed") == results(tmp_path / "whole")
    whole, killed = (tensors_of(tmp_path / each / "checkpoints" / step_name(12)) for each in ("whole", "killed"))
    assert all(torch.equal(killed[key], value) for key, value in whole.items())
