"""Iteration over GPU pools with their paths, for the rules of every cloud."""

from __future__ import annotations

from collections.abc import Iterator

from trainfleet.infra.catalog.machines import Machine, machine_for_pool, sells_machines
from trainfleet.infra.spec.schema import GpuPool, PlatformSpec
from trainfleet.pydantic_messages import Path

CLOUD: Path = ("cloud",)


def pools(spec: PlatformSpec) -> Iterator[tuple[Path, GpuPool]]:
    """Every GPU pool and its path."""
    for index, pool in enumerate(spec.gpu_pools):
        yield ("gpu_pools", index), pool


def pools_with_machine(spec: PlatformSpec) -> Iterator[tuple[Path, GpuPool, Machine]]:
    """Every pool whose machine is known. Another rule reports the others."""
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
