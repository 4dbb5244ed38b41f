"""`--on sky`: the recipe as a SkyPilot task on the clusters of one or several platforms, tried best first.

Used by `training.launch.start`. What is here imports no SkyPilot, which takes seconds: the process that `command` names does.
Easy to get wrong: all tries of a run must keep it in one storage, whose keys pods in another cloud do not have by themselves.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainfleet.errors import InputError, MissingToolError, Problem
from training import events
from training.launch.sky.plan import Plan, Speed, Wishes, make_plan
from training.launch.sky.task import Wanted, cluster_name, left_out, task_document
from training.recipe import Recipe

if TYPE_CHECKING:
    from infra.contract import PlatformOutputs
    from training.launch.platform import Place
    from training.launch.start import Request

VERSION = "0.14.1"
"""The SkyPilot that configuration and tasks are written for and were tried with."""
TASK_FILE = "sky.json"
"""In the launch's work folder: what `training.launch.sky.drive` is to do."""


def check(recipe: Recipe) -> None:
    """Refuse what cannot work before anything starts.

    Raises:
        MissingToolError: SkyPilot is not here, or in another version.
        InputError: the run would be kept on the pods' own disks.
    """
    need_skypilot()
    if not recipe.storage.startswith(("s3://", "gs://", "az://", "file:///", "/")):
        what = f"`{recipe.storage}` is a folder of this machine, and pods have disks of their own, which end with them"
        raise InputError("the run would be lost", [Problem("storage", what, "--storage s3://..., or --stack with a platform's bucket")])


def need_skypilot() -> None:
    """See that SkyPilot is here, without importing it.

    Raises:
        MissingToolError: it is not, or in a version that differs where it matters.
    """
    install = f"pip install 'skypilot[kubernetes]=={VERSION}'"
    try:
        found = metadata.version("skypilot")
    except metadata.PackageNotFoundError as error:
        raise MissingToolError("SkyPilot is not installed here", [Problem("skypilot", "is not here", install)]) from error
    if found.split(".")[:2] != VERSION.split(".")[:2]:
        what = f"is {found}, and what is written for it here is for {VERSION}"
        raise MissingToolError("SkyPilot has another version", [Problem("skypilot", what, install)])


def named(places: Sequence[Place]) -> list[tuple[str, PlatformOutputs]]:
    """Each platform by the name under which a plan shows it: its file's, or its stack's."""
    return [(place.file.stem if place.file.suffix == ".json" else place.file.name, place.outputs) for place in places]


def wishes_of(options: Mapping[str, Any]) -> Wishes:
    """What the command line said of places and prices."""
    keys = ("nodes", "spot", "prices", "parameters", "gpus")
    return Wishes(**{key: options[key] for key in keys if options.get(key) is not None})


def planned(request: Request, recipe: Recipe) -> tuple[Plan, dict[str, PlatformOutputs]]:
    """The plan of a launch and its platforms.

    Raises:
        InputError: nowhere to run; says why not, of every pool.
    """
    from training.launch.stacks import load_stacks

    platforms = named(load_stacks(request.stacks))
    speed = request.options.get("speed")
    plan = make_plan(recipe, platforms, wishes_of(request.options), speed if isinstance(speed, Speed) else None)
    if not plan.possible:
        problems = [Problem(f"{each.platform}/{each.pool}".rstrip("/"), "; ".join(each.refusals)) for each in plan.refused]
        raise InputError("no platform can run this recipe", problems)
    return plan, dict(platforms)


def document_of(request: Request, recipe: Recipe, env: Mapping[str, str]) -> tuple[dict[str, Any], Plan, dict[str, PlatformOutputs]]:
    """The task of a launch, with its plan and platforms.

    Raises:
        InputError: nowhere to run, or a secret that is not in the environment.
    """
    plan, platforms = planned(request, recipe)
    names = request.options.get("secrets") or ()
    if missing := [name for name in names if name not in env]:
        problems = [Problem(f"--secret {name}", "is not set here", f"export {name}=...") for name in missing]
        raise InputError("a secret is missing", problems)
    wanted = Wanted(
        name=recipe.name,
        managed=bool(request.options.get("managed")),
        token=secrets.token_hex(32),
        secrets={name: env[name] for name in names},
        settings={events.ALLOW_CHANGES: ",".join(request.allow_changes)} if request.allow_changes else {},
    )
    return task_document(recipe, plan.possible, platforms, wanted), plan, platforms


def prepare(request: Request, recipe: Recipe, work: Path) -> None:
    """Write what the process of `command` is to do.

    Raises:
        InputError: nowhere to run.
    """
    document, plan, platforms = document_of(request, recipe, os.environ)
    contexts = {each.context: platforms[each.platform].namespace for each in plan.possible}
    order = {
        "task": document,
        "cluster": cluster_name(recipe.name),
        "run": recipe.name,
        "managed": bool(request.options.get("managed")),
        "detach": request.detach,
        "contexts": contexts,
        "left_out": [f"{each.platform}/{each.pool}" for each in left_out(plan.possible)],
    }
    file = work / TASK_FILE
    file.touch(mode=0o600)
    file.write_text(json.dumps(order), encoding="utf-8")


def command(recipe: Recipe, file: Path) -> list[str]:  # noqa: ARG001 - the siblings have the same arguments
    """The command that has SkyPilot run the recipe, and tells here what it says there."""
    return [sys.executable, "-m", "training.launch.sky.drive", str(file.with_name(TASK_FILE))]
