"""One rank of a run: the step loop with its callbacks turned into events for the launcher. Started by
torchrun or by Ray.

Used by `trainfleet.training.run`. A module of its own because Ray sends a function by the name of its module,
and that of a script
run with `-m` is `__main__`. Easy to get wrong: an error must reach the launcher before the process group
falls apart.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from trainfleet.errors import TrainfleetError
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runtime import prestart
from trainfleet.training.runtime.events import ALLOW_CHANGES, EVENTS, LAUNCH, STOP_FILE, Sink
from trainfleet.training.runtime.progress import Lines
from trainfleet.training.trainer.context import RunContext

STEP_EVENTS_PER_S = 5


class Asked:
    """Whether this rank was asked to stop: by the launcher's file, or by SIGTERM (a machine that is taken
    away, Slurm, a plain `kill`).

    SIGTERM is listened to from the first question on, so before the first step it ends the process at once,
    and the second one does.
    """

    def __init__(self, stop_file: str | None) -> None:
        self._stop_file = stop_file
        self._told = self._listening = False

    def __call__(self) -> bool:
        if (
            not self._listening and threading.current_thread() is threading.main_thread()
        ):  # Ray trains in another thread and keeps its own
            self._listening = True
            signal.signal(signal.SIGTERM, self._hear)
        return self._told or (self._stop_file is not None and os.path.exists(self._stop_file))  # noqa: PTH110 - asked every step

    def forget(self) -> None:
        """Let SIGTERM end the process again."""
        if self._listening:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._listening = False

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        self._told = True
        signal.signal(number, signal.SIG_DFL)


def context_for(
    run_dir: Path,
    env: Mapping[str, str],
    sink: Sink,
    *,
    rank: int,
    world_size: int,
    local_rank: int,
    device: str,
    local_world_size: int = 1,
    preempted: Callable[[], str | None] | None = None,
    on_way: Callable[[], None] | None = None,
) -> RunContext:
    """A rank's context, its callbacks turned into events (of rank 0); `on_way` is called once, after the
    first step.
    """
    lines = Lines() if not sink.listened else None
    last_step_sent = 0.0

    def send(kind: str, **fields: Any) -> None:
        sink.send(kind, **fields)
        if lines is not None:
            lines.handle({"kind": kind, **fields})

    def on_step(step: int, total: int) -> None:
        nonlocal last_step_sent, on_way
        if on_way is not None:
            on_way()
            on_way = None
        if rank != 0:
            return
        now = time.monotonic()
        if step == total or now - last_step_sent > 1 / STEP_EVENTS_PER_S:
            last_step_sent = now
            send("step", step=step, total=total)

    return RunContext(
        run_dir=run_dir,
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
        device=device,
        launch=env.get(LAUNCH, ""),
        allow_changes=tuple(filter(None, env.get(ALLOW_CHANGES, "").split(","))),
        should_stop=Asked(env.get(STOP_FILE)),
        preempted=preempted,
        on_step=on_step,
        on_interval=lambda row: send("interval", row=dict(row)),
        on_event=lambda what, text: send("event", what=what, text=text),
        on_checkpoint=lambda step, path: send("checkpoint", step=step, path=path),
    )


def work(
    recipe: Recipe,
    run_dir: Path,
    env: Mapping[str, str],
    preempted: Callable[[], str | None] | None = None,
    stand_by: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Train as one rank of the process group that the environment describes; returns the result as plain
    data.

    `stand_by` is called once the run is on its way, on one rank of each machine, with the number of ranks
    there.

    Raises:
        TrainfleetError: as `trainfleet.training.trainer.loop.train`; the launcher has been told before.
    """
    sink = Sink(env.get(EVENTS))
    rank = int(os.environ.get("RANK", "0"))
    sink.send("worker", rank=rank, pid=os.getpid())
    try:
        from trainfleet.training.runtime import process_group
        from trainfleet.training.trainer import loop

        world = process_group.init_from_env(recipe.scaling.use_gpu)
        on_way = (
            partial(stand_by, world.local_world_size)
            if stand_by is not None and world.local_rank == 0
            else None
        )
        context = context_for(run_dir, env, sink, preempted=preempted, on_way=on_way, **asdict(world))
        try:
            result = loop.train(recipe, context)
        finally:
            context.should_stop.forget()  # type: ignore[attr-defined]  # it is an Asked
        document = {
            "status": result.status,
            "step": result.step,
            "metrics": result.metrics,
            "baseline": result.baseline,
            "checkpoint": result.checkpoint,
            "resumed_from": result.resumed_from,
            "run_dir": str(result.run_dir),
        }
        if world.rank == 0:
            sink.send("result", **document)
        process_group.shutdown()
        return document
    except TrainfleetError as error:
        tell(env, error)
        raise
    except Exception as error:
        sink.send("crash", rank=rank, error=f"{type(error).__name__}: {error}", trace=traceback.format_exc())
        raise
    finally:
        sink.close()


def work_under_ray(config: dict[str, Any]) -> None:
    """What Ray Train calls on each worker; `config` is the recipe, the run's folder and the launcher's
    variables.
    """
    work(
        Recipe.model_validate(config["recipe"]),
        Path(config["run_dir"]),
        config["env"],
        preemption_notice if config["watch"] else None,
        prestart.ask if config.get("standby") else None,
    )


def preemption_notice() -> str | None:
    """What Ray knows of machines of this run that are about to be taken away; every worker must ask, for Ray
    lets them agree.
    """
    from ray.train import get_preemption_info

    info = get_preemption_info()
    if info is None:
        return None
    ranks = sorted(rank for each in info.preempted_node_to_ranks.values() for rank in each)
    return f"{len(info.preempted_node_to_ranks)} machine(s) with ranks {ranks} will be taken away"


def tell(env: Mapping[str, str], error: TrainfleetError) -> None:
    """Tell the launcher of an error that the user can mend; it ends the run at once, without another try."""
    sink = Sink(env.get(EVENTS))
    sink.send(
        "error",
        summary=error.summary,
        problems=[[each.where, each.what, each.fix] for each in error.problems],
        exit_code=error.exit_code,
    )
    sink.close()
