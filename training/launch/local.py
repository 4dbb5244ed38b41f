"""`--on local`: Ray on this machine, started and stopped with the run; or the Ray of RAY_ADDRESS if that is
set.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from trainfleet.training.launch.base import Launcher
from trainfleet.training.launch.control import RunControl, RunRef
from trainfleet.training.launch.options import LaunchOptions
from trainfleet.training.launch.request import Target
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runtime import local_resources


class Local(Launcher[LaunchOptions]):
    """Ray on this machine."""

    options_model = LaunchOptions

    def check(self, recipe: Recipe, target: Target) -> None:  # noqa: ARG002 - the base class's signature
        """Reject more workers than this machine holds. What another Ray has is known once connected."""
        if not os.environ.get("RAY_ADDRESS"):
            local_resources.require(recipe.scaling, recipe.data_loading.reserved_cpus)

    def command(self, recipe: Recipe, file: Path, target: Target) -> list[str]:  # noqa: ARG002
        """The command that trains the recipe in `file`."""
        return [sys.executable, "-m", "trainfleet.training.run", str(file)]

    def control(self, ref: RunRef) -> RunControl:
        """Through the run's folder and its launcher's process."""
        from trainfleet.training.launch.local_control import LocalControl

        return LocalControl(ref)
