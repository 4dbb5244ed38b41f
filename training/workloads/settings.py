"""The base of every workload's settings, and the lookup of workloads by `workload.name`.

A name is a built-in workload, an entry point of the group `trainfleet.workloads`, or `module:Class`, which is
also searched in the current folder. The built-in settings do not import torch, so recipe checks are fast;
only
the class of a user's workload is imported to read its recipe.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from trainfleet import compat
from trainfleet.console import EXTRAS, install_hint
from trainfleet.errors import InputError, Problem
from trainfleet.suggestions import did_you_mean
from trainfleet.training.workloads.base import Workload, adapt

ENTRY_POINT_GROUP = "trainfleet.workloads"
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
"""The built-in workloads by name: the settings class and the workload class."""

BrokenRule = tuple[str, str, str]
"""The recipe keys that a broken rule reads (separated by blanks), what is wrong, and the fix."""
Broken = BrokenRule  # deprecated alias, for one release


class Section(BaseModel):
    """A group of recipe keys; rejects unknown keys and is immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


Part = Section  # deprecated alias, for one release


class LoraSettings(Section):
    """Low-rank adaptation of a pretrained model (Hu et al. 2021): its own weights stay as they are."""

    rank: int = Field(8, ge=1, description="Rank of the added matrices.")
    alpha: float = Field(16.0, gt=0, description="What is learnt counts alpha/rank times.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout rate.")
    targets: tuple[str, ...] = Field(
        (), description="Linear layers by name, such as q_proj; empty: all but the head."
    )


class ShardingView(Protocol):
    """The `sharding` section, as a workload's rules see it."""

    @property
    def meta_init(self) -> bool | Literal["auto"]: ...


class BatchView(Protocol):
    """The `batch` section, as a workload's rules see it."""

    @property
    def global_batch(self) -> int: ...

    @property
    def micro_batch(self) -> int: ...


class RecipeView(Protocol):
    """The part of a recipe that a workload's rules may read; `trainfleet.training.recipe` is above this
    module.
    """

    @property
    def seed(self) -> int: ...

    @property
    def strategy(self) -> str: ...

    @property
    def precision(self) -> str: ...

    @property
    def batch(self) -> BatchView: ...

    @property
    def sharding(self) -> ShardingView: ...

    @property
    def workload(self) -> WorkloadSettings: ...


@dataclass(frozen=True)
class RawData:
    """A folder, file or URL that a workload reads."""

    where: str
    glob: str = "**/*"
    columns: tuple[str, ...] = ()
    """Columns that a table must have."""
    strict: bool = True
    """Whether a row that cannot be used ends the run."""
    key: str = "workload.data.source"
    """The recipe's key of `where`."""


class WorkloadSettings(Section):
    """The value of `workload:`; each workload defines a subclass.

    Attributes:
        metric_names: metrics of a validation besides `loss`, which `checkpoint.metric` may name.
    """

    metric_names: ClassVar[tuple[str, ...]] = ()
    name: str

    def check_recipe(self, recipe: RecipeView) -> Iterable[BrokenRule]:  # noqa: ARG002 - for subclasses
        """Broken rules between these settings and the rest of the recipe."""
        return ()

    def reads_weights(self) -> bool:
        """Whether the model is one of `StoredWeights`, whose weights are in files: `sharding.meta_init: auto`
        then means true, where the files allow it.
        """
        return False

    def raw_data(self) -> Iterable[RawData]:
        """The data that the workload reads. It is opened before a run on a cluster requests GPUs."""
        return ()

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Honour the names of the previous release in a user's settings."""
        super().__pydantic_init_subclass__(**kwargs)
        for old, new in (("figures", "metric_names"), ("broken", "check_recipe")):
            if old in cls.__dict__ and new not in cls.__dict__:
                text = f"{cls.__module__}.{cls.__qualname__}.{old} is deprecated; rename it to `{new}`"
                warnings.warn(text, DeprecationWarning, stacklevel=2)
                setattr(cls, new, cls.__dict__[old])


def names() -> list[str]:
    """The names of the built-in workloads and of those of installed packages."""
    return [*OWN, *(name for name in _entry_points() if name not in OWN)]


def settings_of(name: str) -> type[WorkloadSettings]:
    """The settings class of a workload.

    Raises:
        InputError: there is no such workload, its class has no `Settings`, or it lacks required members.
    """
    if name in OWN:
        found: type[WorkloadSettings] = _import_class(OWN[name][0])
        return found
    workload = _user_class(name)
    settings = getattr(workload, "Settings", None)
    if not (isinstance(settings, type) and issubclass(settings, WorkloadSettings)):
        base = f"{WorkloadSettings.__module__}.{WorkloadSettings.__name__}"
        what = f"`{name}` has no class `Settings` derived from {base}"
        problem = Problem("workload.name", what, "see docs/add-a-workload.md")
        raise InputError("the workload has no settings", [problem])
    adapt(workload)  # reports an incomplete workload with the recipe's other mistakes
    return settings


def workload_of(name: str) -> Callable[..., Workload]:
    """The class of a workload, to be called with its settings and a cache folder.

    Raises:
        InputError: there is no such workload, or it lacks required members.
    """
    if name not in OWN:
        return adapt(_user_class(name))
    own: type[Workload] = _import_class(OWN[name][1])
    return own


def _user_class(name: str) -> type:
    if ":" in name:
        address = name
    elif name in _entry_points():
        address = _entry_points()[name]
    else:
        what = f"`{name}` is not a built-in workload, a workload of an installed package, or a module:Class"
        raise InputError("workload not found", [Problem("workload.name", what, did_you_mean(name, names()))])
    return _import_class(address)


@functools.cache
def _entry_points() -> dict[str, str]:
    return {each.name: each.value for each in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)}


def _import_class(address: str) -> type:
    """The class at `module:Class`.

    Raises:
        InputError: the module or the class does not exist, or the module fails.
    """
    module_name, _, name = address.partition(":")
    try:
        module = _import_module(module_name)
    except ImportError as error:
        missing = getattr(error, "name", None) or module_name
        if module_name == missing or module_name.startswith(f"{missing}."):
            fix = "module:Class, from an installed package or a file in the current folder"
            problem = Problem("workload.name", f"`{address}` cannot be imported: {error}", fix)
        else:
            extra = EXTRAS.get(missing.partition(".")[0])
            fix = (
                install_hint(extra)
                if extra
                else "install it here, where the recipe is checked, and in the image of other machines"
            )
            problem = Problem(_raised_at(error), f"importing `{module_name}` failed: {error}", fix)
        raise InputError("workload not found", [problem]) from error
    except Exception as error:
        what = f"importing `{module_name}` failed: {type(error).__name__}: {error}"
        raise InputError("the workload fails", [Problem(_raised_at(error), what)]) from error
    found = vars(module).get(name)
    if not isinstance(found, type):
        classes = sorted(
            each
            for each, value in vars(module).items()
            if isinstance(value, type) and value.__module__ == module_name
        )
        what = f"`{module_name}` has no class `{name}`"
        raise InputError("workload not found", [Problem("workload.name", what, did_you_mean(name, classes))])
    return found


def _raised_at(error: Exception) -> str:
    """The file and line of the user's code that raised an error while it was imported."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith("<")]
    return f"{frames[-1].filename}:{frames[-1].lineno}"


def _import_module(name: str) -> Any:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ImportError(f"`{name}` is not a valid module name")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(
            here
        )  # permanently: for later imports of the file and processes that prepare its data
    compat.install()
    if not name.startswith("trainfleet."):
        # Must precede a user's own import of torchmetrics, or every worker imports transformers too.
        importlib.import_module("trainfleet.training.trainer.torchmetrics_compat")
    return importlib.import_module(name)
