"""Loading a trained model: the right checkpoint, unchanged weights, and a clear error if there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from trainfleet.errors import InputError
from trainfleet.training.data import spread
from trainfleet.training.inference.loaded import load_run
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.context import RunResult

Make = Callable[..., Recipe]
Run = Callable[..., RunResult]


@pytest.fixture
def trained(tmp_path: Path, tiny: Make, run: Run) -> RunResult:
    return run(tiny("checkpoint.keep_last=3"), tmp_path / "run")


def test_the_latest_checkpoint_has_the_final_metrics_of_the_run(trained: RunResult, cache: Path) -> None:
    opened = load_run(str(trained.run_dir), "newest", cache=cache)
    assert (opened.step, opened.path) == (12, trained.checkpoint)
    assert opened.metrics["validation/loss"] == trained.metrics["validation/loss"]
    seen = spread(opened.workload.size("validation"), opened.recipe.validation.samples)
    batch = opened.workload.batch("validation", seen)
    with torch.no_grad():
        output = opened.workload.forward_loss(opened.model, batch)
    assert float(output.loss) / output.num_targets == pytest.approx(
        trained.metrics["validation/loss"], rel=1e-5
    )


def test_a_step_the_best_and_a_checkpoint_path_can_be_selected(trained: RunResult, cache: Path) -> None:
    assert load_run(str(trained.run_dir), "step-8", cache=cache).step == 8
    best = load_run(str(trained.run_dir), cache=cache)
    assert best.step == 12
    assert load_run(best.path, cache=cache).step == best.step


def test_a_missing_checkpoint_is_reported(trained: RunResult, tmp_path: Path, cache: Path) -> None:
    with pytest.raises(InputError, match="step-00000004, step-00000008, step-00000012"):
        load_run(str(trained.run_dir), "step-5", cache=cache)
    with pytest.raises(InputError, match="holds no checkpoints"):
        load_run(str(tmp_path), cache=cache)
    with pytest.raises(InputError, match="is not a step"):
        load_run(str(trained.run_dir), "step-last", cache=cache)
