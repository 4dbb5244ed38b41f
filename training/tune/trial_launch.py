"""What a trial is launched with, and what a search needs before its first trial."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import yaml

from trainfleet.errors import MissingToolError, Problem
from trainfleet.training.launch.base import find
from trainfleet.training.launch.request import Request
from trainfleet.training.launch.supervise import prepare
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runtime import local_resources
from trainfleet.training.tune.search import Search, Trial, run_name


def trial_request(search: Search, request: Request, trial: Trial) -> Request:
    """The launch of a trial."""
    values = [f"{key}={_yaml(value)}" for key, value in trial.values.items()]
    overrides = (*request.overrides, "tune=null", *values)
    return replace(request, overrides=overrides, run=trial.run, storage=search.runs, json=True, fresh=False)


def _yaml(value: Any) -> str:
    """A value as YAML in one line. JSON would not do: YAML reads its 1e-05 as text."""
    text = yaml.safe_dump(value, default_flow_style=True, width=float("inf"))
    return text.removesuffix("...\n").strip()


def _on_this_machine(on: str) -> bool:
    """Whether trials share this machine by themselves, without a Ray cluster that assigns CPUs and GPUs."""
    return not find(on).remote and not (on == "local" and os.environ.get("RAY_ADDRESS"))


def devices(recipe: Recipe, on: str, slot: int) -> dict[str, str]:
    """The GPUs of a trial on this machine, where several train at once."""
    scaling = recipe.scaling
    if not scaling.use_gpu or not _on_this_machine(on):
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    known = visible.split(",") if visible else [str(number) for number in range(local_resources.gpus())]
    return {"CUDA_VISIBLE_DEVICES": ",".join(known[slot * scaling.workers : (slot + 1) * scaling.workers])}


def require_machine(search: Search, request: Request) -> None:
    """Check the launch of a trial as far as that starts nothing.

    Raises:
        InputError: this machine, or the launcher, cannot run it.
    """
    name = run_name(search.recipe.name, len(search.trials))
    first = trial_request(search, request, Trial(len(search.trials), {}, run=name))
    prepare(first, os.environ)
    if _on_this_machine(request.on):
        scaling, reserved = search.recipe.scaling, search.recipe.data_loading.reserved_cpus
        workers = scaling.workers * search.tune.concurrent
        local_resources.require(scaling.model_copy(update={"workers": workers}), reserved)


def require_packages(search: Search) -> None:
    """Require the packages that the search needs on this machine."""
    from importlib.util import find_spec

    without = {"sampler": "random", "scheduler": "none"}
    used = [key for key, value in without.items() if getattr(search.tune, key) != value]
    if used and find_spec("optuna") is None:
        others = " and ".join(f"tune.{key}={without[key]}" for key in used)
        problem = Problem("optuna", "is not installed", f"pip install 'trainfleet[tune]', or {others}")
        raise MissingToolError("packages for a search are missing", [problem])
