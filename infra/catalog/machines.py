"""The machine catalogue: which machine serves an accelerator and count, with its fabric and dated prices.

Each cloud lists its machines in infra/<cloud>/machines.toml, one [[machine]] per row. An unknown figure is
left out, never 0. Columns:

    accelerator       SkyPilot's name; left out for CPU machines
    gpu_memory_gib    per GPU; as the EC2 API reports it on AWS, nominal elsewhere
    network_gbps      AWS: baseline with EFA; GCP: maximum with RDMA; Azure: without InfiniBand
    rdma_nics         EFA interfaces (AWS), GPU data interfaces (GCP), InfiniBand adapters (Azure)
    local_nvme_gb     in 10^9 bytes; 0 = none; left out = a temporary disk of unstated kind
    usd_per_hour_*    whole machine, Linux, list price; AWS spot is the median over the zones of price_region
    price_date        of the on-demand price; left out if the source has no date
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import MISSING, dataclass, fields
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from trainfleet.infra.clouds import Cloud
from trainfleet.infra.spec.schema import Capacity, GpuPool, MachineFacts, PlatformSpec, Rdma

CLOUDS_FOLDER = Path(__file__).parents[1]
HYPERPOD_PREFIX = "ml."
SYSTEM_SIZES = ("small", "medium", "large")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One machine of a cloud. Prices are for the whole machine; memory is per GPU."""

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
    declared: bool = False
    """Whether the spec states the facts, not the catalogue."""

    @property
    def skypilot_label(self) -> str | None:
        """Value of `skypilot.co/accelerator`: the lower-case accelerator name (SkyPilot skips upper case).

        Karpenter labels both A100s `a100`, which hides the 80 GB ones from SkyPilot. No platform runs
        Karpenter.
        """
        return self.accelerator.lower() if self.accelerator else None

    @property
    def kind(self) -> Literal["nodes", "hyperpod"]:
        """The kind of pool it serves. SageMaker sells EC2's machines under its own names and prices."""
        return "hyperpod" if self.instance_type.startswith(HYPERPOD_PREFIX) else "nodes"

    def usd_per_hour(self, capacity: Capacity) -> float | None:
        """The spot price for spot pools, else the on-demand price. None = unknown."""
        return self.usd_per_hour_spot if capacity is Capacity.SPOT else self.usd_per_hour_on_demand


class CatalogueError(Exception):
    """Raised when a machines.toml is invalid. This is a bug, so it ends in a traceback."""


def machines_file(cloud: Cloud) -> Path:
    """The file that lists a cloud's machines."""
    return CLOUDS_FOLDER / cloud / "machines.toml"


@cache
def sells_machines(cloud: Cloud) -> bool:
    """Whether the cloud has machines of its own. Without, pools are nodes of an existing cluster."""
    return machines_file(cloud).is_file()


@cache
def catalogue() -> tuple[Machine, ...]:
    """The machines of all clouds. Read once per process."""
    return tuple(
        machine
        for cloud in Cloud
        if sells_machines(cloud)
        for machine in read_catalogue(machines_file(cloud).read_text(encoding="utf-8"))
    )


def read_catalogue(text: str) -> tuple[Machine, ...]:
    """Read and check the text of a machines.toml.

    Raises:
        CatalogueError: an unknown, missing or mistyped column, or a duplicate machine.
    """
    machines = tuple(_machine(row) for row in tomllib.loads(text)["machine"])
    seen: set[tuple[Cloud, str]] = set()
    for machine in machines:
        key = (machine.cloud, machine.instance_type)
        if key in seen:
            raise CatalogueError(f"{machine.cloud} {machine.instance_type} is listed twice")
        seen.add(key)
    return machines


def machines_of(
    cloud: Cloud, accelerator: str | None = None, per_node: int | None = None, *, kind: str = "nodes"
) -> tuple[Machine, ...]:
    """The GPU machines of a cloud for one kind of pool, filtered by accelerator and count."""
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
    """The machine of a GPU pool: its `instance_type`, or the cheapest with this accelerator and count.

    A pool with `interconnect: best` gets a machine with RDMA if there is one. Nodes of an existing cluster
    have no instance type, RDMA or price, and 0 for unknown figures. A pool that states its machine's facts
    gets that machine.

    Raises:
        LookupError: the catalogue has no such machine. Validation reports this before any resource exists.
    """
    if not sells_machines(cloud):
        return _existing_machine(cloud, pool)
    if pool.machine is not None:
        return _declared_machine(cloud, pool, pool.machine)
    found = machines_of(cloud, pool.accelerator, pool.per_node, kind=pool.kind)
    if pool.instance_type:
        found = tuple(machine for machine in found if machine.instance_type == pool.instance_type)
    if not found:
        requested = f" as {pool.instance_type}" if pool.instance_type else ""
        seller = "HyperPod" if pool.kind == "hyperpod" else cloud
        machine = f"{pool.per_node} x {pool.accelerator}{requested}"
        raise LookupError(f"no machine with {machine} is in this catalogue of {seller}")

    def rank(machine: Machine) -> tuple[bool, float]:
        price = machine.usd_per_hour(pool.preferred)
        return (pool.interconnect == "best" and machine.rdma == "none", math.inf if price is None else price)

    return min(found, key=rank)


def system_machine(spec: PlatformSpec) -> Machine:
    """The CPU machine of the system pool: size small, medium, large = the 1st, 2nd, 3rd CPU row of the cloud
    by vCPU.

    Raises:
        LookupError: the catalogue has none.
    """
    found = sorted(
        (m for m in catalogue() if m.cloud is spec.cloud and m.accelerator is None), key=lambda m: m.vcpu
    )
    if len(found) < len(SYSTEM_SIZES):
        raise LookupError(f"{spec.cloud} has no machines for a system pool")
    return found[SYSTEM_SIZES.index(spec.system_pool.size)]


def _declared_machine(cloud: Cloud, pool: GpuPool, facts: MachineFacts) -> Machine:
    """The machine whose facts the spec states."""
    return Machine(
        cloud=cloud,
        instance_type=pool.instance_type,
        accelerator=pool.accelerator,
        accelerators_per_node=pool.per_node,
        gpu_memory_gib=facts.gpu_memory_gib,
        vcpu=facts.vcpu,
        memory_gib=facts.memory_gib,
        network_gbps=facts.network_gbps,
        rdma=facts.rdma,
        rdma_nics=facts.rdma_nics,
        local_nvme_gb=facts.local_nvme_gb,
        usd_per_hour_on_demand=facts.usd_per_hour,
        usd_per_hour_spot=facts.usd_per_hour,
        price_region="",
        source="the spec",
        declared=True,
    )


def _existing_machine(cloud: Cloud, pool: GpuPool) -> Machine:
    """The nodes of an existing cluster, of which only the GPUs are known."""
    known = [machine.gpu_memory_gib for machine in catalogue() if machine.accelerator == pool.accelerator]
    return Machine(
        cloud=cloud,
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
_COLUMNS = {field.name: field.default is MISSING for field in fields(Machine) if field.name != "declared"}


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
