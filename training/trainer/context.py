"""The input of the step loop besides its recipe, and its result. Does not import torch."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar

import platformdirs

from trainfleet.errors import InputError, Problem

if TYPE_CHECKING:
    from trainfleet.training.recipe.schema import Recipe
    from trainfleet.training.trainer.strategies import Strategy
    from trainfleet.training.workloads import Workload


P = ParamSpec("P")
R = TypeVar("R")


def lengthy(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """A method of an object with a `context`, in the context of what may take long."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.context.lengthy():
            return method(self, *args, **kwargs)

    return call


def _never() -> bool:
    return False


def _no_counts() -> dict[str, int]:
    return {}


def _ignore(*_: Any) -> None:
    return None


def default_cache() -> Path:
    """The folder of prepared data: $TRAINFLEET_CACHE, or the user's cache folder."""
    return Path(os.environ.get("TRAINFLEET_CACHE") or platformdirs.user_cache_dir("trainfleet")) / "data"


@dataclass
class RunContext:
    """One rank's place in a run, and its callbacks.

    Callbacks run in the step loop's thread, so they must return quickly. Those without a note run on rank 0
    only.

    Attributes:
        run_dir: the run folder; every rank may read it, rank 0 writes it.
        rank, world_size: this process among all.
        local_rank, local_world_size: the same on its machine.
        device: `cpu` or `cuda:N`.
        cache: folder of prepared data on this machine.
        launch: identifies the launch, including the workers that it restarts; empty without a launcher.
        usd_per_hour: the price of all machines of the run; None if it is not known.
        allow_changes: recipe keys that may differ from the checkpoint's recipe.
        should_stop: called on every rank in every step; if True on any rank, the run saves and ends.
        preempted: called occasionally on every rank after the same step, so it may be collective. Returns a
            preemption notice, if there is one: the run saves a checkpoint and continues.
        on_step: on every rank after every step: (steps done, steps in all).
        on_interval: every `log.every` steps: the row written to metrics.jsonl.
        on_event: an event such as `resumed`, `checkpoint`, `validation`, `fallback`, and a sentence about it.
        on_checkpoint: a checkpoint is complete: (its step, its folder or URL).
        counts: further values of the rows, such as `dropped_notifications`; empty most of the time.
        on_evacuated: on every rank: the checkpoint that a preemption notice asked for is complete.
        lengthy: context, on every rank, of what may take long: waits for data, validations, saves.
    """

    run_dir: Path
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    device: str = "cpu"
    cache: Path = field(default_factory=default_cache)
    launch: str = ""
    usd_per_hour: float | None = None
    allow_changes: tuple[str, ...] = ()
    should_stop: Callable[[], bool] = _never
    preempted: Callable[[], str | None] | None = None
    on_step: Callable[[int, int], Any] = _ignore
    on_interval: Callable[[Mapping[str, Any]], Any] = _ignore
    on_event: Callable[[str, str], Any] = _ignore
    on_checkpoint: Callable[[int, str], Any] = _ignore
    on_evacuated: Callable[[], Any] = _ignore
    lengthy: Callable[[], AbstractContextManager[Any]] = nullcontext
    counts: Callable[[], Mapping[str, int]] = _no_counts

    @property
    def machines(self) -> int:
        """Machines of the run."""
        return -(-self.world_size // max(1, self.local_world_size))

    def require_samples(self, global_batch: int) -> None:
        """Require a sample per rank in each batch.

        Raises:
            InputError: there are more ranks than samples.
        """
        if global_batch < self.world_size:
            what = f"{global_batch} cannot be divided among {self.world_size} ranks"
            problem = Problem("batch.global_batch", what, f"at least {self.world_size}")
            raise InputError("the batch is smaller than the number of ranks", [problem])


@dataclass(frozen=True)
class RunResult:
    """The result of a run.

    Attributes:
        status: `finished`: all steps are done; `stopped`: ended early on request and saved. The same command
            resumes it.
        step: steps done.
        metrics: of the last validation and the test, such as `validation/nats_per_byte` and `test/loss`.
        baseline: metrics of the workload's simple model on the same validation samples.
        checkpoint: folder or URL of the newest complete checkpoint.
        resumed_from: the step that this start resumed from; 0 for a fresh run.
        run_dir: the run folder.
        limits: of the recipe, which ended the run; on rank 0.
    """

    status: Literal["finished", "stopped"]
    step: int
    metrics: dict[str, float]
    baseline: dict[str, float]
    checkpoint: str | None
    resumed_from: int
    run_dir: Path
    limits: tuple[Problem, ...] = ()


def run_facts(recipe: Recipe, context: RunContext, workload: Workload, strategy: Strategy) -> dict[str, Any]:
    """What run.json says about a start, besides its length."""
    return {
        "workload": recipe.workload.name,
        "unit": workload.loss_unit,
        "parameters": strategy.parameters,
        "world_size": context.world_size,
        "device": context.device,
        **workload.data_info(),
    }
