"""Trains a recipe with Lightning Fabric: your own loop around Trainfleet's model, samples and loss.

    python examples/fabric_lm.py [RECIPE] [key=value ...]

Fabric places the model, communicates and chooses the precision. The sample order is the step loop's, so the
losses equal those of `trainfleet train`. Fabric has no exact resume, controllers, guards or report.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from lightning_fabric import Fabric

from trainfleet.training.data import make_order
from trainfleet.training.data.dealing import deal
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.context import default_cache
from trainfleet.training.trainer.optimizer import learning_rate, make_optimizer, set_learning_rate
from trainfleet.training.workloads import make_workload


def train(recipe: Recipe, folder: Path, cache: Path) -> list[float]:
    """Train, save the weights in FOLDER/weights.pt, and return each step's loss (mean over all processes)."""
    fabric = Fabric(
        accelerator="cuda" if recipe.scaling.use_gpu else "cpu",
        devices=recipe.scaling.workers,
        strategy="ddp" if recipe.scaling.workers > 1 else "auto",
        precision="bf16-mixed" if recipe.precision == "bf16" else "32-true",
    )
    fabric.launch()
    workload = make_workload(recipe, cache)
    torch.manual_seed(recipe.seed)
    plain = workload.build_model()
    model, optimizer = fabric.setup(plain, make_optimizer(recipe.optimizer, plain, recipe.sharding.blocks))
    order, size = make_order(recipe, workload), recipe.batch.global_batch
    steps, losses = recipe.total_steps(order.size), []
    for step in range(steps):
        samples = order.indices(step * size, size)
        factor = fabric.world_size / workload.num_targets(
            "train", samples
        )  # Fabric averages gradients over processes
        set_learning_rate(optimizer.optimizer, learning_rate(recipe.optimizer, step, steps))
        rank = (fabric.global_rank, fabric.world_size)
        turns = deal(samples, recipe.batch.micro_batch, *rank, by_block=order.by_block)
        total = torch.zeros((), device=fabric.device)
        for turn, indices in enumerate(turns):
            batch = fabric.to_device(workload.batch("train", indices))
            with fabric.no_backward_sync(model, enabled=turn < len(turns) - 1):
                loss = workload.forward_loss(model, batch).loss * factor
                fabric.backward(loss)
            total += loss.detach()
        fabric.clip_gradients(model, optimizer, max_norm=recipe.optimizer.grad_clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(fabric.all_reduce(total, reduce_op="mean")))
        if (step + 1) % recipe.log.every == 0:
            fabric.print(f"step {step + 1}/{steps}  loss {losses[-1]:.4f}")
    if fabric.global_rank == 0:
        torch.save(plain.state_dict(), folder / "weights.pt")
    return losses


def main(arguments: Sequence[str]) -> None:
    """Train the recipe that the command line names, `lm-tiny` by default."""
    recipe = load_recipe(arguments[0] if arguments else "lm-tiny", arguments[1:])
    folder = recipe.run_dir()
    folder.mkdir(parents=True, exist_ok=True)
    train(recipe, folder, default_cache())


if __name__ == "__main__":
    main(sys.argv[1:])
