"""What the ranks of a run do instead of training, by the same launchers: evaluate a model, or predict rows.

A job is the JSON of `Job` in the variable TRAINFLEET_JOB, which launchers pass on like the other variables of
a run. The recipe of such a run describes its workers; the model has the recipe of its checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from trainfleet.training.runs.schema import Result

if TYPE_CHECKING:
    from trainfleet.training.recipe.schema import Recipe
    from trainfleet.training.runtime.process_group import World

Send = Callable[..., Any]


class Job(BaseModel):
    """A task with its arguments: those of `evaluate.on_ranks` or of `predict_ranks.on_ranks`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: Literal["evaluate", "predict"]
    arguments: dict[str, Any]


def run_job(text: str, run_dir: Path, world: World, send: Send) -> Result:
    """Run a job on all ranks of a process group. Collective.

    Raises:
        TrainfleetError: as the task.
    """
    job = Job.model_validate_json(text)

    def progress(kind: str, **fields: Any) -> None:
        if kind == "progress" and world.rank == 0:
            send("step", step=fields["done"], total=fields["total"])

    result: Result = {
        "status": "finished",
        "step": 0,
        "metrics": {},
        "baseline": {},
        "checkpoint": None,
        "resumed_from": 0,
        "run_dir": str(run_dir),
    }
    if job.task == "evaluate":
        from trainfleet.training.evaluate import on_ranks as evaluate

        found = evaluate(job.arguments, world, progress)
        result |= {"step": found["step"], "metrics": found["metrics"], "checkpoint": found["checkpoint"]}
        return {**result, "evaluation": found}
    from trainfleet.training.inference.predict_ranks import on_ranks as predict

    manifest = predict(job.arguments, world, progress)
    plan = manifest["plan"]
    result |= {"step": plan["step"], "checkpoint": plan["model"]}
    return {**result, "predictions": manifest}


def recipe_document(recipe: Recipe, name: str, workers: int, storage: str | None) -> dict[str, Any]:
    """The recipe of a run that does a job: the workers of the model's recipe, but this number of them.

    Args:
        recipe: of the model.
        name: of the run.
        workers: number of ranks.
        storage: of the run; None: that of the model's recipe.
    """
    whole = recipe.model_dump(mode="json")
    kept = {key: whole[key] for key in ("workload", "precision", "seed", "pod_template", "storage")}
    scaling = whole["scaling"] | {"workers": workers, "min_workers": None, "standby": False}
    micro = recipe.batch.micro_batch
    document = {
        **kept,
        "name": name,
        "scaling": scaling,
        "steps": 1,
        "batch": {"global_batch": micro * workers, "micro_batch": micro},
        "log": {"tensorboard": False},
    }
    return document | ({"storage": storage} if storage is not None else {})
