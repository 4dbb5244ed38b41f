"""The machine catalogue: accelerator and count to instance type, memory, RDMA kind, SkyPilot label and dated price.

Rows live in machines.toml (one `[[machine]]` each, all three clouds). Easy to get wrong: `gpu_memory_gib` is per GPU;
`network_gbps` is counted differently by each cloud; a missing price is None, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Literal

from infra.spec import Cloud, GpuPool, PlatformSpec

Rdma = Literal["none", "efa", "gpudirect-tcpx", "gpudirect-tcpxo", "roce", "infiniband"]


@dataclass(frozen=True)
class Machine:
    cloud: Cloud
    instance_type: str
    accelerator: str | None
    accelerators_per_node: int
    gpu_memory_gib: float
    vcpu: int
    memory_gib: float
    network_gbps: float | None
    rdma: Rdma
    rdma_nics: int
    local_nvme_gb: float | None
    usd_per_hour_on_demand: float | None
    usd_per_hour_spot: float | None
    price_region: str
    price_date: date | None
    source: str

    @property
    def skypilot_label(self) -> str | None:
        """Value of `skypilot.co/accelerator`: the lower-case accelerator name (SkyPilot skips upper case)."""
        raise NotImplementedError


def catalogue() -> tuple[Machine, ...]:
    """All rows of machines.toml, in its order. Read once per process."""
    raise NotImplementedError


def machine_for_pool(cloud: Cloud, pool: GpuPool) -> Machine:
    """The machine of a GPU pool: its `instance_type`, or the cheapest with this accelerator and count (with RDMA if wished).

    Raises:
        LookupError: the cloud sells no such machine (`infra.rules` reports this before any resource exists).
    """
    raise NotImplementedError


def system_machine(spec: PlatformSpec) -> Machine:
    """The CPU machine of the system pool: size small, medium, large = the 1st, 2nd, 3rd CPU row of the cloud by vCPU."""
    raise NotImplementedError
