"""`trainfleet tune`: searches over recipes with Ray Tune. A trial is one run, by Ray Train if it has several
workers.

A trial's checkpoints belong to its run, so a killed search resumes with them. A failed trial does not end
the search.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, MissingToolError, Problem, TrainfleetError
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.reader import read_rows
from trainfleet.training.tune.search import Search

LOG = "tune.log"
POLL_INTERVAL_S = 0.1
MAX_VALIDATIONS = 10_000
DRIVER_CPUS = 0.01
"""CPUs of a trial that only waits for its workers; Ray requires a positive amount."""


def tune(recipe: Recipe, folder: Path, hear: Callable[[Mapping[str, Any]], Any]) -> Search:
    """Run or resume a search and return it. `hear` receives an event for each validation and end of a trial.

    Raises:
        InputError: the folder holds another search.
        TrainfleetError: no trial has a result.
        Interrupted: Ctrl-C; the same command resumes the search.
    """
    from trainfleet.training.runtime import local_resources, subprocess_jobs

    search = Search(recipe, folder)
    assert recipe.tune is not None
    if search.unfinished() or len(search.trials) < recipe.tune.trials:
        _require_packages(recipe.tune.sampler)
        if not os.environ.get("RAY_ADDRESS"):
            workers = recipe.scaling.workers * recipe.tune.concurrent
            local_resources.require(recipe.scaling.model_copy(update={"workers": workers}))
        search.save()
        job = {"recipe": recipe.model_dump(mode="json"), "folder": str(folder)}
        subprocess_jobs.run(
            "trainfleet.training.tune.trials:work",
            job,
            hear=hear,
            threads=recipe.scaling.threads,
            log=folder / LOG,
            again="run the same command again to resume",
        )
        search = Search(recipe, folder)
    if search.best() is None:
        problems = [
            Problem(f"trial {each.number}", each.error or "has no result") for each in search.trials[:5]
        ]
        raise TrainfleetError("no trial has a result", problems)
    return search


def work(job: Mapping[str, Any], send: Callable[..., Any]) -> int:
    """Run the search in the process that drives Ray; returns the number of trials."""
    from trainfleet.training.runtime.ray_cluster import connect

    recipe, folder = Recipe.model_validate(job["recipe"]), Path(job["folder"])
    search = Search(recipe, folder)
    assert recipe.tune is not None
    scaling = recipe.scaling
    os.environ["TUNE_DISABLE_STRICT_METRIC_CHECKING"] = "1"  # a trial may fail before its first validation
    several = scaling.workers > 1
    # one worker more, for the trials that wait for workers
    total = scaling.model_copy(update={"workers": scaling.workers * recipe.tune.concurrent + several})
    with connect(total, os.environ) as cluster:
        from ray import tune as ray_tune

        from trainfleet.training.tune.searcher import TrialRecorder, TrialSearcher

        resources = {
            "CPU": DRIVER_CPUS if several else scaling.cpus_per_worker,
            "GPU": 1.0 if scaling.use_gpu and not several else 0.0,
        }
        ray_tune.Tuner(
            ray_tune.with_resources(ray_tune.with_parameters(run_trial, storage=cluster.storage), resources),
            tune_config=ray_tune.TuneConfig(
                metric="value",
                mode=recipe.tune.mode,
                num_samples=recipe.tune.trials - search.done(),
                search_alg=TrialSearcher(search),
                scheduler=_scheduler(recipe),
                max_concurrent_trials=recipe.tune.concurrent,
            ),
            run_config=ray_tune.RunConfig(
                name="search",
                storage_path=cluster.storage,
                callbacks=[TrialRecorder(search, send)],
                verbose=0,
            ),
        ).fit()
    return len(search.trials)


def run_trial(config: dict[str, Any], storage: str) -> None:
    """Train one trial in a Ray Tune actor and report each validation. Tune stops it by raising in
    `report`.
    """
    from ray import tune as ray_tune

    recipe = Recipe.model_validate(config["recipe"])
    for count, (step, value) in enumerate(
        follow(
            recipe,
            Path(config["run_dir"]),
            config["metric"],
            lambda: _train(recipe, config["run_dir"], storage),
        )
    ):
        ray_tune.report({"value": value, "step": step, "validations": count + 1})


def follow(
    recipe: Recipe, run_dir: Path, metric: str, train: Callable[[], Any]
) -> Iterator[tuple[int, float]]:
    """Train in a thread and yield step and metric of each validation, first those of earlier starts.

    Raises:
        TrainfleetError: raised by the training.
    """
    ended: list[BaseException] = []

    def run() -> None:
        try:
            train()
        except BaseException as error:  # noqa: BLE001 - raised again below, in the caller's thread
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True, name=f"train-{recipe.name}")
    thread.start()
    last_step = 0
    while True:
        alive = thread.is_alive()  # checked before reading, or the last rows could be missed
        for row in read_rows(run_dir).of("validation"):
            if row["step"] > last_step and metric in row:
                last_step = row["step"]
                yield last_step, float(row[metric])
        if not alive:
            break
        thread.join(POLL_INTERVAL_S)
    if ended:
        raise ended[0]


def _train(recipe: Recipe, run_dir: str, storage: str) -> None:
    """Train a trial from its newest checkpoint, in this process or with Ray Train."""
    if recipe.scaling.workers > 1:
        from trainfleet.training.runtime.ray_cluster import RayCluster
        from trainfleet.training.worker import work_under_ray

        document = {"recipe": recipe.model_dump(mode="json"), "run_dir": run_dir, "watch": False, "env": {}}
        RayCluster(own=True, storage=storage).train(work_under_ray, document, recipe.scaling)
        return
    from trainfleet.training.trainer.context import RunContext
    from trainfleet.training.trainer.loop import train

    train(recipe, RunContext(Path(run_dir), device="cuda:0" if recipe.scaling.use_gpu else "cpu"))


def _scheduler(recipe: Recipe) -> Any:
    from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

    assert recipe.tune is not None
    # NOTE: a Ray Train trial that Tune stops early keeps its placement group: its controller is killed, and
    # Ray's cleanup needs a dashboard, which our own Ray lacks. The next trial would wait forever, so trials
    # with
    # several workers are never stopped early.
    if recipe.tune.scheduler == "none" or recipe.scaling.workers > 1:
        return FIFOScheduler()  # type: ignore[no-untyped-call]  # ray is typed in part
    longest = -(-recipe.steps // recipe.validation.every) if recipe.steps is not None else MAX_VALIDATIONS
    grace = min(recipe.tune.grace, longest)
    # one more than there are, or the last validation would stop a trial before its test and last checkpoint
    return ASHAScheduler(
        time_attr="validations", max_t=longest + 1, grace_period=grace, reduction_factor=recipe.tune.reduction
    )


def _require_packages(sampler: str) -> None:
    """Require the packages that the search needs."""
    from importlib.util import find_spec

    required = {"ray": "train", "torch": "train", **({"optuna": "tune"} if sampler == "optuna" else {})}
    problems = [
        Problem(
            name,
            "is not installed",
            f"pip install 'trainfleet[{extra}]'{', or tune.sampler=random' if name == 'optuna' else ''}",
        )
        for name, extra in required.items()
        if find_spec(name) is None
    ]
    if problems:
        raise MissingToolError("packages for a search are missing", problems)


def folder_of(recipe: Recipe) -> Path:
    """Folder of a search: STORAGE/NAME-tune.

    Raises:
        InputError: the storage is an object store.
    """
    from trainfleet.training.stores import is_remote

    if is_remote(recipe.storage):
        raise InputError(
            "a search needs a local folder",
            [Problem("storage", f"`{recipe.storage}` is an object store", "--storage DIR")],
        )
    return recipe.run_dir().with_name(f"{recipe.name}-tune").absolute()
