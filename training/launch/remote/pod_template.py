"""The user's changes of a run's pods: strategic merge patches of the pod templates of the head and of the
workers, from the stack, its pool, the recipe and the file of `--pod-template`, applied in this order as by
`kubectl patch`. Pure, except for reading the file.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainfleet import yaml_limits
from trainfleet.errors import InputError, Problem
from trainfleet.infra.outputs.contract import PlatformOutputs, PoolOutput
from trainfleet.pod_patches import CONTAINER, DIRECTIVE, MERGE_KEYS, patch_problems
from trainfleet.training.recipe.schema import PodTemplate

END_S = 60
"""What a pod and its node may take after the grace period."""
_PULL_SECRETS = "imagePullSecrets"
Document = dict[str, Any]
Patches = tuple[Document, ...]


@dataclass(frozen=True)
class PodTemplates:
    """The patches of a run, in the order in which they are applied."""

    head: Patches = ()
    workers: Patches = ()
    of_run: tuple[str, ...] = ()
    """Where the run itself, and not only its platform, changes the pods: `pod_template`, `--pod-template`."""


def of_platform(outputs: PlatformOutputs, pool: PoolOutput | None) -> Patches:
    """The platform's patches of the pods that train: those of every run, then those of the pool."""
    own = pool.pod_template if pool is not None else {}
    return tuple(each for each in (outputs.pod_template.workers, own) if each)


def collect(
    outputs: PlatformOutputs, pool: PoolOutput | None, recipe: PodTemplate, file: str | None
) -> PodTemplates:
    """The patches of the platform, of the pool that trains, of the recipe and of the file.

    Raises:
        InputError: the file cannot be read, or has mistakes: all of them.
    """
    stack, option = outputs.pod_template, load(file)
    of_run = {"pod_template": recipe.head or recipe.workers, "--pod-template": file}
    return PodTemplates(
        tuple(head for head in (stack.head, recipe.head, option.head) if head),
        (*of_platform(outputs, pool), *(each for each in (recipe.workers, option.workers) if each)),
        tuple(name for name, changes in of_run.items() if changes),
    )


def load(file: str | None) -> PodTemplate:
    """The patches in a file; none without a file.

    Raises:
        InputError: it cannot be read, or has mistakes: all of them.
    """
    if file is None:
        return PodTemplate()
    try:
        document = yaml_limits.load(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = str(getattr(error, "strerror", None) or error).splitlines()[0]
        raise InputError("cannot read the pod template", [Problem(file, reason)]) from error
    problems = list(patch_problems(document))
    if problems:
        found = [Problem(f"{file}: {each.where}".rstrip(": "), each.what, each.fix) for each in problems]
        raise InputError("mistakes in the pod template", found)
    return PodTemplate(head=document.get("head") or {}, workers=document.get("workers") or {})


def with_patches(template: Document, patches: Sequence[Document], container: str) -> Document:
    """A pod template with all patches, one after the other."""
    for patch in patches:
        template = merged(template, patch, container)
    return template


def merged(template: Document, patch: Document, container: str) -> Document:
    """A pod template with a patch of the file.

    Args:
        template: metadata and spec; not changed.
        patch: the same, as the user wrote it.
        container: the name that CONTAINER has in the template.
    """
    renamed = copy.deepcopy(patch)
    for each in (renamed.get("spec") or {}).get("containers") or []:
        if each["name"] == CONTAINER:
            each["name"] = container
    return dict(_merged(template, renamed))


def for_check(patches: Sequence[Document]) -> Patches:
    """The part of the workers' patches that decides whether an image starts and user code can be imported:
    pull secrets, volumes and variables, without sidecars, resources and the choice of nodes.
    """
    return tuple(_for_check(patch) for patch in patches)


def _for_check(patch: Document) -> Document:
    spec = patch.get("spec") or {}
    containers = [
        {key: each[key] for key in ("name", "env", "envFrom", "volumeMounts") if key in each}
        for each in spec.get("containers") or []
        if each["name"] == CONTAINER
    ]
    kept = {key: spec[key] for key in (_PULL_SECRETS, "volumes", "serviceAccountName") if key in spec}
    return {"spec": kept | ({"containers": containers} if containers else {})}


def pull_secrets(templates: PodTemplates) -> Document:
    """The pull secrets of the head and of the workers, for the spec of another pod with their image."""
    found = {
        each["name"]: each
        for patches in (templates.head, templates.workers)
        for each in with_patches({"spec": {}}, for_check(patches), CONTAINER)["spec"].get(_PULL_SECRETS) or ()
    }
    return {_PULL_SECRETS: list(found.values())} if found else {}


def grace_seconds(patches: Sequence[Document], default: int) -> int:
    """How long the pod may take to end: the last patch that says so decides."""
    given = [(patch.get("spec") or {}).get("terminationGracePeriodSeconds") for patch in patches]
    return int(next((each for each in reversed(given) if each is not None), default))


def stop_seconds(patches: Sequence[Document], at_least: float) -> float:
    """How long a launcher waits for pods that are asked to save and end: longer than the pods may take."""
    return max(at_least, grace_seconds(patches, 0) + END_S)


def _merged(base: Any, patch: Any, key: str = "") -> Any:
    if isinstance(patch, dict) and isinstance(base, dict) and patch.get(DIRECTIVE) != "replace":
        found = dict(base)
        for name, value in patch.items():
            if value is None:
                found.pop(name, None)
            elif name != DIRECTIVE:
                found[name] = _merged(found.get(name), value, name)
        return found
    if isinstance(patch, list) and key in MERGE_KEYS:
        return _merged_list(base or [], patch, MERGE_KEYS[key])
    if isinstance(patch, dict):
        return _merged({}, {name: value for name, value in patch.items() if name != DIRECTIVE})
    return copy.deepcopy(patch)


def _merged_list(base: list[Any], patch: list[Any], key: str) -> list[Any]:
    found = list(base)
    for item in patch:
        place = next((number for number, each in enumerate(found) if each.get(key) == item.get(key)), None)
        if item.get(DIRECTIVE) == "delete":
            found = [each for each in found if each.get(key) != item.get(key)]
        elif place is None:
            found.append(_merged({}, item))
        else:
            found[place] = _merged(found[place], item)
    return found
