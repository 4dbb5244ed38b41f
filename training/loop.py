"""The step loop: from a recipe and a place in a process group to a trained model. Knows torch.distributed and not Ray.

Used by every launcher. The process group, where there is one, is already up (`training.distributed`).
"""

from __future__ import annotations

from training.context import RunContext, RunResult
from training.recipe import Recipe

__all__ = ["RunContext", "RunResult", "train"]


def train(recipe: Recipe, context: RunContext) -> RunResult:
    """Train from the newest whole checkpoint in the run's folder, or from the start.

    Raises:
        InputError: the recipe or the data differs from the checkpoint's, or the folder cannot be written.
        TrainfleetError: the loss is no longer a number; the last good checkpoint is named.
    """
    raise TypeError(f"no loop yet for {recipe.name} in {context.run_dir}")
