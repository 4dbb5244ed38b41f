"""The step loop: train a recipe on one rank of a process group. Knows torch.distributed, but not Ray."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from typing import Any, Literal

import torch

from trainfleet.training.checkpoint import Checkpoints, Saved
from trainfleet.training.checkpoint.schedule import SaveSchedule
from trainfleet.training.data import check_sizes, describe_left_out, make_order
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.limits import Meter, require_something_left
from trainfleet.training.runs.reader import read_run
from trainfleet.training.runs.schema import EventRow
from trainfleet.training.runs.storage import RunStorage
from trainfleet.training.runs.writer import RunWriter
from trainfleet.training.runtime import failpoints
from trainfleet.training.runtime.collectives import after_all
from trainfleet.training.runtime.process_group import on_first, single_process_group
from trainfleet.training.stores.lease import remove_stop
from trainfleet.training.trainer.context import RunContext, RunResult, lengthy, run_facts
from trainfleet.training.trainer.controllers import Controllers, Decision, StepStats
from trainfleet.training.trainer.device_memory import explain_memory
from trainfleet.training.trainer.evaluator import Evaluator, metrics_of
from trainfleet.training.trainer.frozen import agreed_source
from trainfleet.training.trainer.guards import Action, Guards, NotANumberError
from trainfleet.training.trainer.initial_weights import require_weights, will_resume
from trainfleet.training.trainer.metrics import EtaEstimator, Throughput, metrics_text, peak_flops
from trainfleet.training.trainer.optimizer import make_optimizer, set_learning_rate
from trainfleet.training.trainer.preemption import PreemptionWatch
from trainfleet.training.trainer.profiling import StepProfiler
from trainfleet.training.trainer.readings import Reading, Readings, run_ahead
from trainfleet.training.trainer.state import RunState, seed_rank, torch_settings
from trainfleet.training.trainer.step import Stepper, StepResult
from trainfleet.training.trainer.stragglers import StragglerWatch
from trainfleet.training.trainer.strategies import make_strategy
from trainfleet.training.trainer.strategies.wrap import CompiledGraphs
from trainfleet.training.trainer.upcoming import UpcomingSteps
from trainfleet.training.workloads import make_workload

__all__ = ["NotANumberError", "RunContext", "RunResult", "train"]


def train(recipe: Recipe, context: RunContext) -> RunResult:
    """Train from the newest complete checkpoint in the run folder, or from the start.

    Raises:
        InputError: the recipe or the data differs from the checkpoint's, or the folder cannot be written.
        TrainfleetError: no checkpoint can be saved or read, or a guard ends the run; names the last good one.
    """
    alone = single_process_group() if recipe.strategy != "ddp" else nullcontext()
    with torch_settings(recipe, context.device), alone:
        run = _Run(recipe, context)
        try:
            return run.train()
        finally:
            run.profiler.close()
            run.stepper.close()
            run.checkpoints.abandon()
            run.storage.leave()


class _Run:
    """One start of a run on one rank.

    NOTE: all ranks must decide to stop, save or fail in the same order, or they wait for each other.
    """

    def __init__(self, recipe: Recipe, context: RunContext) -> None:
        self.recipe, self.context = recipe, context
        self.meter = Meter(recipe.limits, context.usd_per_hour, time.monotonic())
        context.require_samples(recipe.batch.global_batch)
        self.workload = after_all(lambda: make_workload(recipe, context.cache))
        check_sizes(self.workload, context.world_size)
        self.storage = RunStorage(recipe, context.run_dir, self._event)
        self.workload.frozen_precision = recipe.precision
        resumes = will_resume(recipe, self.storage, context.rank)
        self.strategy = make_strategy(recipe, self.workload.build_model, context, resumes)
        self.optimizer = make_optimizer(recipe.optimizer, self.strategy.module, recipe.sharding.blocks)
        self.interval = metrics_of(self.workload, "train", context.device)
        self.checkpoints = Checkpoints(
            self.storage.checkpoints,
            recipe.checkpoint,
            self._event,
            before_commit=self._before_commit,
            before_removal=self.storage.require_access,
            on_failed_save=self._log_event,
        )
        self.order = make_order(recipe, self.workload)
        self.steps = recipe.total_steps(self.order.size)
        self.controllers = Controllers(recipe, self.steps)
        self.guards = Guards(recipe.guards)
        data = self.workload.fingerprint()
        self.saves = SaveSchedule(recipe.checkpoint, recipe.validation.every, context.machines, context.rank)
        parts = (self.strategy, self.optimizer, self.interval, data, self.controllers, self.guards)
        self.state = RunState(recipe, *parts, saves=self.saves, assets=dict(self.workload.assets()))
        self.state.protect(self.checkpoints.staging)
        self.state.frozen_source = agreed_source(self.workload, self.strategy.module, context)
        self.stepper = Stepper(recipe, context, self.workload, self.strategy, self.order.by_block)
        loader = self.stepper.loader
        self.upcoming = UpcomingSteps(self.order, loader, self.controllers, loader.depth, context)
        self.evaluator = Evaluator(recipe, context, self.workload, self.stepper, self.state.average)
        collections = bool(self.workload.collections("train"))
        self.readings = Readings(run_ahead(recipe, context.device, collections=collections))
        self.saved: str | None = None
        self.first_step = 0
        self.preemption = PreemptionWatch(context, self._event)
        self.stragglers = StragglerWatch(context, self._log_event)
        self.profiler = StepProfiler(recipe.profile, context, self.storage.open_home, self._log_event)
        self.writer: RunWriter | None = None

    def train(self) -> RunResult:
        """The whole run."""
        recipe, context, state = self.recipe, self.context, self.state
        self.stepper.warm_up()
        seed_rank(recipe.seed, context.rank, 0)
        with self.storage.patient():
            on_first(self._open_storage, context.rank)
            self.first_step = resumed_from = self._resume()
        baseline: dict[str, float] = on_first(lambda: self._baseline(resumed_from), context.rank)
        self.writer = self._open_writer(resumed_from, baseline)
        with self.writer or nullcontext():
            eta, stopped = EtaEstimator(resumed_from), False
            self.stepper.throughput = Throughput()  # excludes everything before the first step
            self.saves.start(state.step)
            if not resumed_from and recipe.controllers.micro_batch == "probe":
                timing = self.stepper.time_micro_batch
                self._log_decisions(self.controllers.choose_micro_batch(context.world_size, timing))
                seed_rank(recipe.seed, context.rank, 0)
                if recipe.compile:
                    torch.compiler.reset()  # or it would compile one graph for all sizes that were tried
            graphs = CompiledGraphs() if recipe.compile else None
            while not self._done() and not stopped:
                began = time.perf_counter()
                with self.profiler.step(state.step + 1):
                    result, known = self._step()
                if state.step == resumed_from + 1:
                    self.checkpoints.staging.prepare(state.tensors())
                    if graphs is not None:
                        self._log_event(*graphs.describe())
                if self._due(recipe.log.every):
                    self._log_interval(known[-1].grad_norm, eta.estimate(state.step, self._planned_steps()))
                self._on_saved(self.checkpoints.poll(all(each.writing for each in known)))
                metrics = self._validate() if self._due(recipe.validation.every) else None
                self._log_decisions(self.controllers.after_step(self._stats(result, known, metrics)))
                stopped = any(each.stop for each in known) and not self._done()
                if self._save_due(known) or stopped or self.preemption.noticed(known, state.step):
                    self._save(metrics)
                eta.seconds = self.meter.trained_s = eta.seconds + time.perf_counter() - began
                context.on_step(state.step, self._planned_steps())
            return self._finish(stopped, resumed_from, baseline)

    def _step(self) -> tuple[StepResult, list[Reading]]:
        """One optimizer step over the global batch; returns what is known of this step and earlier ones."""
        state, controllers, throughput = self.state, self.controllers, self.stepper.throughput
        began = time.perf_counter()
        size, self.stepper.micro_batch = controllers.global_batch, controllers.micro_batch
        set_learning_rate(self.optimizer, controllers.learning_rate(state.position))
        samples, later = self.upcoming.at(state.step, state.position)
        asked = self.context.should_stop() or self.storage.stop_requested
        asked = asked or bool(self.writer and self.meter.reached())
        with explain_memory(self.recipe, self.context, controllers, first=state.step == self.first_step):
            result = self.stepper.compute_gradients(
                samples,
                (asked, self.preemption.due, self.checkpoints.writing, self.saves.proposal),
                controllers.measures_noise(state.step),
                self._due(self.recipe.log.every, ahead=size),
                later,
            )
        self.readings.add(state.step + 1, result.values)
        known, rejected = list[Reading](), None
        if self.readings.run_ahead:
            # The device skips the update itself, as for a gradient scaler (torch.amp.GradScaler.step).
            valid = result.finite
            self.optimizer.found_inf = (~valid).float()  # type: ignore[attr-defined]  # read by fused AdamW
        else:
            known, valid = self.readings.take(), None
            rejected = self._check(known[0])
        failpoints.hit("in-step", state.step + 1)
        if rejected is None:
            self.optimizer.step()
            state.average.update(state.step + 1, valid)
            for output in result.outputs:
                self.interval.update(output, valid)
        self.optimizer.zero_grad(set_to_none=True)
        state.step, state.position = state.step + 1, state.position + size
        if rejected == "roll_back":
            self._roll_back()
        due = any(map(self._due, (self.recipe.log.every, self.recipe.validation.every)))
        known += self._take_readings(everything=due or self.saves.due(state.step))
        throughput.compute += time.perf_counter() - began
        throughput.samples += size
        throughput.steps += 1
        return result, known

    def _check(self, reading: Reading) -> Action | None:
        """Whether the guards reject a step: the action, unless it ends the run."""
        verdict = self.guards.check(reading.loss, reading.grad_norm)
        if verdict.action == "stop":
            self.checkpoints.finish()
            raise NotANumberError.of(reading.step, verdict, self.checkpoints.last_good())
        if verdict.action == "go":
            return None
        self._log_event(verdict.action, f"step {reading.step}: {verdict.why}")
        return verdict.action

    def _take_readings(self, everything: bool) -> list[Reading]:
        """What has become known of earlier steps."""
        known = self.readings.take(everything)
        for reading in known:
            self._check(reading)
        return known

    def _done(self, ahead: int = 0) -> bool:
        """Whether all samples are trained on, those of the planned steps, after `ahead` more."""
        return self.state.position + ahead >= self.controllers.samples

    def _planned_steps(self) -> int:
        """Steps in all, if the batch size stays as it is."""
        left = self.controllers.samples - self.state.position
        return self.state.step - (-left // self.controllers.global_batch)

    def _due(self, every: int, ahead: int = 0) -> bool:
        """Whether something is due after this step, or after the next one, of `ahead` samples."""
        return (self.state.step + (ahead > 0)) % every == 0 or self._done(ahead)

    def _save_due(self, known: list[Reading]) -> bool:
        """Whether to save now. The interval is the one that the ranks have exchanged last."""
        if known and (why := self.saves.agree(known[-1].save_every)) is not None:
            self._log_event("checkpoint_interval", why)
        return self.saves.due(self.state.step) or self._done()

    def _stats(self, result: StepResult, known: list[Reading], metrics: dict[str, float] | None) -> StepStats:
        """For the controllers. Those that need the loss of each step have no step in flight."""
        loss, half = known[-1].loss if known else math.nan, result.half_grad_norm
        norms = (half, known[-1].grad_norm) if half is not None else None
        return StepStats(self.state.step, loss, norms, metrics)

    def _log_decisions(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            if self.writer is not None:
                self.writer.write_row(decision.row())
            change = f"{decision.what} {decision.old:g} -> {decision.new:g}"
            self._event("decision", f"{change} after step {decision.step}: {decision.why}")

    def _log_event(self, what: str, text: str) -> None:
        if self.writer is not None:
            self.writer.write_row(EventRow(kind="event", step=self.state.step, what=what, text=text))
        self._event(what, text)

    def _log_interval(self, grad_norm: float, eta_seconds: float) -> None:
        """Log the means since the last interval. Every rank takes part in them."""
        state, workload = self.state, self.workload
        means = self.interval.compute()
        self.interval.reset()
        peak = peak_flops(self.context.device, self.context.world_size, self.recipe.precision)
        sync = self.strategy.grad_sync_seconds()
        rates = self.stepper.throughput.rates(workload.sample_tokens, workload.flops_per_token, peak, sync)
        row: dict[str, Any] = {  # a TrainRow
            "kind": "train",
            **state.row(self._planned_steps(), self.order.size),
            **means,
            "grad_norm": grad_norm,
            **rates,
            "eta_seconds": eta_seconds,
        }
        row |= self.stragglers.compare(self.stepper.throughput, self.strategy.backward_seconds())
        self.stepper.throughput = Throughput()
        if self.writer is not None and "loss" in means:  # otherwise every step was rejected
            row |= {**self.meter.row(), **self.context.counts(), **self.checkpoints.failures.counts()}
            self.writer.write_row(row)
            self.context.on_interval(row)
        for text in self.meter.nearly_reached() if self.writer else []:
            self._log_event("budget", text)

    @lengthy
    def _validate(self) -> dict[str, float]:
        began = time.perf_counter()
        metrics = self.state.metrics = self.evaluator.evaluate("validation", self.controllers.micro_batch)
        self.stepper.throughput.validating += time.perf_counter() - began
        if self.writer is not None:
            self.writer.write_row({"kind": "validation", "step": self.state.step, **metrics})
        self._event("validation", f"step {self.state.step}/{self._planned_steps()} {metrics_text(metrics)}")
        return metrics

    @lengthy
    def _save(self, metrics: dict[str, float] | None) -> None:
        """Snapshot the state and write it asynchronously. A failure is reported at one of the next steps."""
        began = time.perf_counter()
        state = self.state
        self._take_readings(everything=True)  # ends the run instead of saving a state that a guard rejects
        if self.writer is not None:
            self.writer.record_time()
        with self.saves.saving(state.step, complete=not self.checkpoints.failures.in_a_row):
            earlier = self.checkpoints.save(
                state.step, state.tensors(), state.rank_values(), state.shared_values(), metrics or {}
            )
        self._on_saved(earlier)
        self.stepper.throughput.saving += time.perf_counter() - began

    def _on_saved(self, saved: Saved | None) -> None:
        """Report a checkpoint that is complete."""
        if saved is None:
            return
        self.saved = saved.path
        if self.context.rank == 0:
            self.context.on_checkpoint(saved.step, saved.path)
        self.preemption.on_saved(saved.step)
        self.saves.written(saved.seconds)
        self._event("checkpoint", f"saved {saved.path}, written asynchronously in {saved.seconds:.1f} s")

    def _baseline(self, resumed_from: int) -> dict[str, float]:
        """The baseline's metrics; a resumed run reuses those of its first start."""
        reuse = resumed_from and not self.context.allow_changes
        known = read_run(self.context.run_dir).get("baseline") if reuse else None
        return known or self.workload.baseline(self.evaluator.samples["validation"])

    def _open_storage(self) -> None:
        self.storage.enter(self.context.launch)
        self.storage.fetch()
        require_something_left(self.recipe.limits, read_run(self.context.run_dir).get("starts", []))

    def _before_commit(self) -> None:
        """On rank 0, before a checkpoint is committed: make the rows up to it as durable as it is."""
        if self.writer is not None:
            self.writer.sync()
        self.storage.send()

    def _resume(self) -> int:
        """Resume from the newest intact checkpoint; returns its step, 0 for a fresh start."""
        self._on_saved(self.checkpoints.finish())
        name = self.checkpoints.choose()
        if name is None:
            require_weights(self.strategy, (), self.storage.checkpoints.url)
            return 0
        written_by = self.state.restore(self.checkpoints, name, self.context)
        self.saved = self.checkpoints.at(name)
        world_size = self.context.world_size
        ranks = f", with {world_size} ranks instead of {written_by}" if written_by != world_size else ""
        self._event("resumed", f"from {self.saved}, step {self.state.step}/{self._planned_steps()}{ranks}")
        return self.state.step

    @lengthy
    def _roll_back(self) -> None:
        """Restore the newest checkpoint's weights and continue after the samples of the rejected step."""
        position, rejected = self.state.position, self.guards.state()["in_a_row"]
        if self._resume():
            self.state.position = position
            self.guards.load_state(self.guards.state() | {"in_a_row": rejected})
            if self.writer is not None:
                self.writer.rewind(self.state.step)

    def _open_writer(self, resumed_from: int, baseline: dict[str, float]) -> RunWriter | None:
        """Open the run's writer on rank 0; a failure is raised on all ranks."""
        opened: list[RunWriter] = []
        more = {"steps": self.steps, "train_samples": self.order.size, "baseline": baseline}
        facts = run_facts(self.recipe, self.context, self.workload, self.strategy) | more
        for kind, text in describe_left_out(facts):
            self._event(kind, text)

        def open_writer() -> None:
            run_dir = self.context.run_dir
            opened.append(RunWriter(run_dir, self.recipe, resumed_from, facts, self._event, meter=self.meter))

        on_first(open_writer, self.context.rank)
        return opened[0] if opened else None

    @lengthy
    def _finish(self, stopped: bool, resumed_from: int, baseline: dict[str, float]) -> RunResult:
        step, metrics = self.state.step, dict(self.state.metrics or {})
        if not stopped:
            metrics |= (tested := self.evaluator.evaluate("test", self.controllers.micro_batch))
            if self.writer is not None:
                self.writer.write_row({"kind": "test", "step": step, **tested})
        self._on_saved(self.checkpoints.finish())
        while self.checkpoints.failures.in_a_row:
            time.sleep(self.recipe.checkpoint.patience.first_wait)
            self._save(None if stopped else self.state.metrics)
            self._on_saved(self.checkpoints.finish())
        status: Literal["finished", "stopped"] = "stopped" if stopped else "finished"
        place, over = self.context.run_dir, tuple(self.meter.reached()) if stopped and self.writer else ()
        for each in over:
            self._log_event("budget", each.what)
        if self.writer is not None:
            self.writer.record_time()
            self.writer.update(status=status, step=step, asked=0 if stopped else self.steps, metrics=metrics)
        on_first(self._before_commit, self.context.rank)
        self.checkpoints.close()
        if self.storage.stop_requested:
            remove_stop(self.storage.open_home())
        self._event(status, f"at step {step}/{self._planned_steps()} {metrics_text(metrics)}")
        return RunResult(status, step, metrics, baseline, self.saved, resumed_from, place, over)

    def _event(self, what: str, text: str) -> None:
        if self.context.rank == 0:
            self.context.on_event(what, text)
