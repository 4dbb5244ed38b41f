"""`trainfleet tune`: a search over recipes by Ray Tune; a trial is one run of the step loop, by Ray Train
where it has several workers.

Used by the command line; what to try next and what was best is `trainfleet.training.tune.search`'s. Easy to
get wrong: a trial's checkpoints are its
run's own, so a killed search goes on with them and Ray is told nothing; and a trial that breaks must not end
the others.
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
LOOK_EVERY_S = 0.1
MOST_VALIDATIONS = 10_000
DRIVER_CPUS = 0.01
"""Of a trial that only waits for its workers; Ray wants it to ask for something."""


def tune(recipe: Recipe, folder: Path, hear: Callable[[Mapping[str, Any]], Any]) -> Search:
    """Search, from where an earlier start left it, and return all trials. `hear` is told of each trial's
    validations and end.

    Raises:
        InputError: the folder holds another search.
        TrainfleetError: no trial came to a figure.
        Interrupted: Ctrl-C; the same command goes on.
    """
    from trainfleet.training.runtime import local_resources, subprocess_jobs

    search = Search(recipe, folder)
    assert recipe.tune is not None
    if search.unfinished() or len(search.trials) < recipe.tune.trials:
        _need(recipe.tune.sampler)
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
            again="run the same command again to go on",
        )
        search = Search(recipe, folder)
    if search.best() is None:
        problems = [
            Problem(f"trial {each.number}", each.error or "has no figure") for each in search.trials[:5]
        ]
        raise TrainfleetError("no trial came to a figure", problems)
    return search


def work(job: Mapping[str, Any], send: Callable[..., Any]) -> int:
    """All of it, in the process that drives Ray; returns how many trials there were."""
    from trainfleet.training.runtime.ray_cluster import connect

    recipe, folder = Recipe.model_validate(job["recipe"]), Path(job["folder"])
    search = Search(recipe, folder)
    assert recipe.tune is not None
    scaling = recipe.scaling
    os.environ["TUNE_DISABLE_STRICT_METRIC_CHECKING"] = "1"  # a trial may break before its first validation
    several = scaling.workers > 1
    room = scaling.model_copy(
        update={"workers": scaling.workers * recipe.tune.concurrent + several}
    )  # one more for those that wait for workers
    with connect(room, os.environ) as cluster:
        from ray import tune as ray_tune

        from trainfleet.training.tune.searcher import Notes, Proposals

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
                search_alg=Proposals(search),
                scheduler=_scheduler(recipe),
                max_concurrent_trials=recipe.tune.concurrent,
            ),
            run_config=ray_tune.RunConfig(
                name="search", storage_path=cluster.storage, callbacks=[Notes(search, send)], verbose=0
            ),
        ).fit()
    return len(search.trials)


def run_trial(config: dict[str, Any], storage: str) -> None:
    """One trial, in an actor of Ray Tune's: train, and report each validation. Ends early by an exception
    that Tune raises in `report`.
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
    """Train in a thread, and give each validation's step and metric as it comes; what an earlier start
    measured comes first.

    Raises:
        TrainfleetError: what the training raised.
    """
    ended: list[BaseException] = []

    def run() -> None:
        try:
            train()
        except BaseException as error:  # noqa: BLE001 - raised again below, in the thread that asked
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True, name=f"train-{recipe.name}")
    thread.start()
    told = 0
    while True:
        alive = thread.is_alive()  # before the rows are read, or the last ones could be missed
        for row in read_rows(run_dir).of("validation"):
            if row["step"] > told and metric in row:
                told = row["step"]
                yield told, float(row[metric])
        if not alive:
            break
        thread.join(LOOK_EVERY_S)
    if ended:
        raise ended[0]


def _train(recipe: Recipe, run_dir: str, storage: str) -> None:
    """Train a trial from its newest checkpoint: in this process, or by Ray Train on workers of their own."""
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
    # A trial by Ray Train that Tune ends early keeps its workers' places (its controller is killed, and Ray's
    # cleaner asks a dashboard
    # that a Ray of our own lacks), so the next would wait for ever: with several workers every trial goes to
    # its end.
    if recipe.tune.scheduler == "none" or recipe.scaling.workers > 1:
        return FIFOScheduler()  # type: ignore[no-untyped-call]  # ray is typed in part
    longest = -(-recipe.steps // recipe.validation.every) if recipe.steps is not None else MOST_VALIDATIONS
    grace = min(recipe.tune.grace, longest)
    # one more than there are, or the last validation would end a trial before its test and its last
    # checkpoint
    return ASHAScheduler(
        time_attr="validations", max_t=longest + 1, grace_period=grace, reduction_factor=recipe.tune.reduction
    )


def _need(sampler: str) -> None:
    """Refuse before anything starts what cannot end well here."""
    from importlib.util import find_spec

    wanted = {"ray": "train", "torch": "train", **({"optuna": "tune"} if sampler == "optuna" else {})}
    problems = [
        Problem(
            name,
            "is not installed",
            f"pip install 'trainfleet[{extra}]'{', or tune.sampler=random' if name == 'optuna' else ''}",
        )
        for name, extra in wanted.items()
        if find_spec(name) is None
    ]
    if problems:
        raise MissingToolError("a search needs more than is installed", problems)


def folder_of(recipe: Recipe) -> Path:
    """Where a search is kept: STORAGE/NAME-tune.

    Raises:
        InputError: the storage is an object store.
    """
    from trainfleet.training.stores import is_remote

    if is_remote(recipe.storage):
        raise InputError(
            "a search is kept in a folder",
            [Problem("storage", f"`{recipe.storage}` is an object store", "--storage DIR")],
        )
    return recipe.run_dir().with_name(f"{recipe.name}-tune").absolute()
