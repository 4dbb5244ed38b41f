"""Initial weights that nobody needs: those of a run that resumes from a checkpoint.

With `sharding.meta_init`, every rank draws or reads every weight of the model. A run that resumes skips
that, so it must load all of them, or it ends.
"""

from __future__ import annotations

from collections.abc import Collection

from trainfleet.errors import Problem
from trainfleet.training.checkpoint import CheckpointError
from trainfleet.training.checkpoint.files import committed
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.storage import RunStorage
from trainfleet.training.runtime.process_group import on_first
from trainfleet.training.trainer.strategies import Strategy


def will_resume(recipe: Recipe, storage: RunStorage, rank: int) -> bool:
    """Whether the run has a checkpoint, with `meta_init: true`; without it, initial weights cost too little
    to ask. With auto, they are those of files. Collective.

    Raises:
        StoreError: the store does not respond.
    """
    if recipe.meta_init is not True:
        return False
    with storage.patient():
        return bool(on_first(lambda: bool(committed(storage.checkpoints)), rank))


def require_weights(strategy: Strategy, loaded: Collection[str], place: str) -> None:
    """Require that every weight without an initial value has been loaded.

    Args:
        strategy: has the model.
        loaded: names of the loaded weights.
        place: the checkpoint that was loaded, or the folder in which there is none any more.

    Raises:
        CheckpointError: one has not.
    """
    missing = sorted(strategy.not_drawn - set(loaded))
    if missing:
        what = f"{place} does not have {', '.join(missing[:3])}" + (
            f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        )
        fix = "restore the checkpoint from which the run resumes, or use sharding.meta_init=false"
        raise CheckpointError("the model has no weights", [Problem(place, what, fix)])
    strategy.not_drawn = frozenset()
