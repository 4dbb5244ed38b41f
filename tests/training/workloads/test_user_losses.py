"""Several losses and a gradient of the user's own: the example of docs/add-a-workload.md on two ranks has the
losses and gradients of a loop with a `backward` for each loss.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by

from tests.training.training_runs import metric_values, train_all
from tests.training.workloads.test_user_workload import blocks
from trainfleet.training.data import make_order
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.workloads import make_workload

OVERRIDES = (
    *("workload={name: 'adversary:Adversary', width: 8, points: 200, penalty: 0.5}", "scaling.workers=1"),
    *("steps=6", "batch.global_batch=9", "batch.micro_batch=3", "log.every=1", "log.tensorboard=false"),
    *("optimizer.schedule=constant", "optimizer.warmup=0", "optimizer.grad_clip=1e9", "order.shuffle=full"),
)


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recipe]:
    example = next(each for each in blocks("python") if "class Adversary" in each)
    (tmp_path / "spirals.py").write_text(blocks("python")[0])
    (tmp_path / "adversary.py").write_text(example)
    (tmp_path / "spirals.yaml").write_text(blocks("yaml")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield load_recipe("spirals.yaml", list(OVERRIDES))
    for name in ("spirals", "adversary"):
        sys.modules.pop(name, None)


def by_hand(recipe: Recipe, workload: Any) -> tuple[list[float], list[float]]:
    """Losses and gradient norms of a loop over whole global batches, with a `backward` for each loss."""
    torch.manual_seed(recipe.seed)
    model = workload.build_model()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.optimizer.lr, betas=recipe.optimizer.betas, weight_decay=0.0
    )
    order, size, losses, norms = make_order(recipe, workload), recipe.batch.global_batch, [], []
    for step in range(recipe.steps or 0):
        batch = workload.batch("train", order.indices(step * size, size))
        points = batch["points"].requires_grad_()
        features = model.trunk(points)
        spiral_loss = F.cross_entropy(model.spiral(features), batch["spiral"])
        side_loss = F.cross_entropy(model.side(features), (points[:, 0] > 0).long())
        (slope,) = torch.autograd.grad(spiral_loss * size, points, create_graph=True)
        penalty = recipe.workload.penalty * slope.square().sum() / size  # type: ignore[attr-defined]  # of the page
        optimizer.zero_grad()
        side_loss.backward(retain_graph=True)
        for each in model.trunk.parameters():
            each.grad.neg_()
        spiral_loss.backward(retain_graph=True)
        penalty.backward()
        losses.append(float((spiral_loss + side_loss + penalty).detach()))
        norms.append(float(torch.nn.utils.get_total_norm([each.grad for each in model.parameters()])))
        optimizer.step()
    return losses, norms


@pytest.mark.deep
def test_two_ranks_have_the_losses_and_gradients_of_a_loop_with_several_backward_passes(
    recipe: Recipe, tmp_path: Path
) -> None:
    rows = train_all({"run": recipe}, tmp_path / "runs", tmp_path / "cache", 2)["run"]
    losses, norms = by_hand(recipe, make_workload(recipe, tmp_path / "cache"))
    assert metric_values(rows, "loss") == pytest.approx(losses, rel=1e-5)
    assert metric_values(rows, "grad_norm") == pytest.approx(norms, rel=1e-5)
