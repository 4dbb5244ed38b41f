"""Which targets the platforms need, and to which repositories they are pushed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainfleet.errors import InputError, Problem
from trainfleet.images.dockerfile import TARGETS
from trainfleet.images.registry import split_repository
from trainfleet.infra.outputs.contract import PlatformOutputs
from trainfleet.suggestions import did_you_mean
from trainfleet.training.launch.platform_outputs import NamedPlatform

OF_FABRIC = {"efa": "efa", "infiniband": "infiniband"}
"""The target with the libraries of a fabric. Those of GKE's fabrics come from its nodes."""


@dataclass(frozen=True)
class Destination:
    """A repository, the platforms whose nodes pull from it, and what they need.

    Attributes:
        repository: `HOST/PATH`.
        platforms: their names; empty for a repository of `--registry`.
        targets: of images/Dockerfile.
        named: the images that these platforms use unless a launch names another.
    """

    repository: str
    platforms: tuple[str, ...]
    targets: tuple[str, ...]
    named: tuple[str, ...]


def target_for(outputs: PlatformOutputs) -> str:
    """The target that serves all pools of a platform. Those with a fabric's libraries also run without it.

    Raises:
        InputError: the pools have two fabrics that no target serves together.
    """
    fabrics = {OF_FABRIC[pool.rdma]: pool.name for pool in outputs.pools if pool.rdma in OF_FABRIC}
    if len(fabrics) > 1:
        pools = ", ".join(f"{name} ({target})" for target, name in fabrics.items())
        fix = "--target NAME, and --image for the launches on each pool"
        raise InputError("no target serves all pools", [Problem(outputs.name, pools, fix)])
    return next(iter(fabrics), "cuda" if outputs.pools else "cpu")


def targets_for(given: Sequence[str], platforms: Sequence[NamedPlatform]) -> tuple[str, ...]:
    """The given targets, else those that the platforms need.

    Raises:
        InputError: a target does not exist, or neither is given.
    """
    if wrong := [each for each in given if each not in TARGETS]:
        problems = [
            Problem(f"--target {each}", "is not a target", did_you_mean(each, TARGETS)) for each in wrong
        ]
        raise InputError("unknown target", problems)
    found = given or [target_for(each.outputs) for each in platforms]
    if not found:
        fix = f"--target {'|'.join(TARGETS)}, or --stack OUTPUTS.json"
        raise InputError("no target is named", [Problem("--target", "is missing", fix)])
    return tuple(dict.fromkeys(found))


def destinations(
    platforms: Sequence[NamedPlatform], registries: Sequence[str], targets: Sequence[str]
) -> list[Destination]:
    """The repositories of the platforms, then those of `--registry`, which get all targets.

    Raises:
        InputError: none is named, one is not written as HOST/PATH, or a platform has none.
    """
    problems = [
        Problem(str(each.source), "this platform has no registry", "--registry HOST/REPOSITORY")
        for each in platforms
        if not each.outputs.registry and not registries
    ]
    if not platforms and not registries:
        fix = "--stack OUTPUTS.json, or --registry HOST/REPOSITORY"
        problems.append(Problem("--stack", "is missing", fix))
    if problems:
        raise InputError("no registry is named", problems)
    found = []
    for name in dict.fromkeys([*(each.outputs.registry for each in platforms), *registries]):
        if not name:
            continue
        split_repository(name)
        users = [each for each in platforms if each.outputs.registry == name]
        own = targets or [target_for(each.outputs) for each in users]
        needed = targets_for(targets, platforms) if name in registries else own
        named = [each.outputs.image for each in platforms if each in users or not each.outputs.registry]
        names = tuple(each.outputs.name for each in users)
        found.append(Destination(name, names, tuple(dict.fromkeys(needed)), tuple(named)))
    return found
