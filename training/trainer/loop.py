"""The step loop: from a recipe and a place in a process group to a trained model. Knows torch.distributed and
not Ray.

Used by every launcher; the process group, where there is one, is already up
(`trainfleet.training.runtime.process_group`). Easy to get wrong:
whatever one rank decides (to stop, to save, to fail) all must decide, in the same order, or they wait for
each other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.training.checkpoint import Checkpoints, Saved
from trainfleet.training.data import check_sizes, describe_left_out, make_order, share, spread
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.reader import read_run
from trainfleet.training.runs.storage import RunStorage
from trainfleet.training.runs.writer import Journal
from trainfleet.training.runtime import failpoints
from trainfleet.training.runtime.process_group import group_of_one, on_first
from trainfleet.training.trainer.context import RunContext, RunResult
from trainfleet.training.trainer.controllers import Decision, Live, Steering
from trainfleet.training.trainer.guards import Guards, Verdict
from trainfleet.training.trainer.metrics import MetricsManager, Remaining, Speed, collection_of, peak_flops
from trainfleet.training.trainer.optimizer import make_optimizer, set_learning_rate
from trainfleet.training.trainer.state import RunState, seed_rank
from trainfleet.training.trainer.step import Stepped, Stepper
from trainfleet.training.trainer.strategies import make_strategy
from trainfleet.training.workloads import Split, make_workload

__all__ = ["NotANumberError", "RunContext", "RunResult", "train"]

LOOK_EVERY_S = 5.0
"""Between looks for a notice of preemption: Ray's own watcher looks as often, and each look is a call to
another process.
"""


class NotANumberError(TrainfleetError):
    """Raised on every rank when a guard ends the run: the gradient is no number, or the loss leapt."""


def train(recipe: Recipe, context: RunContext) -> RunResult:
    """Train from the newest whole checkpoint in the run's folder, or from the start.

    Raises:
        InputError: the recipe or the data differs from the checkpoint's, or the folder cannot be written.
        TrainfleetError: a checkpoint cannot be saved or read, or the gradient is no number; the last good one
        is named.
    """
    with _settings_of_torch(recipe), group_of_one() if recipe.strategy != "ddp" else nullcontext():
        run = _Run(recipe, context)
        try:
            return run.train()
        finally:
            run.checkpoints.abandon()
            run.storage.leave()


class _Run:
    """One start of a run on one rank: what `train` needs at hand, made in the order in which it depends on
    each other.
    """

    def __init__(self, recipe: Recipe, context: RunContext) -> None:
        self.recipe, self.context = recipe, context
        _check_share(recipe, context)
        self.workload = make_workload(recipe, context.cache)
        check_sizes(self.workload, context.world_size)
        self.strategy = make_strategy(recipe, self.workload.build_model, context)
        self.optimizer = make_optimizer(recipe.optimizer, self.strategy.module)
        self.interval = MetricsManager(
            self.workload.metrics, context.device, collection_of(self.workload, "train")
        )
        self.storage = RunStorage(recipe, context.run_dir, self._event)
        self.checkpoints = Checkpoints(
            self.storage.checkpoints, recipe.checkpoint, self._event, beside=self._beside
        )
        self.order = make_order(recipe, self.workload)
        self.steps = recipe.total_steps(self.order.size)
        self.samples = self.steps * recipe.batch.global_batch
        self.steering, self.guards = Steering(recipe, self.steps), Guards(recipe.guards)
        fingerprint = self.workload.fingerprint()
        self.state = RunState(
            recipe, self.strategy, self.optimizer, self.interval, fingerprint, self.steering, self.guards
        )
        self.stepper = Stepper(recipe, context, self.workload, self.strategy)
        self.seen = {
            split: spread(self.workload.size(split), recipe.validation.samples)
            for split in ("validation", "test")
        }
        self.saved: str | None = None
        self.looked, self.warned = time.monotonic(), False
        self.journal: Journal | None = None

    def train(self) -> RunResult:
        """The run, top to bottom."""
        recipe, context, state = self.recipe, self.context, self.state
        self.strategy.settle(self.stepper.rehearse)
        seed_rank(recipe.seed, context.rank, 0)
        on_first(self._enter, context.rank)
        resumed_from = self._resume()
        baseline: dict[str, float] = on_first(lambda: self._baseline(resumed_from), context.rank)
        self.journal = self._open_journal(resumed_from, baseline)
        with self.journal or nullcontext():
            remaining, stopped = Remaining(resumed_from), False
            self.stepper.speed = Speed()  # what came before the first step is no part of its figures
            if not resumed_from and recipe.controllers.micro_batch == "probe":
                self._tell(self.steering.choose_micro_batch(context.world_size, self.stepper.seconds))
                seed_rank(recipe.seed, context.rank, 0)
            while not self._done() and not stopped:
                began = time.perf_counter()
                done = self._step()
                if self._due(recipe.log.every):
                    self._report_interval(done.norm, remaining.guess(state.step, self._planned()))
                self._heard(self.checkpoints.poll())
                validated = self._due(recipe.validation.every) and self._validate()
                noise = (done.half_norm, done.norm) if done.half_norm is not None else None
                self._tell(
                    self.steering.after_step(
                        Live(state.step, done.loss, noise, state.figures if validated else None)
                    )
                )
                stopped = done.stop and not self._done()
                if self._due(recipe.checkpoint.every) or stopped or self._warned(done):
                    self._save(state.figures if validated else None)
                remaining.seconds += time.perf_counter() - began
                context.on_step(state.step, self._planned())
            return self._finish(stopped, resumed_from, baseline)

    def _step(self) -> Stepped:
        """One optimizer step over the global batch."""
        state, steering, speed = self.state, self.steering, self.stepper.speed
        began = time.perf_counter()
        size, self.stepper.micro_batch = steering.global_batch, steering.micro_batch
        set_learning_rate(self.optimizer, steering.rate(state.position))
        self.stepper.expect(self.order.upcoming(state.position, 2 * size))
        samples = self.order.indices(state.position, size)
        found = self.stepper.gradients(
            samples, self.context.should_stop(), self._wants_look(), steering.wants_noise(state.step)
        )
        verdict = self.guards.judge(found.loss, found.norm)
        failpoints.strike("in-step", state.step + 1)
        if verdict.action == "stop":
            self._refuse_to_go_on(state.step + 1, verdict)
        if verdict.action == "go":
            self.optimizer.step()
            for outcome in found.outcomes:
                self.interval.update(outcome)
        else:
            self._note(verdict.action, f"step {state.step + 1}: {verdict.why}")
        self.optimizer.zero_grad(set_to_none=True)
        state.step, state.position = state.step + 1, state.position + size
        if verdict.action == "roll_back":
            self._roll_back()
        speed.compute += time.perf_counter() - began
        speed.samples += size
        speed.steps += 1
        return found

    def _done(self) -> bool:
        """Whether all samples were trained on: steps times the recipe's batch, whatever the batch became
        since.
        """
        return self.state.position >= self.samples

    def _planned(self) -> int:
        """Steps in all, if the batch stays what it is."""
        return self.state.step - (self.state.position - self.samples) // self.steering.global_batch

    def _tell(self, decisions: list[Decision]) -> None:
        """Write down what the controllers decided."""
        for decision in decisions:
            if self.journal is not None:
                self.journal.row(decision.row())
            self._event(
                "decision",
                f"{decision.what} {decision.old:g} -> {decision.new:g} after step {decision.step}: {decision.why}",
            )

    def _note(self, what: str, text: str) -> None:
        """Write down what happened to the run."""
        if self.journal is not None:
            self.journal.row({"kind": "event", "step": self.state.step, "what": what, "text": text})
        self._event(what, text)

    def _wants_look(self) -> bool:
        return self.context.preempted is not None and time.monotonic() - self.looked > LOOK_EVERY_S

    def _warned(self, done: Stepped) -> bool:
        """Whether this machine or another is about to be taken away, told for the first time: save at once
        and go on.
        """
        if not done.look or self.context.preempted is None:
            return False
        notice, self.looked = self.context.preempted(), time.monotonic()
        first, self.warned = bool(notice) and not self.warned, bool(notice)
        if first:
            self._event("preemption", f"{notice}; saving at step {self.state.step}")
        return first

    def _due(self, every: int) -> bool:
        return self.state.step % every == 0 or self._done()

    def _report_interval(self, norm: float, eta_seconds: float) -> None:
        """Write and tell the means since the last interval; every rank takes part in them."""
        state, recipe = self.state, self.recipe
        means = self.interval.compute()
        self.interval.reset()
        peak = peak_flops(self.context.device, self.context.world_size, recipe.precision)
        row = {
            "kind": "train",
            "step": state.step,
            "steps": self._planned(),
            "epoch": state.position / self.order.size,
            **means,
            "lr": self.optimizer.param_groups[0]["lr"],
            "grad_norm": norm,
            "global_batch": self.steering.global_batch,
            **self.stepper.speed.figures(
                self.workload.sample_tokens,
                self.workload.flops_per_token,
                peak,
                self.strategy.exchange_seconds(),
            ),
            "eta_seconds": eta_seconds,
        }
        self.stepper.speed = Speed()
        if self.journal is not None and "loss" in means:  # else every step of the interval was refused
            self.journal.row(row)
            self.context.on_interval(row)

    def _measure(self, split: Split) -> dict[str, float]:
        """Means over a split's samples, dealt out to all ranks, each sample once."""
        metrics = MetricsManager(
            self.workload.metrics, self.context.device, collection_of(self.workload, split)
        )
        model = self.strategy.module.eval()
        mine, most = (
            share(self.seen[split], self.recipe.batch.micro_batch, rank, self.context.world_size)
            for rank in (self.context.rank, 0)
        )
        with torch.no_grad():
            for indices in mine:
                metrics.update(self.stepper.forward(self.stepper.batch(split, indices), model))
            if self.strategy.together and len(mine) < len(most):  # rank 0 is never dealt less than another
                self.stepper.forward(self.stepper.batch(split, self.seen[split][:1]), model)
        model.train()
        return {f"{split}/{name}": value for name, value in metrics.compute().items()}

    def _validate(self) -> bool:
        began = time.perf_counter()
        self.state.figures = self._measure("validation")
        self.stepper.speed.validating += time.perf_counter() - began
        if self.journal is not None:
            self.journal.row({"kind": "validation", "step": self.state.step, **self.state.figures})
        self._event("validation", f"step {self.state.step}/{self._planned()} {_said(self.state.figures)}")
        return True

    def _save(self, figures: dict[str, float] | None) -> None:
        """Copy the state aside and have it written behind; a failure is everyone's, at one of the next steps."""
        began = time.perf_counter()
        state = self.state
        self._heard(
            self.checkpoints.save(state.step, state.tensors(), state.own(), state.shared(), figures or {})
        )
        self.stepper.speed.saving += time.perf_counter() - began

    def _heard(self, saved: Saved | None) -> None:
        """Tell of a checkpoint that has become whole."""
        if saved is None:
            return
        self.saved = saved.path
        if self.context.rank == 0:
            self.context.on_checkpoint(saved.step, saved.path)
        self._event("checkpoint", f"saved {saved.path}, {saved.seconds:.1f} s behind the loop")

    def _baseline(self, resumed_from: int) -> dict[str, float]:
        """The simple model's figures; after a kill those that were found before, for a run that is back soon."""
        known = (
            read_run(self.context.run_dir).get("baseline")
            if resumed_from and not self.context.allow_changes
            else None
        )
        return known or self.workload.baseline(self.seen["validation"])

    def _enter(self) -> None:
        self.storage.enter(self.context.launch)
        self.storage.fetch()

    def _beside(self) -> None:
        """On rank 0, before a checkpoint becomes visible: the rows that lead to it must be as safe as it is."""
        if self.journal is not None:
            self.journal.sync()
        self.storage.send()

    def _resume(self) -> int:
        """Go on from the newest sound checkpoint; returns its step, 0 for a fresh start."""
        self._heard(self.checkpoints.finish())
        name = self.checkpoints.choose()
        if name is None:
            return 0
        before = self.state.restore(self.checkpoints, name, self.context)
        self.saved = self.checkpoints.at(name)
        on_ranks = (
            f", with {self.context.world_size} ranks instead of {before}"
            if before != self.context.world_size
            else ""
        )
        self._event("resumed", f"from {self.saved}, step {self.state.step}/{self._planned()}{on_ranks}")
        return self.state.step

    def _roll_back(self) -> None:
        """Take the weights of the newest checkpoint and go on behind the samples that led astray."""
        position, refused = self.state.position, self.guards.state()["in_a_row"]
        if self._resume():
            self.state.position = position
            self.guards.load_state(self.guards.state() | {"in_a_row": refused})
            if self.journal is not None:
                self.journal.rewind(self.state.step)

    def _open_journal(self, resumed_from: int, baseline: dict[str, float]) -> Journal | None:
        """Open the journal on rank 0; where that fails, fail on all."""
        opened: list[Journal] = []
        facts: dict[str, Any] = {
            "workload": self.recipe.workload.name,
            "unit": self.workload.describe,
            "parameters": self.strategy.parameters,
            "world_size": self.context.world_size,
            "device": self.context.device,
            "steps": self.steps,
            "train_samples": self.order.size,
            "baseline": baseline,
            **getattr(self.workload, "facts", dict)(),
        }
        if said := describe_left_out(facts):
            self._event("quarantined", said)
        on_first(
            lambda: opened.append(
                Journal(self.context.run_dir, self.recipe, resumed_from, facts, self._event)
            ),
            self.context.rank,
        )
        return opened[0] if opened else None

    def _finish(self, stopped: bool, resumed_from: int, baseline: dict[str, float]) -> RunResult:
        figures = dict(self.state.figures or {})
        status = "stopped" if stopped else "finished"
        if not stopped:
            tested = self._measure("test")
            figures |= tested
            if self.journal is not None:
                self.journal.row({"kind": "test", "step": self.state.step, **tested})
        self._heard(self.checkpoints.finish())
        if self.journal is not None:
            self.journal.update(
                status=status, step=self.state.step, asked=0 if stopped else self.steps, metrics=figures
            )
        on_first(self._beside, self.context.rank)
        self.checkpoints.close()
        self._event(status, f"at step {self.state.step}/{self._planned()} {_said(figures)}")
        return RunResult(
            "stopped" if stopped else "finished",
            self.state.step,
            figures,
            baseline,
            self.saved,
            resumed_from,
            self.context.run_dir,
        )

    def _refuse_to_go_on(self, step: int, verdict: Verdict) -> None:
        self.checkpoints.finish()
        last = self.checkpoints.last_good()
        kept = f"the last good checkpoint is {last}" if last else "there is no checkpoint yet"
        fix = "a lower optimizer.lr or grad_clip, or a longer warm-up"
        raise NotANumberError(f"stopped at step {step}: {verdict.why}", [Problem("optimizer.lr", kept, fix)])

    def _event(self, what: str, text: str) -> None:
        if self.context.rank == 0:
            self.context.on_event(what, text)


def _check_share(recipe: Recipe, context: RunContext) -> None:
    """More workers than samples in a batch would train on nothing."""
    if recipe.batch.global_batch < context.world_size:
        what = f"{recipe.batch.global_batch} cannot be shared by {context.world_size} ranks"
        raise InputError(
            "the batch does not fit the ranks",
            [Problem("batch.global_batch", what, f"at least {context.world_size}")],
        )


@contextmanager
def _settings_of_torch(recipe: Recipe) -> Iterator[None]:
    """Threads and determinism as the recipe says, put back afterwards: a test or a notebook goes on as
    before.
    """
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
