"""One rank of a run: the step loop with its callbacks turned into events for the launcher. Started by torchrun or by Ray.

Used by `training.run`. A module of its own because Ray sends a function by the name of its module, and that of a script
run with `-m` is `__main__`. Easy to get wrong: an error must reach the launcher before the process group falls apart.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainfleet.errors import TrainfleetError
from training.context import RunContext
from training.events import ALLOW_CHANGES, EVENTS, STOP_FILE, Sink
from training.progress import Lines
from training.recipe import Recipe

STEP_EVENTS_PER_S = 5


def context_for(run_dir: Path, env: Mapping[str, str], sink: Sink, *, rank: int, world_size: int, local_rank: int, device: str) -> RunContext:
    """A rank's context, its callbacks turned into events (rank 0 calls them)."""
    stop_file = env.get(STOP_FILE)
    lines = Lines() if not sink.listened else None
    last_step_sent = 0.0

    def send(kind: str, **fields: Any) -> None:
        sink.send(kind, **fields)
        if lines is not None:
            lines.handle({"kind": kind, **fields})

    def on_step(step: int, total: int) -> None:
        nonlocal last_step_sent
        now = time.monotonic()
        if step == total or now - last_step_sent > 1 / STEP_EVENTS_PER_S:
            last_step_sent = now
            send("step", step=step, total=total)

    return RunContext(
        run_dir=run_dir,
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        device=device,
        allow_changes=tuple(filter(None, env.get(ALLOW_CHANGES, "").split(","))),
        should_stop=(lambda: os.path.exists(stop_file)) if stop_file else (lambda: False),  # noqa: PTH110 - asked every step
        on_step=on_step,
        on_interval=lambda row: send("interval", row=dict(row)),
        on_event=lambda what, text: send("event", what=what, text=text),
        on_checkpoint=lambda step, path: send("checkpoint", step=step, path=path),
    )


def work(recipe: Recipe, run_dir: Path, env: Mapping[str, str]) -> dict[str, Any]:
    """Train as one rank of the process group that the environment describes; returns the result as plain data.

    Raises:
        TrainfleetError: as `training.loop.train`; the launcher has been told before.
    """
    sink = Sink(env.get(EVENTS))
    rank = int(os.environ.get("RANK", "0"))
    sink.send("worker", rank=rank, pid=os.getpid())
    try:
        from training import distributed, loop

        world = distributed.init_from_env(recipe.scaling.use_gpu)
        context = context_for(run_dir, env, sink, rank=world.rank, world_size=world.world_size, local_rank=world.local_rank, device=world.device)
        result = loop.train(recipe, context)
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
        distributed.shutdown()
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
    """What Ray Train calls on each worker; `config` is the recipe, the run's folder and the launcher's variables."""
    work(Recipe.model_validate(config["recipe"]), Path(config["run_dir"]), config["env"])


def tell(env: Mapping[str, str], error: TrainfleetError) -> None:
    """Tell the launcher of an error that the user can mend; it ends the run at once, without another try."""
    sink = Sink(env.get(EVENTS))
    sink.send("error", summary=error.summary, problems=[[each.where, each.what, each.fix] for each in error.problems], exit_code=error.exit_code)
    sink.close()
