"""Runs where a run is checked, such as the pod of a workload check: fetches the run's code, imports its
workload, validates the recipe with the workload's settings, writes to the run's storage, and reads the first
row of its data. A prediction does not read the data of the training.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from trainfleet import process
from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.training.launch.remote.ray_job import FILES_FOLDER, RECIPE_FILE
from trainfleet.training.runtime import code_archive
from trainfleet.training.runtime.code_archive import CODE
from trainfleet.training.runtime.events import JOB, PARENT, STDOUT, EventSink
from trainfleet.training.runtime.subprocess_jobs import send_error
from trainfleet.training.stores import RetryPolicy, is_remote, open_store

STORE_TRIES = 3
"""Attempts of a request to the storage. A permission that is missing stays missing."""
OWN_FOLDER = str(Path(code_archive.__file__).parents[1])
LIBRARIES = ("<", OWN_FOLDER, sys.prefix, sys.base_prefix)
"""Where code starts that is not the user's."""


def validate(env: Mapping[str, str]) -> None:
    """Do what every worker of the run does first.

    Raises:
        TrainfleetError: the code, the workload, the recipe, the storage or the data is not usable in this
            image.
    """
    code_archive.use(env.get(CODE))
    # NOTE: these import user code, so the import path must be set before.
    from trainfleet.training.data.first_row import check_first_row
    from trainfleet.training.inference.job import Job
    from trainfleet.training.recipe.load import load_recipe
    from trainfleet.training.workloads.settings import workload_of

    file = Path(env[FILES_FOLDER]) / RECIPE_FILE
    # First, because its error has the user's traceback; in the recipe's errors it is one of many.
    workload_of(yaml.safe_load(file.read_text(encoding="utf-8"))["workload"]["name"])
    recipe = load_recipe(file)
    with _new_folders_removed(recipe.home_url()):
        open_store(recipe.home_url(), RetryPolicy(attempts=STORE_TRIES)).probe()
    job = env.get(JOB)
    if job and Job.model_validate_json(job).task == "predict":
        return
    for data in recipe.workload.raw_data():
        check_first_row(data)


@contextlib.contextmanager
def _new_folders_removed(home: str) -> Iterator[None]:
    """Remove the empty folders that the block creates on the way to a run's folder."""
    folder = Path(home.removeprefix("file://"))
    new = [] if is_remote(home) else [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # not empty: the run of another launch
            for each in new:
                each.rmdir()


def user_frames(error: BaseException | None) -> list[Problem]:
    """The lines of the user's code that led to an error, outermost first."""
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    return [
        Problem(f"{each.filename}:{each.lineno}", f"in {each.name}: {each.line}")
        for each in frames
        if not each.filename.startswith(LIBRARIES)
    ]


def main() -> int:
    """Entry point: an error is printed as an event, for the launcher. Returns the exit code."""
    if PARENT in os.environ:
        process.die_with(int(os.environ[PARENT]))
    sink = EventSink(STDOUT)
    try:
        validate(os.environ)
    except TrainfleetError as error:
        problems = [*error.problems, *user_frames(error.__cause__)]
        return send_error(sink, type(error)(error.summary, problems))
    except Exception as error:  # noqa: BLE001 - user code may raise anything
        problems = [Problem("", f"{type(error).__name__}: {error}"), *user_frames(error)]
        return send_error(sink, InputError("the workload fails", problems))
    return 0


if __name__ == "__main__":
    sys.exit(main())
