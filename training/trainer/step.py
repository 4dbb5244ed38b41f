"""One optimizer step's gradients: this rank's share of the global batch, forward and backward, and what all
ranks must know of it.

Used by `trainfleet.training.trainer.loop`. Easy to get wrong: a loss is a sum over targets, divided once by
the targets of the whole global batch
(and multiplied by the ranks, over which a strategy averages), so that uneven shares come out exactly; and a
rank whose share is
used up still goes through the motions, for the others' collectives wait for it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.context import RunContext
from trainfleet.training.trainer.metrics import Speed
from trainfleet.training.trainer.strategies import Strategy
from trainfleet.training.workloads import Outcome, Split, Workload
from trainfleet.training.workloads.batch_checks import Judge

PROBES = 3
"""Passes by which a micro batch is timed."""


@dataclass(frozen=True)
class Stepped:
    """What a step found.

    Attributes:
        outcomes: of this rank's micro batches.
        norm: of the whole gradient before it was clipped.
        loss: mean over the global batch.
        stop, look: whether any rank was asked to stop, or wants all to look for a notice.
        half_norm: of the mean gradient over the first half of the batch, where it was asked for.
    """

    outcomes: list[Outcome]
    norm: float
    loss: float
    stop: bool
    look: bool
    half_norm: float | None = None


class Stepper:
    """Makes gradients; knows the ranks, and neither the optimizer nor where the run stands."""

    def __init__(self, recipe: Recipe, context: RunContext, workload: Workload, strategy: Strategy) -> None:
        self.recipe, self.context, self.workload, self.strategy = recipe, context, workload, strategy
        self.micro_batch = recipe.batch.micro_batch
        self.speed = Speed()
        self._judge = Judge(recipe.workload.name, workload)
        self._expect: Callable[[Split, list[int]], Any] | None = getattr(workload, "expect", None)

    def gradients(self, samples: list[int], stop: bool, look: bool, noise: bool = False) -> Stepped:
        """The clipped gradient of the global batch `samples`; with `noise`, its length half way is measured
        too.
        """
        context, workload = self.context, self.workload
        factor = context.world_size / workload.weight("train", samples)
        outcomes: list[Outcome] = []
        loss = torch.zeros((), device=context.device)
        halves = [self.turns(each) for each in _halves(samples)] if noise else [self.turns(samples)]
        turns, ends = (
            [turn for half in halves for turn in half],
            {len(halves[0]) - 1, sum(map(len, halves)) - 1},
        )
        half_norm = None
        for number, indices in enumerate(turns):
            inputs = self.batch("train", indices or samples[:1])
            with self.strategy.turn(last=number in ends):
                outcome = self.forward(inputs, self.strategy.parallel)
                (outcome.loss * (factor if indices else 0.0)).backward()  # type: ignore[no-untyped-call]  # torch types it not
            if indices:
                outcomes.append(replace(outcome, loss=outcome.loss.detach()))
                loss += outcomes[-1].loss * factor
            if noise and number == len(halves[0]) - 1:
                part = workload.weight("train", _halves(samples)[0]) / workload.weight("train", samples)
                half_norm = float(self.strategy.clip(math.inf)) / part
        found = torch.stack(
            [loss.float(), torch.tensor(float(stop)).to(loss), torch.tensor(float(look)).to(loss)]
        )
        if dist.is_initialized():
            dist.all_reduce(found)
        norm = self.strategy.clip(self.recipe.optimizer.grad_clip).float().reshape(1).to(found.device)
        total, stops, looks, length = torch.cat(
            (found, norm)
        ).tolist()  # the only wait for the device in a step
        return Stepped(outcomes, length, total / context.world_size, stops > 0, looks > 0, half_norm)

    def turns(self, samples: list[int]) -> list[list[int]]:
        """This rank's micro batches of a global batch; some may be empty, all ranks have equally many."""
        places = micro_batches(len(samples), self.micro_batch, self.context.rank, self.context.world_size)
        return [samples[start:end] for start, end in places]

    def expect(self, samples: list[int]) -> None:
        """Tell the workload which samples are wanted now and next, if it listens."""
        if self._expect is not None:
            self._expect("train", samples)

    def forward(self, inputs: dict[str, torch.Tensor], model: torch.nn.Module) -> Outcome:
        """Run the model in the recipe's precision."""
        with self.strategy.precision(), self._judge.naming(inputs):
            outcome = self.workload.outcome(model, inputs)
        self._judge.outcome(outcome)
        return outcome

    def batch(self, split: Split, indices: list[int]) -> dict[str, torch.Tensor]:
        """Samples on this rank's device."""
        began = time.perf_counter()
        given = self.workload.batch(split, indices)
        self._judge.batch(split, indices, given)
        batch = {name: value.to(self.context.device, non_blocking=True) for name, value in given.items()}
        if split == "train":
            self.speed.data += time.perf_counter() - began
        return batch

    def rehearse(self, model: torch.nn.Module) -> None:
        """A forward and backward pass that changes nothing."""
        outcome = self.forward(self.batch("train", [0]), model)
        (outcome.loss * 0.0).backward()  # type: ignore[no-untyped-call]  # torch types it not

    def seconds(self, size: int) -> float | None:
        """How long a forward and backward pass of a micro batch takes, on the slowest rank; None where it
        does not fit on one. Changes nothing.
        """
        samples = list(range(min(size, self.workload.size("train"))))
        taken = 0.0
        try:
            for _ in range(PROBES):
                began = time.perf_counter()
                with self.strategy.turn(last=True):
                    outcome = self.forward(self.batch("train", samples), self.strategy.parallel)
                    (outcome.loss * 0.0).backward()  # type: ignore[no-untyped-call]  # torch types it not
                if self.context.device.startswith("cuda"):
                    torch.cuda.synchronize(self.context.device)
                taken = time.perf_counter() - began  # of the last: the ones before warm caches up
        except torch.OutOfMemoryError:
            taken = math.inf
        finally:
            self.strategy.module.zero_grad(set_to_none=True)
        slowest = torch.tensor(taken, dtype=torch.float64, device=self.context.device)
        if dist.is_initialized():
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        return float(slowest) if math.isfinite(float(slowest)) else None


def micro_batches(size: int, micro_batch: int, rank: int, world_size: int) -> list[tuple[int, int]]:
    """Where this rank's micro batches of a global batch of `size` begin and end.

    Over all ranks they tile it, turn by turn, as even as can be and never larger than `micro_batch`; where
    the ranks do not divide
    it there is one turn more, so a run may go on with any number of workers and the same global batch.
    """
    accumulation = -(-size // (micro_batch * world_size))
    slots = accumulation * world_size
    edges = [slot * size // slots for slot in range(slots + 1)]
    return [(edges[slot], edges[slot + 1]) for slot in range(rank, slots, world_size)]


def _halves(samples: list[int]) -> tuple[list[int], list[int]]:
    return samples[: len(samples) // 2], samples[len(samples) // 2 :]
