"""The ways to start a run, by the name that `--on` takes. A way is a module with `check(recipe, target)` and
`command(recipe, file, target)`.

Used by `trainfleet.training.launch.supervise`, which does what all of them share (folder, lock, events,
ending). The only part of
`training` that may read `trainfleet.infra.outputs.contract`.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from trainfleet.errors import InputError, Problem
from trainfleet.suggestions import did_you_mean
from trainfleet.training.recipe.schema import Recipe

if TYPE_CHECKING:
    from trainfleet.training.launch.request import Target

LAUNCHERS = {
    "local": "trainfleet.training.launch.local",
    "torchrun": "trainfleet.training.launch.torchrun",
    "kuberay": "trainfleet.training.launch.kuberay",
    "sky": "trainfleet.training.launch.sky",
    "ray-up": "trainfleet.training.launch.ray_up",
}


class Launcher(Protocol):
    """One way to start a run. One whose processes run on other machines sets AFAR, so that what they wrote is
    fetched from the run's
    storage, and may have GRACE_S, the seconds in which a run that is asked to stop must have ended."""

    def check(self, recipe: Recipe, target: Target) -> None:
        """Refuse what this place cannot run, before anything starts."""

    def command(self, recipe: Recipe, file: Path, target: Target) -> list[str]:
        """The command that trains `recipe`, which also stands resolved in `file`."""


class Printable(Launcher, Protocol):
    """A way that can show what it would hand to somebody else to run."""

    def render(self, recipe: Recipe, target: Target) -> str:
        """What `--print` shows; nothing is started."""


def find(name: str) -> Launcher:
    """The way to start a run that `--on NAME` asks for.

    Raises:
        InputError: no such way.
    """
    if name not in LAUNCHERS:
        raise InputError(
            "no such place to run", [Problem("--on", f"`{name}` is not known", did_you_mean(name, LAUNCHERS))]
        )
    return cast("Launcher", importlib.import_module(LAUNCHERS[name]))
