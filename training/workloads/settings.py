"""What every workload's settings have in common, and how the ones that a recipe means are found by
`workload.name`.

Used by `trainfleet.training.recipe.load`. A name is one of Trainfleet's own, an entry point of the group
`trainfleet.workloads`, or `module:Class`
(the current folder is looked in too). Easy to get wrong: Trainfleet's own settings import no torch, so that
checks are quick;
only the class of someone else's workload is imported to read a recipe.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict

from trainfleet.errors import InputError, Problem
from trainfleet.suggestions import did_you_mean

if TYPE_CHECKING:
    from trainfleet.training.recipe.load import Recipe

GROUP = "trainfleet.workloads"
"""Packages name workloads in this group of entry points."""
OWN = {
    "lm": (
        "trainfleet.training.workloads.lm.settings:LmSettings",
        "trainfleet.training.workloads.lm.workload:LanguageModel",
    ),
    "speech": (
        "trainfleet.training.workloads.speech.settings:SpeechSettings",
        "trainfleet.training.workloads.speech.workload:Speech",
    ),
    "vision": (
        "trainfleet.training.workloads.vision.settings:VisionSettings",
        "trainfleet.training.workloads.vision.workload:Vision",
    ),
}
"""By name: the settings, and the workload."""

Broken = tuple[str, str, str]
"""A rule between fields that does not hold: the recipe's keys it reads (parted by blanks), what is wrong,
what would be right.
"""


class Part(BaseModel):
    """A group of settings; unknown keys are refused and nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class WorkloadSettings(Part):
    """What `workload:` holds; each workload has a class of its own.

    Attributes:
        figures: what a validation measures besides `loss`, for `checkpoint.metric`.
    """

    figures: ClassVar[tuple[str, ...]] = ()
    name: str

    def broken(self, recipe: Recipe) -> Iterable[Broken]:  # noqa: ARG002 - for those that have rules
        """Rules between fields, of these settings and the rest of the recipe, that do not hold."""
        return ()


def names() -> list[str]:
    """Workloads that can be named: Trainfleet's own and those of installed packages."""
    return [*OWN, *(name for name in _entry_points() if name not in OWN)]


def settings_of(name: str) -> type[WorkloadSettings]:
    """The settings of a workload.

    Raises:
        InputError: there is no such workload, or its class has no `Settings`.
    """
    if name in OWN:
        found: type[WorkloadSettings] = _found(OWN[name][0])
        return found
    settings = getattr(workload_of(name), "Settings", None)
    if not (isinstance(settings, type) and issubclass(settings, WorkloadSettings)):
        what = f"`{name}` has no class `Settings` that is a trainfleet.training.workloads.settings.WorkloadSettings"
        raise InputError(
            "a workload without settings", [Problem("workload.name", what, "see docs/add-a-workload.md")]
        )
    return settings


def workload_of(name: str) -> Callable[..., Any]:
    """The class of a workload, called with its settings and a cache folder.

    Raises:
        InputError: there is no such workload.
    """
    if name in OWN:
        address = OWN[name][1]
    elif ":" in name:
        address = name
    elif name in _entry_points():
        address = _entry_points()[name]
    else:
        what = (
            f"`{name}` is no workload of Trainfleet or of an installed package, and no module:Class of yours"
        )
        raise InputError("no such workload", [Problem("workload.name", what, did_you_mean(name, names()))])
    made: Callable[..., Any] = _found(address)
    return made


@functools.cache
def _entry_points() -> dict[str, str]:
    return {each.name: each.value for each in importlib.metadata.entry_points(group=GROUP)}


def _found(address: str) -> Any:
    """What `module:Class` names.

    Raises:
        InputError: the module or the class is not there, or cannot be imported.
    """
    module, _, name = address.partition(":")
    try:
        if not all(part.isidentifier() for part in module.split(".")):
            raise ImportError(f"`{module}` is no name of a module")
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.append(
                here
            )  # and it stays: for what the file imports later, and for processes that prepare its data
        if not address.startswith("training."):
            importlib.import_module(
                "trainfleet.training.trainer.torchmetrics_compat"
            )  # it must come before someone's plain import of torchmetrics
        held: Any = importlib.import_module(module)
    except ImportError as error:
        fix = "module:Class, of a package that is installed or of a file in the current folder"
        raise InputError(
            "no such workload", [Problem("workload.name", f"`{address}` cannot be imported: {error}", fix)]
        ) from error
    if not isinstance(getattr(held, name, None), type):
        classes = sorted(
            each
            for each, value in vars(held).items()
            if isinstance(value, type) and value.__module__ == module
        )
        raise InputError(
            "no such workload",
            [Problem("workload.name", f"`{module}` has no class `{name}`", did_you_mean(name, classes))],
        )
    return getattr(held, name)
