"""`--on torchrun`: the same loop on this machine without Ray, under torch's elastic agent."""

from __future__ import annotations

import sys
from pathlib import Path

from trainfleet.training.launch.base import Launcher
from trainfleet.training.launch.control import RunControl, RunRef
from trainfleet.training.launch.options import LaunchOptions
from trainfleet.training.launch.request import Target
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.storage import checkpoints_url
from trainfleet.training.runtime import local_resources
from trainfleet.training.runtime.ray_cluster import needs_ray


class Torchrun(Launcher[LaunchOptions]):
    """torch's elastic agent: for a GPU machine without Ray, for Slurm, and to measure what Ray costs."""

    options_model = LaunchOptions

    def check(self, recipe: Recipe, target: Target) -> None:  # noqa: ARG002 - the base class's signature
        """Reject more workers than this machine holds, and what needs Ray."""
        if recipe.data_loading.processes:
            raise needs_ray("`--on torchrun` starts no Ray")
        local_resources.require(recipe.scaling)

    def command(self, recipe: Recipe, file: Path, target: Target) -> list[str]:
        """The command that trains the recipe in `file`."""
        scaling, checkpoints = recipe.scaling, checkpoints_url(recipe, target.run_dir)
        agent = [sys.executable, "-m", "trainfleet.training.launch.torchrun_agent"]
        return [*agent, str(scaling.workers), str(scaling.restarts), checkpoints, str(file)]

    def control(self, ref: RunRef) -> RunControl:
        """Through the run's folder and its launcher's process."""
        from trainfleet.training.launch.local_control import LocalControl

        return LocalControl(ref)
