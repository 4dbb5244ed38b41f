"""Iteration over the node groups of GPU pools with the paths of the pools, for the rules of every cloud."""

from __future__ import annotations

from collections.abc import Iterator

from trainfleet.infra.catalog.machines import Machine, machine_for_pool, sells_machines
from trainfleet.infra.spec.node_group import NodeGroup
from trainfleet.infra.spec.node_groups import groups_of
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.pydantic_messages import Path

CLOUD: Path = ("cloud",)


def pools(spec: PlatformSpec) -> Iterator[tuple[Path, NodeGroup]]:
    """Every node group and the path of its pool."""
    for index, pool in enumerate(spec.gpu_pools):
        for group in groups_of(spec, pool):
            yield ("gpu_pools", index), group


def pools_with_machine(spec: PlatformSpec) -> Iterator[tuple[Path, NodeGroup, Machine]]:
    """Every node group whose machine is known. Another rule reports the others."""
    if not sells_machines(spec.cloud):
        return
    for path, pool in pools(spec):
        try:
            yield path, pool, machine_for_pool(spec.cloud, pool)
        except LookupError:
            continue


def machine_choice(path: Path) -> tuple[Path, ...]:
    """The values that decide which machine a pool gets."""
    names = ("accelerator", "per_node", "instance_type", "machine", "capacity", "interconnect", "kind")
    return (CLOUD, *((*path, name) for name in names))


def capacity_choice(path: Path) -> tuple[Path, ...]:
    """The values that decide how a pool's nodes are bought."""
    return (CLOUD, (*path, "capacity"))
