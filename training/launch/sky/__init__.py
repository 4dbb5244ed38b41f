"""`--on sky`: the recipe as a SkyPilot task on the clusters of one or several platforms, tried best first.

Used by `trainfleet.training.launch.supervise`. What is here imports no SkyPilot, which takes seconds: the
process that `command` names does.
Easy to get wrong: all tries of a run must keep it in one storage, whose keys pods in another cloud do not
have by themselves.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainfleet.errors import InputError, MissingToolError, Problem, TrainfleetError
from trainfleet.training.launch.external_cluster import bare_platform
from trainfleet.training.launch.remote.storage_env import authority, refuse_unreachable, variables
from trainfleet.training.launch.sky.configure import config_path
from trainfleet.training.launch.sky.plan import Plan, Wishes, make_plan
from trainfleet.training.launch.sky.pods import trouble
from trainfleet.training.launch.sky.server import wake
from trainfleet.training.launch.sky.task import Wanted, cluster_name, left_out, redacted, task_document
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runtime import events

if TYPE_CHECKING:
    from trainfleet.infra.outputs.contract import PlatformOutputs
    from trainfleet.training.launch.platform_outputs import Place
    from trainfleet.training.launch.request import Target

VERSION = "0.14.1"
"""The SkyPilot that configuration and tasks are written for and were tried with."""
TASK_FILE = "sky.json"
"""In the launch's work folder: what `trainfleet.training.launch.sky.follow` is to do."""


AFAR = True
GRACE_S = 180.0
"""Asked to stop, the pods finish their step, upload a checkpoint, and are taken down."""


def check(recipe: Recipe, target: Target) -> None:
    """Refuse what cannot work before anything starts.

    Raises:
        MissingToolError: SkyPilot is not here, or in another version.
        InputError: nowhere to run, or the run would be kept on the pods' own disks.
    """
    need_skypilot()
    refuse_unreachable(recipe.storage, os.environ)
    document_of(recipe, target, os.environ)


def render(recipe: Recipe, target: Target) -> str:
    """The task as YAML, as SkyPilot's own parser has taken it; secrets are hidden.

    Raises:
        MissingToolError: SkyPilot is not here.
        InputError: nowhere to run.
    """
    import yaml

    need_skypilot()
    document, plan, _ = document_of(recipe, target, os.environ)
    parse(document)
    return "".join(f"# not among them: {each}\n" for each in left_out(plan)) + yaml.dump(
        redacted(document), Dumper=_block_dumper(), sort_keys=False, width=150
    )


def parse(document: Mapping[str, Any]) -> Any:
    """The `sky.Task` of a document.

    Raises:
        TrainfleetError: SkyPilot refuses it.
    """
    import copy

    import sky

    try:
        return sky.Task.from_yaml_config(copy.deepcopy(dict(document)))
    except Exception as error:
        raise TrainfleetError(f"SkyPilot refuses the task: {str(error).splitlines()[0]}") from error


def need_skypilot() -> None:
    """See that SkyPilot is here, without importing it.

    Raises:
        MissingToolError: it is not, or in a version that differs where it matters.
    """
    install = f"pip install 'skypilot[kubernetes]=={VERSION}'"
    try:
        found = metadata.version("skypilot")
    except metadata.PackageNotFoundError as error:
        raise MissingToolError(
            "SkyPilot is not installed here", [Problem("skypilot", "is not here", install)]
        ) from error
    if found.split(".")[:2] != VERSION.split(".")[:2]:
        what = f"is {found}, and what is written for it here is for {VERSION}"
        raise MissingToolError("SkyPilot has another version", [Problem("skypilot", what, install)])


def named(places: Sequence[Place]) -> list[tuple[str, PlatformOutputs]]:
    """Each platform by the name under which a plan shows it: its file's, or its stack's."""
    return [
        (place.file.stem if place.file.suffix == ".json" else place.file.name, place.outputs)
        for place in places
    ]


def wishes_of(options: Mapping[str, Any], pool: str | None = None) -> Wishes:
    """What the command line said of places and prices."""
    keys = ("nodes", "spot", "prices", "parameters", "gpus")
    return Wishes(pool=pool, **{key: options[key] for key in keys if options.get(key) is not None})


def platforms_of(target: Target) -> list[tuple[str, PlatformOutputs]]:
    """The platforms of a launch: those of `--stack`, or the cluster of `--context`.

    Raises:
        InputError: neither is given.
    """
    request = target.request
    if target.places:
        return named(target.places)
    if request.context is None:
        fix = "--stack OUTPUTS.json (several, if you like), or --context NAME --namespace NS --image REF --storage URL"
        raise InputError("no platform is named", [Problem("--stack", "is missing", fix)])
    if request.image is None:
        raise InputError(
            "what should the pods run?",
            [Problem("--image", "is missing with --context", "an image with this Trainfleet, Ray and torch")],
        )
    return [
        (
            request.context,
            bare_platform(
                request.context, request.namespace or "default", request.image, request.storage or ""
            ),
        )
    ]


def document_of(
    recipe: Recipe, target: Target, env: Mapping[str, str]
) -> tuple[dict[str, Any], Plan, dict[str, PlatformOutputs]]:
    """The task of a launch, with its plan and platforms.

    Raises:
        InputError: nowhere to run (says why not, of every pool), or a secret that is not in the environment.
    """
    request, options = target.request, target.request.options
    platforms = platforms_of(target)
    if request.image is not None:
        platforms = [
            (name, outputs.model_copy(update={"image": request.image})) for name, outputs in platforms
        ]
    keys = options.get("secrets") or options.get("from_secrets")
    plan = make_plan(
        recipe,
        platforms,
        replace(wishes_of(options, request.pool), storage=None if keys else recipe.home_url()),
    )
    if not plan.possible:
        problems = [
            Problem(f"{each.platform}/{each.pool}".rstrip("/"), "; ".join(each.refusals))
            for each in plan.refused
        ]
        raise InputError("no platform can run this recipe", problems)
    names = options.get("secrets") or ()
    if missing := [name for name in names if name not in env]:
        raise InputError(
            "a secret is missing",
            [Problem(f"--secret {name}", "is not set here", f"export {name}=...") for name in missing],
        )
    wanted = Wanted(
        name=recipe.name,
        managed=bool(options.get("managed")),
        token=secrets.token_hex(32),
        secrets={name: env[name] for name in names},
        settings=variables(env)
        | ({events.ALLOW_CHANGES: ",".join(request.allow_changes)} if request.allow_changes else {}),
        authority=authority(env),
        from_secrets=tuple(options.get("from_secrets") or ()),
    )
    return task_document(recipe, plan.possible, dict(platforms), wanted), plan, dict(platforms)


def command(recipe: Recipe, file: Path, target: Target) -> list[str]:
    """The command that has SkyPilot run the recipe, and tells here what it says there."""
    document, plan, platforms = document_of(recipe, target, os.environ)
    order: dict[str, Any] = {
        "task": document,
        "cluster": cluster_name(recipe.name),
        "run": recipe.name,
        "managed": bool(target.request.options.get("managed")),
        "detach": target.request.detach,
        "within_s": target.request.within_s,
        "contexts": {each.context: platforms[each.platform].namespace for each in plan.possible},
        "left_out": left_out(plan),
    }
    if any(trouble(context, namespace) is None for context, namespace in order["contexts"].items()):
        wake(
            os.environ, config_path(os.environ)
        )  # before the launcher adopts what its processes leave: the server must outlive it
    task = file.with_name(TASK_FILE)
    task.touch(mode=0o600)
    task.write_text(json.dumps(order), encoding="utf-8")
    return [sys.executable, "-m", "trainfleet.training.launch.sky.follow", str(task)]


def _block_dumper() -> Any:
    """A YAML writer that shows scripts line by line."""
    import yaml

    class Blocks(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the same toleration of two pools is no reason for anchors
            return True

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Blocks.add_representer(str, text)
    return Blocks
