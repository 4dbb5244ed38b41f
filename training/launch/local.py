"""`--on local`: Ray on this machine, started for the run and ended with it; or the Ray of RAY_ADDRESS if that
is set.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from trainfleet.training.launch.request import Target
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runtime import local_resources


def check(recipe: Recipe, target: Target) -> None:  # noqa: ARG001 - the siblings have the same arguments
    """Refuse what this machine cannot run; what a cluster has is only known once connected.

    Raises:
        InputError: fewer CPUs or GPUs than the workers need.
    """
    if not os.environ.get("RAY_ADDRESS"):
        local_resources.require(recipe.scaling)


def command(recipe: Recipe, file: Path, target: Target) -> list[str]:  # noqa: ARG001 - the siblings have the same arguments
    """The command that trains the recipe in `file`."""
    return [sys.executable, "-m", "trainfleet.training.run", str(file)]
