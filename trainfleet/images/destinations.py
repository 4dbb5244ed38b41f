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
    """A repository, and the platforms that it serves.

    Attributes:
        repository: `HOST/PATH`.
        platforms: those whose registry it is; all for a repository of `--registry`.
    """

    repository: str
    platforms: tuple[NamedPlatform, ...]

    @property
    def names(self) -> list[str]:
        """The names of the platforms."""
        return [each.outputs.name for each in self.platforms]

    def targets(self, given: Sequence[str]) -> tuple[str, ...]:
        """The given targets, else those that its platforms need (`targets_for`)."""
        return targets_for(given, self.platforms)


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


def destinations(platforms: Sequence[NamedPlatform], registries: Sequence[str]) -> list[Destination]:
    """The repositories of the platforms, then those of `--registry`.

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
    own = [each.outputs.registry for each in platforms if each.outputs.registry]
    served = {name: tuple(each for each in platforms if each.outputs.registry == name) for name in own}
    served |= {name: tuple(platforms) for name in registries}
    for name in served:
        split_repository(name)
    return [Destination(name, those) for name, those in served.items()]
