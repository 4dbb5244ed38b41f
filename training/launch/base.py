"""What a launcher is: one class with one options model, found by the name that `--on` takes."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from trainfleet.errors import InputError, Problem
from trainfleet.suggestions import did_you_mean
from trainfleet.training.launch.options import LaunchOptions
from trainfleet.training.launch.request import Target
from trainfleet.training.recipe.schema import Recipe

if TYPE_CHECKING:
    from trainfleet.training.launch.control import RunControl, RunRef
    from trainfleet.training.launch.remote.kubernetes import Cluster
    from trainfleet.training.launch.run_check import RunCheck
    from trainfleet.training.runs.listing import RunInfo

LAUNCHERS = {
    "local": "trainfleet.training.launch.local:Local",
    "torchrun": "trainfleet.training.launch.torchrun:Torchrun",
    "kuberay": "trainfleet.training.launch.kuberay.launcher:KubeRay",
    "sky": "trainfleet.training.launch.sky.launcher:Sky",
    "ray-up": "trainfleet.training.launch.ray_up.launcher:RayUp",
}
"""By the name that `--on` takes; each is imported when it is used."""


Options = TypeVar("Options", bound=LaunchOptions)


class Launcher(ABC, Generic[Options]):
    """One way to start a run. `supervise` does what all of them share: folder, lock, events, ending."""

    remote: ClassVar[bool] = False
    """Whether the processes run on other machines, so that what they wrote is fetched from the storage."""
    detachable: ClassVar[bool] = False
    """Whether a run continues, and ends its machines, without its launcher."""
    grace_seconds: ClassVar[float] = 600.0
    """How long a run that is asked to stop may take to save and end, if nothing else says so. 70 billion
    parameters with Adam are 840 GB. A second signal does not wait."""
    pod_roles: ClassVar[tuple[str, ...]] = ()
    """The pods that a recipe's `pod_template` can change; none: a recipe with one is rejected."""
    options_model: type[Options]

    @abstractmethod
    def check(self, recipe: Recipe, target: Target) -> None:
        """Reject what cannot run there, before anything starts.

        Raises:
            InputError: the recipe, the options or the platform do not fit.
            MissingToolError: a program, package or operator is missing.
        """

    def usd_per_hour(self, recipe: Recipe, target: Target) -> float | None:  # noqa: ARG002 - as above
        """The price of the machines that train, the lowest of those that it may get; None if unknown."""
        return None

    def grace(self, recipe: Recipe, target: Target) -> float:  # noqa: ARG002 - some launchers read it there
        """How long a run that is asked to stop may take to save and end, in seconds."""
        return self.grace_seconds

    def run_checks(self, recipe: Recipe, target: Target) -> list[RunCheck]:
        """What validates workload, storage and data where the run would train, before it starts.

        Raises:
            TrainfleetError: it would train nowhere.
        """
        from trainfleet.training.launch.run_check import on_this_machine

        return [on_this_machine(recipe, target)]

    @abstractmethod
    def command(self, recipe: Recipe, file: Path, target: Target) -> list[str]:
        """The command that trains `recipe`, which is also written to `file`, and follows it to its end."""

    def render(self, recipe: Recipe, target: Target) -> str:  # noqa: ARG002 - for launchers that override it
        """What `--print` shows: the documents that would be handed over. Starts nothing.

        Raises:
            InputError: this launcher runs on this machine and hands nothing over.
        """
        on = target.request.on
        problem = Problem("--print", f"`--on {on}` runs on this machine", "leave out --print")
        raise InputError("nothing to print", [problem])

    def control(self, ref: RunRef) -> RunControl:
        """What `trainfleet runs` does with a run of this launcher; by default through its storage only."""
        from trainfleet.training.launch.control import RunControl

        return RunControl(ref)

    def runs_in(self, cluster: Cluster) -> list[RunInfo]:  # noqa: ARG002 - for launchers that override it
        """The runs of this launcher in a namespace, also of other users.

        Raises:
            ApiError: the cluster rejects the request.
        """
        return []

    def place(self, recipe: Recipe, target: Target) -> dict[str, Any]:  # noqa: ARG002 - as above
        """What another machine needs to reach the run, such as its context; part of run.json."""
        return {}

    def options(self, target: Target) -> Options:
        """The options of the request; the defaults where it has none."""
        options = target.request.options
        if options is None:
            return self.options_model()
        if not isinstance(options, self.options_model):
            raise TypeError(f"{type(self).__name__} got {type(options).__name__}")
        return options


def find(name: str) -> Launcher[Any]:
    """The launcher that `--on NAME` selects.

    Raises:
        InputError: there is no such launcher.
    """
    if name not in LAUNCHERS:
        problem = Problem("--on", f"`{name}` is not a launcher", did_you_mean(name, LAUNCHERS))
        raise InputError("unknown launcher", [problem])
    module, _, attribute = LAUNCHERS[name].partition(":")
    launcher = getattr(importlib.import_module(module), attribute)()
    if not isinstance(launcher, Launcher):
        raise TypeError(f"{LAUNCHERS[name]} is not a Launcher")
    return launcher


def parse_options(on: str, given: Mapping[str, Any]) -> LaunchOptions:
    """The options of the launcher `on` from those that the user gave, by field name. None means not given.

    Raises:
        InputError: no such launcher, or options that it does not have: all of them, with who has them.
    """
    model = find(on).options_model
    set_options = {name: value for name, value in given.items() if value is not None}
    problems = [_unsupported(on, name) for name in set_options if name not in model.model_fields]
    if problems:
        raise InputError(f"options that --on {on} does not have", problems)
    parsed: LaunchOptions = model.model_validate(set_options)
    return parsed


def _unsupported(on: str, name: str) -> Problem:
    models = {each: find(each).options_model for each in LAUNCHERS}
    owners = {each: model for each, model in models.items() if name in model.model_fields}
    if not owners:
        raise KeyError(name)
    flag = next(iter(owners.values())).flag(name)
    what = f"`{flag}` does nothing with --on {on}; it is an option of: {', '.join(owners)}"
    return Problem("", what, f"leave it out, or use --on {next(iter(owners))}")
