"""The gradients of one optimizer step: this rank's share of the global batch, forward and backward."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice

import torch
import torch.distributed as dist

from trainfleet.training.data.dealing import deal
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.batch_loader import BatchLoader
from trainfleet.training.trainer.context import RunContext
from trainfleet.training.trainer.metrics import Throughput
from trainfleet.training.trainer.strategies import Strategy
from trainfleet.training.trainer.upcoming import GlobalBatch
from trainfleet.training.workloads import Split, StepOutput, Workload
from trainfleet.training.workloads.batch_checks import BatchChecker

PROBES = 3
"""Passes that time a micro batch; only the last one counts."""


@dataclass(frozen=True)
class StepResult:
    """The result of a step before the optimizer runs. Nothing has waited for the device.

    Attributes:
        outputs: of this rank's micro batches.
        values: on the device, for `Readings`: mean loss over the global batch, norm of the whole gradient
            before clipping, and each flag's sum over ranks.
        half_grad_norm: of the mean gradient over the first half of the batch, if requested.
    """

    outputs: list[StepOutput]
    values: torch.Tensor
    half_grad_norm: float | None = None

    @property
    def finite(self) -> torch.Tensor:
        """Whether loss and gradient are finite: a scalar on the device."""
        return torch.isfinite(self.values[:2]).all()


class Stepper:
    """Computes gradients. Knows the ranks, but neither the optimizer nor the position in the run."""

    def __init__(
        self,
        recipe: Recipe,
        context: RunContext,
        workload: Workload,
        strategy: Strategy,
        by_block: bool = False,
    ) -> None:
        self.recipe, self.context, self.workload, self.strategy = recipe, context, workload, strategy
        self.by_block = by_block
        self.micro_batch = recipe.batch.micro_batch
        self.throughput = Throughput()
        self._checker = BatchChecker(recipe.workload.name, workload)
        check = self._checker.check_batch
        self.loader = BatchLoader(recipe, workload, context.device, check, self._notify, cache=context.cache)

    def compute_gradients(
        self,
        samples: list[int],
        flags: Sequence[float] = (),
        measure_noise: bool = False,
        metrics: bool = True,
        later: Iterable[GlobalBatch] = (),
    ) -> StepResult:
        """The clipped gradient of the global batch `samples`.

        The loss is a sum over targets. It is divided once by the targets of the whole global batch, and
        multiplied by the number of ranks, over which a strategy averages: uneven shares are exact.

        Args:
            samples: indices of the global batch, the same on all ranks.
            flags: of this rank, which travel with the loss and are added up over ranks.
            measure_noise: also measure the gradient's norm over the first half of the batch.
            metrics: whether the step is logged, so that the workload computes its metrics.
            later: the global batches after this one, as far as they are known, to be built ahead.
        """
        context, workload = self.context, self.workload
        targets = workload.num_targets("train", samples)
        factor = context.world_size / targets
        outputs: list[StepOutput] = []
        loss = torch.zeros((), device=context.device)
        parts = _halves(samples) if measure_noise else (samples,)
        rank_parts = [self.rank_micro_batches(part) for part in parts]
        first_half = len(rank_parts[0])
        micro_batches = [indices for part in rank_parts for indices in part]
        ahead = [*self._inputs(samples, measure_noise), *islice(self._later_inputs(later), self.loader.depth)]
        half_norm = None
        for number, indices in enumerate(micro_batches, start=1):
            inputs = self.batch("train", ahead[number - 1], ahead[number : number + self.loader.depth])
            with self.strategy.grad_sync(last=number in (first_half, len(micro_batches))):
                output = self.forward(inputs, self.strategy.parallel, metrics)
                (output.loss * (factor if indices else 0.0)).backward()  # type: ignore[no-untyped-call]  # torch is partly typed
            if indices:
                outputs.append(replace(output, loss=output.loss.detach()))
                loss += outputs[-1].loss * factor
            if measure_noise and number == first_half:
                share = workload.num_targets("train", parts[0]) / targets
                half_norm = float(self.strategy.clip_grad_norm(math.inf)) / share
        # Filled on the device: a copy would wait for it.
        found = torch.stack([loss.float(), *(loss.new_full((), float(flag)) for flag in flags)])
        if dist.is_initialized():
            dist.all_reduce(found)
        norm = self.strategy.clip_grad_norm(self.recipe.optimizer.grad_clip)
        norm = norm.float().reshape(1).to(found.device)
        values = torch.cat((found[:1] / context.world_size, norm, found[1:]))
        return StepResult(outputs, values, half_norm)

    def rank_micro_batches(self, samples: list[int]) -> list[list[int]]:
        """This rank's micro batches of a global batch. Some may be empty; all ranks have the same number."""
        context = self.context
        return deal(samples, self.micro_batch, context.rank, context.world_size, by_block=self.by_block)

    def _inputs(self, samples: list[int], measure_noise: bool) -> list[list[int]]:
        """The samples of this rank's passes over a global batch."""
        parts = _halves(samples) if measure_noise else (samples,)
        # NOTE: a rank without samples left still runs a pass, because the others wait in collectives.
        return [indices or samples[:1] for part in parts for indices in self.rank_micro_batches(part)]

    def _later_inputs(self, later: Iterable[GlobalBatch]) -> Iterator[list[int]]:
        for samples, measure_noise in later:
            yield from self._inputs(samples, measure_noise)

    def forward(
        self, inputs: dict[str, torch.Tensor], model: torch.nn.Module, metrics: bool = True
    ) -> StepOutput:
        """Run the model in the recipe's precision, and compute the workload's metrics if they are needed."""
        self.workload.wants_metrics = metrics
        with self.strategy.precision(), self._checker.describe_errors(inputs):
            output = self.workload.forward_loss(model, inputs)
        self._checker.check_output(output, metrics)
        for text in self.workload.take_notes():
            self._notify("warning", text)
        return output

    def batch(
        self, split: Split, indices: list[int], ahead: Sequence[list[int]] = ()
    ) -> dict[str, torch.Tensor]:
        """Samples on this rank's device; `ahead` are those of the next calls."""
        began = time.perf_counter()
        with self.context.lengthy():
            batch = self.loader.take(split, indices, ahead)
        if split == "train":
            self.throughput.data += time.perf_counter() - began
        return batch

    def warm_up(self) -> None:
        """Run the passes before the first step, which change nothing. Collective.

        Raises:
            InputError: the model does not fit the data.
        """
        for text in self.strategy.notes:
            self._notify("warning", text)
        self.workload.check_model(self.strategy.module)
        self.strategy.warm_up(self.warmup_pass)

    def warmup_pass(self, model: torch.nn.Module) -> None:
        """A forward and backward pass of a whole micro batch that changes nothing but the gradients and the
        random generators.

        A smaller batch would compile the model for another shape, and a single sample has no variance, which
        BatchNorm needs.
        """
        with unchanged_buffers(self.strategy.module):
            output = self.forward(
                self.batch("train", self._first_samples(self.micro_batch)), model, metrics=False
            )
            (output.loss * 0.0).backward()  # type: ignore[no-untyped-call]  # torch is partly typed

    def close(self) -> None:
        """Discard the batches that were built ahead, and end their threads and processes."""
        self.loader.close()

    def _notify(self, what: str, text: str) -> None:
        if self.context.rank == 0:
            self.context.on_event(what, text)

    def _first_samples(self, size: int) -> list[int]:
        return list(range(min(size, self.workload.size("train"))))

    def time_micro_batch(self, size: int) -> float | None:
        """Seconds of a forward and backward pass on the slowest rank; None if it does not fit into a rank's
        memory. Changes nothing but the random generators.
        """
        samples, seconds = self._first_samples(size), 0.0
        try:
            for _ in range(PROBES):
                began = time.perf_counter()
                with unchanged_buffers(self.strategy.module), self.strategy.grad_sync(last=True):
                    output = self.forward(self.batch("train", samples), self.strategy.parallel, metrics=False)
                    (output.loss * 0.0).backward()  # type: ignore[no-untyped-call]  # torch is partly typed
                if self.context.device.startswith("cuda"):
                    torch.cuda.synchronize(self.context.device)
                seconds = time.perf_counter() - began
        except torch.OutOfMemoryError:
            seconds = math.inf
        finally:
            self.strategy.module.zero_grad(set_to_none=True)
        slowest = torch.tensor(seconds, dtype=torch.float64, device=self.context.device)
        if dist.is_initialized():
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        return float(slowest) if math.isfinite(float(slowest)) else None


@contextmanager
def unchanged_buffers(module: torch.nn.Module) -> Iterator[None]:
    """Restore the model's buffers afterwards, such as the running means of BatchNorm."""
    before = [(each, each.detach().clone()) for each in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for each, value in before:
                each.copy_(value)


def _halves(samples: list[int]) -> tuple[list[int], list[int]]:
    return samples[: len(samples) // 2], samples[len(samples) // 2 :]
