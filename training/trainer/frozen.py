"""Weights that are not trained: checkpoints leave them out if they are read from a source with a digest.

A checkpoint then has the source's digest, and a run or program that loads it reads the same source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainfleet.errors import InputError, Problem
from trainfleet.training.runtime.process_group import gather, on_first
from trainfleet.training.workloads import Workload, missing_hooks

if TYPE_CHECKING:
    from torch import nn

    from trainfleet.training.trainer.context import RunContext

KEY = "frozen_source"
"""The digest's place among a checkpoint's shared values. Absent or None: the checkpoint has every weight."""


def frozen_names(module: nn.Module) -> frozenset[str]:
    """The parameters that are not trained, by every name that a state has for them."""
    named = module.named_parameters(remove_duplicate=False)
    return frozenset(name for name, parameter in named if not parameter.requires_grad)


def agreed_source(workload: Workload, module: nn.Module, context: RunContext) -> str | None:
    """What the frozen weights are read from, the same on every machine; None: checkpoints must have them.

    Collective. One rank of each machine reads the files.

    Raises:
        InputError: machines have read different files.
    """
    if missing_hooks(workload, "frozen_source") or not frozen_names(module):
        return None
    first = context.local_rank == 0
    found = gather((first, workload.frozen_source() if first else None), context.rank, context.world_size)

    def agree() -> str | None:
        digests: set[str | None] = {digest for of_first, digest in found if of_first}
        if len(digests) > 1:
            what = f"{len(digests)} different copies of the pretrained model are on the machines of this run"
            fix = "copy one of them to all machines, or name a revision that all of them download"
            raise InputError("the machines have different models", [_problem(what, fix)])
        return digests.pop()

    source: str | None = on_first(agree, context.rank)
    return source


def require_source(saved: str | None, found: str | None, checkpoint: str) -> None:
    """Require that a checkpoint without its frozen weights belongs to the source that was read.

    Raises:
        InputError: the source has changed since.
    """
    if saved is None or saved == found:
        return
    what = f"{checkpoint} was trained on other files of the pretrained model than are read now"
    fix = "restore these files, or name a copy of them and use --allow-change workload.model.pretrained"
    raise InputError("the pretrained model changed since the training", [_problem(what, fix)])


def _problem(what: str, fix: str) -> Problem:
    return Problem("workload.model.pretrained", what, fix)
