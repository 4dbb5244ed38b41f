"""What the step loop is given besides its recipe, and what it gives back. Used by every launcher; without
torch.

Easy to get wrong: callbacks are called on rank 0 only (except `should_stop`, asked on every rank in every
step, and `preempted`), in
the loop's own thread, so they must be quick.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import platformdirs


def _never() -> bool:
    return False


def _ignore(*_: Any) -> None:
    return None


def default_cache() -> Path:
    """Where token files live: $TRAINFLEET_CACHE, else the user's cache folder."""
    return Path(os.environ.get("TRAINFLEET_CACHE") or platformdirs.user_cache_dir("trainfleet")) / "data"


@dataclass
class RunContext:
    """One rank's place in a run.

    Attributes:
        run_dir: the run's folder; every rank may read it, rank 0 writes it.
        rank, world_size: this process among all.
        local_rank, local_world_size: the same on its machine.
        device: `cpu` or `cuda:N`.
        cache: where prepared data lives on this machine.
        launch: names the launch that this process belongs to, and all that it restarts; empty when it is on
        its own.
        allow_changes: recipe keys that may differ from the checkpoint's recipe.
        should_stop: asked after every step on every rank; True anywhere saves a checkpoint and ends the run.
        preempted: asked now and then, on every rank after the same step, so it may wait for all; who is about
        to be taken away, if
            anyone: a checkpoint is saved at once, and the run goes on.
        on_step: after every step, on every rank: (steps done, steps in all).
        on_interval: every `log.every` steps: the row written to metrics.jsonl.
        on_event: what happened and a sentence about it: `resumed`, `checkpoint`, `validation`, `fallback`,
        `stopped`, `finished`.
        on_checkpoint: after a checkpoint is whole: (its step, its folder or URL).
    """

    run_dir: Path
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    device: str = "cpu"
    cache: Path = field(default_factory=default_cache)
    launch: str = ""
    allow_changes: tuple[str, ...] = ()
    should_stop: Callable[[], bool] = _never
    preempted: Callable[[], str | None] | None = None
    on_step: Callable[[int, int], Any] = _ignore
    on_interval: Callable[[Mapping[str, Any]], Any] = _ignore
    on_event: Callable[[str, str], Any] = _ignore
    on_checkpoint: Callable[[int, str], Any] = _ignore


@dataclass(frozen=True)
class RunResult:
    """How a run ended.

    Attributes:
        status: `finished`: all steps done; `stopped`: asked to end early, saved, to be resumed by the same
        command.
        step: steps done.
        metrics: the last validation's and the test's figures, such as `validation/nats_per_byte` and
        `test/loss`.
        baseline: the workload's simple model on the same validation samples, such as `bigram_nats_per_byte`.
        checkpoint: the newest whole checkpoint, a folder or a URL.
        resumed_from: the step this start went on from; 0 for a fresh run.
        run_dir: the run's folder.
    """

    status: Literal["finished", "stopped"]
    step: int
    metrics: dict[str, float]
    baseline: dict[str, float]
    checkpoint: str | None
    resumed_from: int
    run_dir: Path
