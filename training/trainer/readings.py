"""What the loop learns from each step: loss, gradient norm and the flags of all ranks, read late.

A read waits until the device has finished the step, and then the device waits for the launches of the next.
On a GPU the loop therefore reads the values of a step while later steps are queued. Every rank reads those of
the same step, so that all ranks decide alike.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch

from trainfleet.training.recipe.schema import Recipe

RUN_AHEAD = 2
"""Steps by which the loop may be ahead of a GPU. With fewer, the GPU may idle; with more, errors are noticed
later.
"""


@dataclass(frozen=True)
class Reading:
    """The values of a step, equal on all ranks.

    Attributes:
        step: its number, from 1.
        loss: mean over the global batch.
        grad_norm: of the whole gradient before clipping.
        stop: whether any rank was asked to stop.
        check_preemption: whether any rank wants all ranks to look for a preemption notice.
        writing: whether any rank was still writing a checkpoint.
        save_every: rank 0's steps between checkpoints, if it chooses them.
    """

    step: int
    loss: float
    grad_norm: float
    stop: bool
    check_preemption: bool
    writing: bool
    save_every: int


class Readings:
    """The values of steps on their way from the device. Collective as far as its reader's decisions are."""

    def __init__(self, run_ahead: int) -> None:
        self.run_ahead = run_ahead
        self._coming: deque[tuple[int, torch.Tensor, Any]] = deque()

    def add(self, step: int, values: torch.Tensor) -> None:
        """Start to read a step's values: a vector in the order of `Reading`'s attributes after `step`."""
        copied = None
        if values.is_cuda:
            host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            values = host.copy_(values, non_blocking=True)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch is partly typed
            copied.record()
        self._coming.append((step, values, copied))

    def take(self, everything: bool = False) -> list[Reading]:
        """The values of the steps that are more than `run_ahead` steps old, or of all steps so far."""
        found = []
        while len(self._coming) > (0 if everything else self.run_ahead):
            step, values, copied = self._coming.popleft()
            if copied is not None:
                copied.synchronize()
            loss, grad_norm, *flags, save_every = values.numpy().tolist()
            stop, check, writing = (flag > 0 for flag in flags)
            found.append(Reading(step, loss, grad_norm, stop, check, writing, int(save_every)))
        return found


def run_ahead(recipe: Recipe, device: str, collections: bool) -> int:
    """How many steps a run may be ahead of its device.

    None where a decision about the next step needs this one's loss, or on a CPU, which computes at once.

    Args:
        recipe: guards and controllers that compare losses need each at once.
        device: of this rank.
        collections: whether torchmetrics see each training batch. Neither they nor Muon can leave out a step
            that the device has skipped.
    """
    guards, control = recipe.guards, recipe.controllers
    cannot_skip = collections or recipe.optimizer.name == "muon"
    at_once = guards.spike != "off" or guards.nan == "roll_back" or (guards.nan == "skip" and cannot_skip)
    at_once = at_once or control.rate.kind == "backoff" or control.batch.kind != "off"
    return 0 if at_once or not device.startswith("cuda") else RUN_AHEAD
