"""The entry point that every launcher starts: `python -m trainfleet.training.run RECIPE`.

Its input is a recipe, RAY_ADDRESS and TRAINFLEET_* variables, the same on a laptop, in a KubeRay job and in a
SkyPilot task. Started by torchrun (RANK is set) it is one worker; otherwise it drives Ray Train. Runs resume
from
their own checkpoints: Ray gets none, and its storage is discarded.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from trainfleet.console import print_error
from trainfleet.errors import TrainfleetError
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.storage import checkpoints_url
from trainfleet.training.runtime import code_archive
from trainfleet.training.runtime.code_archive import CODE, CODE_FOLDER
from trainfleet.training.runtime.events import (
    ALLOW_CHANGES,
    EVENTS,
    JOB,
    LAUNCH,
    NOTIFIED_LAUNCH,
    PARENT,
    RUN_DIR,
    STDOUT,
    STOP_FILE,
    SUBMITTED,
    USD_PER_HOUR,
    notified_launch,
)
from trainfleet.training.runtime.imports import without_collections
from trainfleet.training.worker import send_error, work, work_under_ray

PASSED_ON = (STOP_FILE, ALLOW_CHANGES, USD_PER_HOUR, CODE, CODE_FOLDER, JOB)
"""Variables of the driver that the workers of Ray Train get."""


def drive_ray(recipe: Recipe, run_dir: Path, env: Mapping[str, str]) -> None:
    """Train on the Ray cluster of RAY_ADDRESS, or on a new local one.

    Raises:
        InputError: the cluster has too few CPUs or GPUs for the recipe's workers.
        TrainfleetError: the workers failed more often than `scaling.restarts` allows.
    """
    from trainfleet.training.notifications import notify_failure
    from trainfleet.training.runtime.ray_cluster import connect
    from trainfleet.training.runtime.ray_events import to_stdout

    def report(event: Mapping[str, Any]) -> None:
        text = error_text(event)
        notify_failure(recipe, run_dir, notified_launch(env), env, text=text, on_dropped=_warn)

    with (
        connect(recipe.scaling, env, recipe.data_loading) as cluster,
        to_stdout(report) if env.get(EVENTS) == STDOUT else nullcontext(env.get(EVENTS)) as listener,
    ):
        cluster.require(recipe.scaling, recipe.data_loading)
        cluster.train(
            work_under_ray,
            {
                "recipe": recipe.model_dump(mode="json"),
                "run_dir": str(run_dir),
                "watch": not cluster.own,
                "standby": recipe.scaling.standby and recipe.scaling.restarts > 0,
                "env": {key: env[key] for key in PASSED_ON if key in env}
                | ({EVENTS: listener} if listener else {})
                | {
                    LAUNCH: env.get(LAUNCH) or secrets.token_hex(8),
                    NOTIFIED_LAUNCH: notified_launch(env),
                },
            },
            recipe.scaling,
            checkpoints_url(recipe, run_dir),
        )


def error_text(event: Mapping[str, Any]) -> str:
    """An event `error` as one line."""
    return "; ".join([str(event["summary"]), *(f"{where}: {what}" for where, what, _ in event["problems"])])


def _warn(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m trainfleet.training.run", description="Train a recipe; every launcher starts this."
    )
    parser.add_argument("recipe", help="a YAML file, or the name of an included recipe")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    options = parser.parse_args(arguments)
    env = os.environ
    run: tuple[Recipe, Path] | None = None
    if PARENT in env:
        from trainfleet.process import die_with

        die_with(int(env[PARENT]))
    try:
        code_archive.use(env.get(CODE), env.get(CODE_FOLDER))
        with without_collections():
            recipe = load_recipe(options.recipe, options.overrides, env)
        run_dir = Path(env.get(RUN_DIR) or recipe.run_dir()).absolute()
        run = recipe, run_dir
        if "RANK" in env:
            work(recipe, run_dir, env)
        else:
            drive_ray(recipe, run_dir, env)
    except TrainfleetError as error:
        print_error(error)
        if run is not None and "RANK" not in env and SUBMITTED not in env:
            from trainfleet.training.notifications import notify_failure

            text = " ".join(str(error).split())
            notify_failure(*run, notified_launch(env), env, text=text, on_dropped=_warn)
        send_error(env, error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
