"""The step loop: from a recipe and a place in a process group to a trained model. Knows torch.distributed and not Ray.

Used by every launcher; the process group, where there is one, is already up (`training.distributed`). Easy to get wrong:
whatever one rank decides (to stop, to save, to fail) all must decide, in the same order, or they wait for each other.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from trainfleet.errors import InputError, Problem, TrainfleetError
from training import fault
from training.checkpoint import Checkpoints, step_name
from training.context import RunContext, RunResult
from training.data import SampleOrder, micro_batch_starts, share, spread
from training.distributed import any_rank, on_first
from training.journal import Journal
from training.metrics import MetricsManager, Remaining, Speed, peak_flops
from training.optimizer import learning_rate, make_optimizer, set_learning_rate
from training.recipe import Recipe
from training.state import RunState, seed_rank
from training.strategies import make_strategy
from training.workloads import Outcome, Split, make_workload

__all__ = ["NotANumberError", "RunContext", "RunResult", "train"]


class NotANumberError(TrainfleetError):
    """Raised on every rank when the gradient is infinite or no number: nothing after it could be trusted."""


def train(recipe: Recipe, context: RunContext) -> RunResult:
    """Train from the newest whole checkpoint in the run's folder, or from the start.

    Raises:
        InputError: the recipe or the data differs from the checkpoint's, or the folder cannot be written.
        TrainfleetError: a checkpoint cannot be saved or read, or the gradient is no number; the last good one is named.
    """
    with _settings_of_torch(recipe):
        return _Run(recipe, context).train()


class _Run:
    """One start of a run on one rank: what `train` needs at hand, made in the order in which it depends on each other."""

    def __init__(self, recipe: Recipe, context: RunContext) -> None:
        self.recipe, self.context = recipe, context
        _check_share(recipe, context)
        self.workload = make_workload(recipe, context.cache)
        torch.manual_seed(recipe.seed)
        model = self.workload.build_model().to(context.device)
        self.parameters = sum(each.numel() for each in model.parameters())
        self.strategy = make_strategy(recipe, model, context)
        self.optimizer = make_optimizer(recipe.optimizer, model)
        self.interval = MetricsManager(self.workload.metrics, context.device)
        self.state = RunState(recipe, self.strategy, self.optimizer, self.interval, self.workload.fingerprint())
        self.checkpoints = Checkpoints(context.run_dir, recipe.checkpoint, self._event)
        self.order = SampleOrder(recipe.seed, self.workload.size("train"))
        self.steps = recipe.total_steps(self.order.size)
        self.seen = {split: spread(self.workload.size(split), recipe.validation.samples) for split in ("validation", "test")}
        self.speed = Speed()
        self.saved_step = 0
        self.journal: Journal | None = None

    def train(self) -> RunResult:
        """The run, top to bottom."""
        recipe, context, state = self.recipe, self.context, self.state
        self.strategy.settle(self._rehearse)
        seed_rank(recipe.seed, context.rank, 0)
        resumed_from = self._resume()
        baseline: dict[str, float] = on_first(lambda: self.workload.baseline(self.seen["validation"]), context.rank)
        self.journal = self._open_journal(resumed_from, baseline)
        with self.journal or nullcontext():
            remaining, stopped = Remaining(resumed_from), False
            while state.step < self.steps and not stopped:
                began = time.perf_counter()
                norm = self._step()
                state.step += 1
                if self._due(recipe.log.every):
                    self._report_interval(norm, remaining.guess(state.step, self.steps))
                validated = self._due(recipe.validation.every) and self._validate()
                stopped = any_rank(context.should_stop(), context.device) and state.step < self.steps
                if self._due(recipe.checkpoint.every) or stopped:
                    self._save(state.figures if validated else None)
                remaining.seconds += time.perf_counter() - began
                if context.rank == 0:
                    context.on_step(state.step, self.steps)
            return self._finish(stopped, resumed_from, baseline)

    def _step(self) -> float:
        """One optimizer step over the global batch; returns the gradient's norm before clipping."""
        recipe, context, batch = self.recipe, self.context, self.recipe.batch
        began = time.perf_counter()
        step = self.state.step
        set_learning_rate(self.optimizer, learning_rate(recipe.optimizer, step, self.steps))
        whole = self.workload.weight("train", self.order.indices(step * batch.global_batch, batch.global_batch))
        starts = micro_batch_starts(step, batch.global_batch, batch.micro_batch, context.rank, context.world_size)
        for start in starts:
            inputs = self._batch("train", self.order.indices(start, batch.micro_batch))
            with self.strategy.turn(last=start == starts[-1]):
                outcome = self._forward(inputs, self.strategy.parallel)
                (outcome.loss * (context.world_size / whole)).backward()  # type: ignore[no-untyped-call]  # torch types it not
            self.interval.update(outcome)
        norm = float(self.strategy.clip(recipe.optimizer.grad_clip))
        if not math.isfinite(norm):
            self._refuse_to_go_on(step + 1)
        fault.strike("in-step", step + 1)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.speed.compute += time.perf_counter() - began
        self.speed.samples += batch.global_batch
        self.speed.steps += 1
        return norm

    def _forward(self, inputs: dict[str, torch.Tensor], model: torch.nn.Module) -> Outcome:
        kind = self.context.device.partition(":")[0]
        with torch.autocast(kind, dtype=torch.bfloat16) if self.recipe.precision == "bf16" else nullcontext():
            return self.workload.outcome(model, inputs)

    def _batch(self, split: Split, indices: list[int]) -> dict[str, torch.Tensor]:
        began = time.perf_counter()
        batch = {name: value.to(self.context.device, non_blocking=True) for name, value in self.workload.batch(split, indices).items()}
        if split == "train":
            self.speed.data += time.perf_counter() - began
        return batch

    def _rehearse(self, model: torch.nn.Module) -> None:
        outcome = self._forward(self._batch("train", [0]), model)
        (outcome.loss * 0.0).backward()  # type: ignore[no-untyped-call]  # torch types it not

    def _due(self, every: int) -> bool:
        return self.state.step % every == 0 or self.state.step == self.steps

    def _report_interval(self, norm: float, eta_seconds: float) -> None:
        """Write and tell the means since the last interval; every rank takes part in them."""
        state, recipe = self.state, self.recipe
        means = self.interval.compute()
        self.interval.reset()
        peak = peak_flops(self.context.device, self.context.world_size, recipe.precision)
        row = {
            "kind": "train",
            "step": state.step,
            "steps": self.steps,
            "epoch": state.step * recipe.batch.global_batch / self.order.size,
            **means,
            "lr": learning_rate(recipe.optimizer, state.step - 1, self.steps),
            "grad_norm": norm,
            **self.speed.figures(self.workload.sample_tokens, self.workload.flops_per_token, peak),
            "eta_seconds": eta_seconds,
        }
        self.speed = Speed()
        if self.journal is not None:
            self.journal.row(row)
            self.context.on_interval(row)

    def _measure(self, split: Split) -> dict[str, float]:
        """Means over a split's samples, dealt out to all ranks, each sample once."""
        metrics = MetricsManager(self.workload.metrics, self.context.device)
        model = self.strategy.module.eval()
        with torch.no_grad():
            for indices in share(self.seen[split], self.recipe.batch.micro_batch, self.context.rank, self.context.world_size):
                metrics.update(self._forward(self._batch(split, indices), model))
        model.train()
        return {f"{split}/{name}": value for name, value in metrics.compute().items()}

    def _validate(self) -> bool:
        began = time.perf_counter()
        self.state.figures = self._measure("validation")
        self.speed.validating += time.perf_counter() - began
        if self.journal is not None:
            self.journal.row({"kind": "validation", "step": self.state.step, **self.state.figures})
        self._event("validation", f"step {self.state.step}/{self.steps} {_said(self.state.figures)}")
        return True

    def _save(self, figures: dict[str, float] | None) -> None:
        """Save on rank 0, the others waiting, so that a failure is everyone's."""
        began = time.perf_counter()
        captured = self.state.capture(self.context)

        def write() -> str:
            if self.journal is not None:
                self.journal.sync()
            return str(self.checkpoints.save(self.state.step, captured, figures or {}))

        path = on_first(write, self.context.rank)
        self.saved_step = self.state.step
        self.speed.saving += time.perf_counter() - began
        if self.context.rank == 0:
            self.context.on_checkpoint(self.state.step, self.checkpoints.store.root / step_name(self.state.step))
        self._event("checkpoint", f"saved {path}")

    def _resume(self) -> int:
        """Go on from the newest sound checkpoint; returns its step, 0 for a fresh start."""
        name = on_first(self.checkpoints.choose, self.context.rank)
        if name is None:
            return 0
        state = self.checkpoints.load(name)
        self.state.restore(state, self.context)
        self.saved_step = self.state.step
        before = len(state["ranks"])
        on_ranks = f", with {self.context.world_size} ranks instead of {before}" if before != self.context.world_size else ""
        self._event("resumed", f"from {self.checkpoints.store.root / name}, step {self.state.step}/{self.steps}{on_ranks}")
        return self.state.step

    def _open_journal(self, resumed_from: int, baseline: dict[str, float]) -> Journal | None:
        """Open the journal on rank 0; where that fails, fail on all."""
        opened: list[Journal] = []
        facts = {
            "workload": self.recipe.workload.name,
            "unit": self.workload.describe,
            "parameters": self.parameters,
            "world_size": self.context.world_size,
            "device": self.context.device,
            "steps": self.steps,
            "train_samples": self.order.size,
            "baseline": baseline,
        }
        on_first(lambda: opened.append(Journal(self.context.run_dir, self.recipe, resumed_from, facts)), self.context.rank)
        return opened[0] if opened else None

    def _finish(self, stopped: bool, resumed_from: int, baseline: dict[str, float]) -> RunResult:
        figures = dict(self.state.figures or {})
        status = "stopped" if stopped else "finished"
        if not stopped:
            tested = self._measure("test")
            figures |= tested
            if self.journal is not None:
                self.journal.row({"kind": "test", "step": self.state.step, **tested})
        if self.journal is not None:
            self.journal.update(status=status, step=self.state.step, metrics=figures)
        self._event(status, f"at step {self.state.step}/{self.steps} {_said(figures)}")
        checkpoint = self.checkpoints.store.root / step_name(self.saved_step) if self.saved_step else None
        return RunResult("stopped" if stopped else "finished", self.state.step, figures, baseline, checkpoint, resumed_from, self.context.run_dir)

    def _refuse_to_go_on(self, step: int) -> None:
        last = self.checkpoints.last_good()
        kept = f"the last good checkpoint is {last}" if last else "there is no checkpoint yet"
        fix = "a lower optimizer.lr or grad_clip, or a longer warm-up"
        raise NotANumberError(f"the gradient of step {step} is no finite number", [Problem("optimizer.lr", kept, fix)])

    def _event(self, what: str, text: str) -> None:
        if self.context.rank == 0:
            self.context.on_event(what, text)


def _check_share(recipe: Recipe, context: RunContext) -> None:
    share_of_all = recipe.batch.micro_batch * context.world_size
    if recipe.batch.global_batch % share_of_all:
        what = f"{recipe.batch.global_batch} cannot be shared by {context.world_size} ranks in micro batches of {recipe.batch.micro_batch}"
        raise InputError("the batch does not fit the ranks", [Problem("batch.global_batch", what, f"a multiple of {share_of_all}")])


@contextmanager
def _settings_of_torch(recipe: Recipe) -> Iterator[None]:
    """Threads and determinism as the recipe says, put back afterwards: a test or a notebook goes on as before."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(recipe.scaling.threads)
    if recipe.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # a module with a property, which mypy cannot see
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)


def _said(figures: dict[str, Any]) -> str:
    return " ".join(f"{name} {value:.4f}" for name, value in figures.items())
