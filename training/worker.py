"""One rank of a run, started by torchrun or Ray: the step loop, whose callbacks send events to the launcher.

A separate module because Ray pickles a function by its module's name, which is `__main__` for a script.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from trainfleet.errors import TrainfleetError
from trainfleet.training.notifications.rank import ReportingSink
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.schema import Result
from trainfleet.training.runtime import code_archive, pod_drain, prestart
from trainfleet.training.runtime.code_archive import CODE, CODE_FOLDER
from trainfleet.training.runtime.events import (
    ALLOW_CHANGES,
    EVENTS,
    JOB,
    LAUNCH,
    STOP_FILE,
    EventSink,
    price_in,
)
from trainfleet.training.runtime.imports import without_collections
from trainfleet.training.runtime.progress import Lines
from trainfleet.training.stores import StoreUnavailableError, is_remote, open_store
from trainfleet.training.trainer.context import RunContext, RunResult

if TYPE_CHECKING:
    from trainfleet.training.runtime.process_group import World

STEP_EVENTS_PER_S = 5


class StopRequest:
    """Whether this rank was asked to stop: by the launcher's file, or by SIGTERM (preemption, Slurm, `kill`).

    The first call installs the signal handler. Before it, and at the second signal, SIGTERM ends the process.
    """

    def __init__(self, stop_file: str | None) -> None:
        self._stop_file = stop_file
        self._signalled = self._listening = False

    def __call__(self) -> bool:
        # Ray trains in another thread and has its own handler.
        if not self._listening and threading.current_thread() is threading.main_thread():
            self._listening = True
            signal.signal(signal.SIGTERM, self._on_signal)
        return self._signalled or (self._stop_file is not None and os.path.exists(self._stop_file))  # noqa: PTH110 - called in every step

    def uninstall(self) -> None:
        """Restore the default handler of SIGTERM."""
        if self._listening:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._listening = False

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signalled = True
        signal.signal(number, signal.SIG_DFL)


def context_for(
    run_dir: Path,
    env: Mapping[str, str],
    sink: EventSink,
    *,
    rank: int,
    world_size: int,
    local_rank: int,
    device: str,
    local_world_size: int = 1,
    preempted: Callable[[], str | None] | None = None,
    on_first_step: Callable[[], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    on_evacuated: Callable[[], None] | None = None,
) -> RunContext:
    """A rank's context, whose callbacks send events of rank 0.

    Args:
        run_dir, env: the run folder, and the launcher's variables.
        sink: where events go; without a listener, they are printed.
        rank, world_size, local_rank, local_world_size: this process among all, and on its machine.
        device: `cpu` or `cuda:N`.
        should_stop, preempted: whether this rank was asked to stop; a preemption notice, if there is one.
        on_first_step, on_evacuated: called after the first step, and after the checkpoint of a preemption.
    """
    lines = Lines() if not sink.has_listener else None

    def send(kind: str, **fields: Any) -> None:
        sink.send(kind, **fields)
        if lines is not None:
            lines.handle({"kind": kind, **fields})

    send_step = _rate_limited(send)

    def on_step(step: int, total: int) -> None:
        nonlocal on_first_step
        if on_first_step is not None:
            on_first_step()
            on_first_step = None
        if rank == 0:
            send_step(step, total)

    return RunContext(
        run_dir=run_dir,
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
        device=device,
        launch=env.get(LAUNCH, ""),
        usd_per_hour=price_in(env),
        allow_changes=tuple(filter(None, env.get(ALLOW_CHANGES, "").split(","))),
        should_stop=should_stop or StopRequest(env.get(STOP_FILE)),
        preempted=preempted,
        on_step=on_step,
        on_interval=lambda row: send("interval", row=dict(row)),
        on_event=lambda what, text: send("event", what=what, text=text),
        on_checkpoint=lambda step, path: send("checkpoint", step=step, path=path),
        on_evacuated=on_evacuated or (lambda: None),
    )


def _rate_limited(send: Callable[..., None]) -> Callable[[int, int], None]:
    """A function that sends `step` events: at most STEP_EVENTS_PER_S, and always that of the last step."""
    last_sent = 0.0

    def send_step(step: int, total: int) -> None:
        nonlocal last_sent
        now = time.monotonic()
        if step == total or now - last_sent > 1 / STEP_EVENTS_PER_S:
            last_sent = now
            send("step", step=step, total=total)

    return send_step


def work(
    recipe: Recipe,
    run_dir: Path,
    env: Mapping[str, str],
    preempted: Callable[[], str | None] | None = None,
    start_spares: Callable[[int], None] | None = None,
) -> Result:
    """Train as one rank of the process group that the environment describes.

    `start_spares` is called after the first step on one rank of each machine, with its number of ranks.

    Raises:
        TrainfleetError: as `trainfleet.training.trainer.loop.train`, after it was sent to the launcher, which
            restarts the workers if a store did not respond.
    """
    rank = int(os.environ.get("RANK", "0"))
    reports = rank == 0 and recipe.notifications.enabled
    sink = ReportingSink(recipe, run_dir, env) if reports else EventSink(env.get(EVENTS))
    sink.send("worker", rank=rank, pid=os.getpid())
    try:
        with without_collections():
            from trainfleet.training.inference.job import run_job
            from trainfleet.training.runtime import process_group, required_network
            from trainfleet.training.trainer import loop

        world = process_group.init_from_env(recipe.scaling.use_gpu, 60 * recipe.scaling.start_timeout)
        network = required_network.require_network(world)
        spares = partial(start_spares, world.local_world_size) if start_spares is not None else None
        stop_request, note = StopRequest(env.get(STOP_FILE)), pod_drain.RankNote(os.environ)
        context = context_for(
            run_dir,
            env,
            sink,
            should_stop=stop_request,
            preempted=preempted,
            on_first_step=spares if world.local_rank == 0 else None,
            on_evacuated=note.saved,
            **asdict(world),
        )
        context.counts = sink.counts
        if network and world.rank == 0:
            context.on_event("network", f"NCCL uses {network}, as the platform requires")
        try:
            if job := env.get(JOB):
                document = run_job(job, run_dir, world, sink.send)
            else:
                with note, _watched(recipe, world, context, sink):
                    document = _as_document(loop.train(recipe, context))
        finally:
            stop_request.uninstall()
        if world.rank == 0:
            sink.send("result", **document)
        process_group.shutdown()
        return document
    except Exception as error:
        # Before the process group breaks, or the launcher reports another rank's error.
        _report(error, sink, env, rank)
        raise
    finally:
        sink.close()


@contextlib.contextmanager
def _watched(recipe: Recipe, world: World, context: RunContext, sink: EventSink) -> Iterator[None]:
    """Watch for ranks that hang, if there are several."""
    if world.world_size == 1 or not recipe.scaling.hang_timeout:
        yield
        return
    from trainfleet.training.runtime import nccl_diagnostics
    from trainfleet.training.runtime.hang_watch import HangWatch

    url = recipe.home_url()
    folder = f"{url if is_remote(url) else context.run_dir}/{nccl_diagnostics.FOLDER}"

    def report(rank: int, text: str) -> None:
        sink.send("event", what="hung", text=text)  # the log of a restarted run shows no crash
        sink.send("crash", rank=rank, error=text, trace="")

    def record() -> None:
        if recipe.scaling.use_gpu:
            nccl_diagnostics.store_trace(open_store(folder), world.rank)

    watch = HangWatch(world, recipe.scaling.hang_timeout, report, record=record)
    watch.attach(context)
    try:
        yield
    finally:
        watch.close()


def _report(error: Exception, sink: EventSink, env: Mapping[str, str], rank: int) -> None:
    """Send the error of a rank: `error` ends the run, and after `crash` the launcher restarts its workers."""
    if isinstance(error, TrainfleetError) and not isinstance(error, StoreUnavailableError):
        send_error(env, error)
        return
    known = isinstance(error, TrainfleetError)
    text = str(error) if known else f"{type(error).__name__}: {error}"
    sink.send("crash", rank=rank, error=text, trace="" if known else traceback.format_exc())


def _as_document(result: RunResult) -> Result:
    """A result as the launcher receives it."""
    document: Result = {
        "status": result.status,
        "step": result.step,
        "metrics": result.metrics,
        "baseline": result.baseline,
        "checkpoint": result.checkpoint,
        "resumed_from": result.resumed_from,
        "run_dir": str(result.run_dir),
    }
    if result.limits:
        document["limits"] = [each.what for each in result.limits]
    return document


def work_under_ray(config: dict[str, Any]) -> None:
    """Train as one worker of Ray Train.

    `config` has the recipe, the run folder and the launcher's variables.
    """
    env = config["env"]
    try:
        code_archive.use(env.get(CODE), env.get(CODE_FOLDER))
        with without_collections():
            recipe = Recipe.model_validate(config["recipe"])
    except TrainfleetError as error:
        send_error(env, error)
        raise
    work(
        recipe,
        Path(config["run_dir"]),
        config["env"],
        preemption_notice if config["watch"] else None,
        prestart.start_spares if config.get("standby") else None,
    )


def preemption_notice() -> str | None:
    """Ray's preemption notice for machines of this run, if there is one. Collective."""
    from ray.train import get_preemption_info

    info = get_preemption_info()
    if info is None:
        return None
    ranks = sorted(rank for each in info.preempted_node_to_ranks.values() for rank in each)
    return f"{len(info.preempted_node_to_ranks)} machine(s) with ranks {ranks} will be preempted"


def send_error(env: Mapping[str, str], error: TrainfleetError) -> None:
    """Send an error that the user can fix to the launcher, which ends the run without a restart."""
    sink = EventSink(env.get(EVENTS))
    sink.send(
        "error",
        summary=error.summary,
        problems=[[each.where, each.what, each.fix] for each in error.problems],
        exit_code=error.exit_code,
    )
    sink.close()
