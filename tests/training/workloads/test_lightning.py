"""A LightningModule in the step loop: the losses of a hand-written loop, resume, guards and metrics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by
from torch import nn

from tests.training.training_runs import metric_values, rows_of, train_all
from tests.training.workloads.lightning_modules import SIZES, Lit, Plain, Points, samples
from trainfleet.training.data import make_order
from trainfleet.training.inference.loaded import load_run
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.report import read_run_summary, write_report
from trainfleet.training.trainer.context import RunResult
from trainfleet.training.trainer.guards import NotANumberError

RECIPE = """
name: points
workload: {name: "tests.training.workloads.lightning_modules:Points"}
optimizer: {lr: 1.0e-2, weight_decay: 0.0, schedule: constant, grad_clip: 1.0e+9}
batch: {global_batch: 9, micro_batch: 3}
steps: 8
validation: {every: 4}
checkpoint: {every: 4, metric: validation/val_acc, mode: max}
log: {every: 1, tensorboard: false}
"""


@pytest.fixture
def points(tmp_path: Path) -> Callable[..., Recipe]:
    """The recipe of `Points`, with overrides."""
    (tmp_path / "points.yaml").write_text(RECIPE)
    return lambda *overrides: load_recipe(str(tmp_path / "points.yaml"), list(overrides))


def by_hand(recipe: Recipe, module: nn.Module, cache: Path) -> tuple[list[float], list[float]]:
    """Losses and accuracies of a loop over whole global batches, in one process."""
    order = make_order(recipe, Points(recipe.workload, cache))
    settings = recipe.optimizer
    optimizer = torch.optim.AdamW(
        module.parameters(), lr=settings.lr, betas=settings.betas, eps=settings.eps, weight_decay=0.0
    )
    size, losses, accuracies = recipe.batch.global_batch, [], []
    everything, sides = samples("train").tensors
    for step in range(recipe.steps or 0):
        indices = order.indices(step * size, size)
        logits = module(everything[indices])
        loss = F.cross_entropy(logits, sides[indices])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        accuracies.append(float((logits.argmax(dim=-1) == sides[indices]).float().mean()))
    return losses, accuracies


@pytest.mark.deep
def test_two_ranks_have_the_losses_and_metrics_of_a_hand_written_loop(
    points: Callable[..., Recipe], tmp_path: Path
) -> None:
    recipes = {name: points(f"workload.module={name}") for name in ("lit", "plain")}
    # Two ranks share 9 samples in micro batches of 2, 2, 2 and 3.
    found = train_all(recipes, tmp_path / "runs", tmp_path / "cache", 2)
    for name, recipe in recipes.items():
        torch.manual_seed(recipe.seed)
        module = Lit() if name == "lit" else Plain()
        losses, accuracies = by_hand(recipe, module, tmp_path / "cache")
        assert metric_values(found[name], "loss") == pytest.approx(losses, rel=1e-5)
        assert metric_values(found[name], "train_acc") == pytest.approx(accuracies, rel=1e-6)
        inputs, sides = samples("validation").tensors
        logits = module(inputs)
        validation = next(row for row in found[name] if row["kind"] == "validation" and row["step"] == 8)
        assert validation["validation/loss"] == pytest.approx(
            float(F.cross_entropy(logits, sides).detach()), rel=1e-4
        )
        accuracy = float((logits.argmax(dim=-1) == sides).float().mean())
        assert validation["validation/val_acc"] == pytest.approx(accuracy, rel=1e-6)
        tested = next(row for row in found[name] if row["kind"] == "test")
        inputs, sides = samples("test").tensors
        expected = float(F.cross_entropy(module(inputs), sides).detach())
        assert tested == {"kind": "test", "step": 8, "test/loss": pytest.approx(expected, rel=1e-4)}


@pytest.mark.deep
def test_a_stopped_run_resumes_bit_for_bit_with_its_buffers(
    points: Callable[..., Recipe], tmp_path: Path
) -> None:
    noisy = ("workload.module=noisy", "log.every=3", "steps=9")
    recipes = {strategy: points(*noisy, f"strategy={strategy}") for strategy in ("ddp", "fsdp")}
    whole = train_all(recipes, tmp_path / "whole", tmp_path / "cache", 2)
    parts = train_all(recipes, tmp_path / "parts", tmp_path / "cache", 2, stop_first=5)
    for strategy in recipes:
        for name in ("loss", "train_acc", "grad_norm"):
            assert metric_values(parts[strategy], name) == metric_values(whole[strategy], name), name
        for name in ("validation/loss", "validation/val_acc"):
            found, expected = (metric_values(each[strategy], name, "validation") for each in (parts, whole))
            assert found == expected, (strategy, name)
        states = [
            load_run(str(tmp_path / each / strategy), "newest", cache=tmp_path / "cache").model.state_dict()
            for each in ("whole", "parts")
        ]
        assert states[0]["lightning_module.layers.1.running_mean"].abs().sum() > 0
        assert states[0].keys() == states[1].keys()
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_guards_reject_a_step_with_nan(
    points: Callable[..., Recipe], run: Callable[..., RunResult], tmp_path: Path
) -> None:
    recipe = points("workload.broken=7", "guards.nan=skip", "steps=6")
    result = run(recipe, tmp_path / "run")
    rows = rows_of(tmp_path / "run")
    assert [row["what"] for row in rows if row["kind"] == "event"].count("skip") == 1
    assert result.status == "finished"
    assert all(map(torch.isfinite, [torch.tensor(value) for value in result.metrics.values()]))
    with pytest.raises(NotANumberError, match="NaN"):
        run(points("workload.broken=7", "guards.nan=stop", "steps=6"), tmp_path / "stopped")


def test_logged_values_are_weighted_by_samples_and_reach_the_report(
    points: Callable[..., Recipe], run: Callable[..., RunResult], tmp_path: Path
) -> None:
    result = run(points(), tmp_path / "run")
    # `val_rows` is the size of each batch: 13 samples in micro batches of 3.
    assert SIZES["validation"] == 13
    assert result.metrics["validation/val_rows"] == pytest.approx((4 * 3 * 3 + 1) / 13)
    assert "validation/val_loss" not in result.metrics  # it is the loss
    summary = read_run_summary(str(tmp_path / "run"))
    assert [figure.name for figure in summary.measured()] == ["val_acc", "loss", "val_rows"]
    write_report(tmp_path / "run", tmp_path / "report.html")
    assert "val rows" in (tmp_path / "report.html").read_text()
