"""What to change in a recipe that does not fit into the memory of its devices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.context import RunContext
from trainfleet.training.trainer.controllers import Controllers
from trainfleet.training.trainer.controllers.batch import micro_batch_sizes


class DeviceMemoryError(TrainfleetError):
    """Raised when the first step of a start does not fit into a device's memory: a restart cannot cure it."""


@contextmanager
def explain_memory(recipe: Recipe, context: RunContext, sizes: Controllers, first: bool) -> Iterator[None]:
    """Context of a step. Suggests another recipe if not even the `first` step of a start fits.

    An error in a later step is raised as it is, because a restart may help: the size did fit.

    Raises:
        DeviceMemoryError: the first step does not fit.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        if not first:
            raise
        what = f"{sizes.micro_batch} samples per pass do not fit into the memory of {context.device}"
        cause = (str(error).splitlines() or ["no memory left"])[0]
        fix = _smaller(recipe, sizes.micro_batch, sizes.global_batch, context.world_size)
        problems = [Problem("batch.micro_batch", what, fix), Problem(context.device, cause)]
        raise DeviceMemoryError("out of device memory", problems) from error


def _smaller(recipe: Recipe, micro_batch: int, global_batch: int, world_size: int) -> str:
    """The largest size of at most half that divides each rank's share, or other ways to use less memory."""
    sizes = [size for size in micro_batch_sizes(global_batch, world_size) if 2 * size <= micro_batch]
    resume = "then run the same command again: it may change when a run resumes"
    if micro_batch > 1:
        return f"batch.micro_batch={max(sizes, default=max(1, micro_batch // 2))}, {resume}"
    ways = ["activation_checkpointing=full"] if recipe.activation_checkpointing != "full" else []
    ways += ["strategy=fsdp"] if recipe.strategy == "ddp" else ["sharding.cpu_offload=true"]
    return f"{' or '.join(ways)}, {resume}"
