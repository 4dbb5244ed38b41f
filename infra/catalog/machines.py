"""The machine catalogue: accelerator and count to instance type, memory, RDMA kind, SkyPilot label and dated
price.

Rows live in machines.toml (one `[[machine]]` each, all three clouds). Easy to get wrong: `gpu_memory_gib` is
per GPU;
`network_gbps` is counted differently by each cloud; a missing price is None, never zero.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import MISSING, dataclass, fields
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from trainfleet.infra.spec.schema import Capacity, Cloud, GpuPool, PlatformSpec

Rdma = Literal["none", "efa", "gpudirect-tcpx", "gpudirect-tcpxo", "roce", "infiniband"]

CATALOGUE_FILE = Path(__file__).with_name("machines.toml")
HYPERPOD_PREFIX = "ml."
SYSTEM_SIZES = ("small", "medium", "large")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One machine that a cloud sells. Prices are for the whole machine; memory is per GPU."""

    cloud: Cloud
    instance_type: str
    accelerator: str | None = None
    accelerators_per_node: int
    gpu_memory_gib: float = 0.0
    vcpu: int
    memory_gib: float
    network_gbps: float | None = None
    rdma: Rdma
    rdma_nics: int
    local_nvme_gb: float | None = None
    usd_per_hour_on_demand: float | None = None
    usd_per_hour_spot: float | None = None
    price_region: str
    price_date: date | None = None
    source: str

    @property
    def skypilot_label(self) -> str | None:
        """Value of `skypilot.co/accelerator`: the lower-case accelerator name (SkyPilot skips upper case).

        That Karpenter calls both A100s `a100`, and SkyPilot then never finds the 80 GB ones, cannot happen
        here: no platform runs Karpenter,
        and every context is told to SkyPilot as `generic` or `gke`.
        """
        return self.accelerator.lower() if self.accelerator else None

    @property
    def kind(self) -> Literal["nodes", "hyperpod"]:
        """Which kind of pool it serves: SageMaker's machines are EC2's under names of their own, with a
        contract and prices of their own.
        """
        return "hyperpod" if self.instance_type.startswith(HYPERPOD_PREFIX) else "nodes"

    def usd_per_hour(self, capacity: Capacity) -> float | None:
        """The list price under this capacity: the spot price for spot pools, else the on-demand price. None =
        not known.
        """
        return self.usd_per_hour_spot if capacity is Capacity.SPOT else self.usd_per_hour_on_demand


class CatalogueError(Exception):
    """Raised when machines.toml itself is wrong: a mistake of ours, so a traceback is right."""


@cache
def catalogue() -> tuple[Machine, ...]:
    """All rows of machines.toml, in its order. Read once per process."""
    return read_catalogue(CATALOGUE_FILE.read_text(encoding="utf-8"))


def read_catalogue(text: str) -> tuple[Machine, ...]:
    """Read and check the text of a machines.toml.

    Raises:
        CatalogueError: an unknown, missing or mistyped column, or a machine named twice.
    """
    machines = tuple(_machine(row) for row in tomllib.loads(text)["machine"])
    seen: set[tuple[Cloud, str]] = set()
    for machine in machines:
        key = (machine.cloud, machine.instance_type)
        if key in seen:
            raise CatalogueError(f"{machine.cloud} {machine.instance_type} is there twice")
        seen.add(key)
    return machines


def machines_of(
    cloud: Cloud, accelerator: str | None = None, per_node: int | None = None, *, kind: str = "nodes"
) -> tuple[Machine, ...]:
    """The GPU machines of a cloud for one kind of pool, narrowed to an accelerator and a count where given."""
    return tuple(
        machine
        for machine in catalogue()
        if machine.cloud is cloud
        and machine.accelerator is not None
        and machine.kind == kind
        and (accelerator is None or machine.accelerator == accelerator)
        and (per_node is None or machine.accelerators_per_node == per_node)
    )


def machine_for_pool(cloud: Cloud, pool: GpuPool) -> Machine:
    """The machine of a GPU pool: its `instance_type`, or the cheapest with this accelerator and count (with
    RDMA if wished).

    On cloud: local, the pool's own nodes: without instance type, RDMA or price, and 0 where nothing is known.

    Raises:
        LookupError: the cloud sells no such machine (`trainfleet.infra.validation` reports this before any
        resource exists).
    """
    if cloud is Cloud.LOCAL:
        return _local_machine(pool)
    found = machines_of(cloud, pool.accelerator, pool.per_node, kind=pool.kind)
    if pool.instance_type:
        found = tuple(machine for machine in found if machine.instance_type == pool.instance_type)
    if not found:
        wish = f" as {pool.instance_type}" if pool.instance_type else ""
        seller = "HyperPod" if pool.kind == "hyperpod" else cloud
        raise LookupError(f"{seller} sells no machine with {pool.per_node} x {pool.accelerator}{wish}")

    def rank(machine: Machine) -> tuple[bool, float]:
        price = machine.usd_per_hour(pool.capacity)
        return (pool.interconnect == "best" and machine.rdma == "none", math.inf if price is None else price)

    return min(found, key=rank)


def system_machine(spec: PlatformSpec) -> Machine:
    """The CPU machine of the system pool: size small, medium, large = the 1st, 2nd, 3rd CPU row of the cloud
    by vCPU.

    Raises:
        LookupError: the cloud sells none (cloud: local has no machines of its own).
    """
    found = sorted(
        (m for m in catalogue() if m.cloud is spec.cloud and m.accelerator is None), key=lambda m: m.vcpu
    )
    if len(found) < len(SYSTEM_SIZES):
        raise LookupError(f"{spec.cloud} has no machines for a system pool")
    return found[SYSTEM_SIZES.index(spec.system_pool.size)]


def _local_machine(pool: GpuPool) -> Machine:
    """The nodes of a cluster that is already there: nothing is known of them but what the pool says of its
    GPUs.
    """
    known = [machine.gpu_memory_gib for machine in catalogue() if machine.accelerator == pool.accelerator]
    return Machine(
        cloud=Cloud.LOCAL,
        instance_type="",
        accelerator=pool.accelerator,
        accelerators_per_node=pool.per_node,
        gpu_memory_gib=min(known, default=0.0),
        vcpu=0,
        memory_gib=0.0,
        rdma="none",
        rdma_nics=0,
        price_region="",
        source="the cluster's own nodes",
    )


_TEXT = {"instance_type", "accelerator", "price_region", "source"}
_WHOLE = {"accelerators_per_node", "vcpu", "rdma_nics"}
_COLUMNS = {field.name: field.default is MISSING for field in fields(Machine)}


def _machine(row: dict[str, Any]) -> Machine:
    name = f"{row.get('cloud')} {row.get('instance_type')}"
    if unknown := row.keys() - _COLUMNS.keys():
        raise CatalogueError(f"{name}: unknown columns {sorted(unknown)}")
    if missing := {column for column, needed in _COLUMNS.items() if needed} - row.keys():
        raise CatalogueError(f"{name}: columns {sorted(missing)} are missing")
    checked = {column: _cell(name, column, value) for column, value in row.items()}
    machine = Machine(**checked)
    if (machine.accelerator is None) != (machine.accelerators_per_node == 0):
        raise CatalogueError(f"{name}: an accelerator and its count go together")
    if (machine.rdma == "none") != (machine.rdma_nics == 0):
        raise CatalogueError(f"{name}: an RDMA kind and its interfaces go together")
    return machine


def _cell(name: str, column: str, value: Any) -> Any:
    if column == "cloud" and value in list(Cloud):
        return Cloud(value)
    if column == "rdma" and value in get_args(Rdma):
        return value
    if column == "price_date" and isinstance(value, date):
        return value
    if column in _TEXT and isinstance(value, str) and value:
        return value
    if column in _WHOLE and isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    numeric = _COLUMNS.keys() - _TEXT - _WHOLE - {"cloud", "rdma", "price_date"}
    if (
        column in numeric
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and (value > 0 or column == "local_nvme_gb")
    ):
        return float(value)
    raise CatalogueError(f"{name}: {column} cannot be {value!r}")
