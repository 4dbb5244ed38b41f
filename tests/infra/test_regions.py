"""Where machines are offered, their regional prices, and machines whose facts the spec states."""

from __future__ import annotations

from typing import Any

import pytest

from trainfleet.infra.catalog.cost import node_costs
from trainfleet.infra.catalog.machines import catalogue, machine_for_pool, sells_machines
from trainfleet.infra.catalog.regions import at, known_in, offered_in, regions
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.spec.schema import Capacity, GpuPool, PlatformSpec

CLOUDS = [cloud for cloud in Cloud if sells_machines(cloud)]
FACTS = {"vcpu": 96, "memory_gib": 768, "gpu_memory_gib": 80, "usd_per_hour": 12.5}


def machine(instance_type: str) -> Any:
    (found,) = [each for each in catalogue() if each.instance_type == instance_type]
    return found


def platform(cloud: str, region: str, **pool: Any) -> PlatformSpec:
    pools = [{"name": "pool", **pool}]
    return PlatformSpec.model_validate(
        {"name": "demo", "cloud": cloud, "region": region, "owner": "a@example.com", "gpu_pools": pools}
    )


@pytest.mark.parametrize("cloud", CLOUDS)
def test_every_row_is_about_a_machine_of_the_catalogue(cloud: Cloud) -> None:
    table = regions(cloud)
    names = {each.instance_type for each in catalogue() if each.cloud is cloud}
    assert table.source
    assert table.date
    assert {*(table.offered or {}), *(table.on_demand or {})} <= names


@pytest.mark.parametrize("cloud", CLOUDS)
def test_the_price_of_a_machine_is_that_of_its_region_where_both_files_have_one(cloud: Cloud) -> None:
    """The two files come from different snapshots, so a price may differ slightly, never by a factor."""
    for name, prices in (regions(cloud).on_demand or {}).items():
        there, here = prices.get(machine(name).price_region), machine(name).usd_per_hour_on_demand
        if there is not None and here is not None:
            assert here == pytest.approx(there, rel=0.01), name


def test_a_machine_is_known_in_its_regions_and_where_nothing_is_known() -> None:
    b300 = machine("p6-b300.48xlarge")
    assert "us-west-2" in offered_in(b300)
    assert [known_in(b300, region) for region in ("us-west-2", "eu-west-3", "xx-new-1")] == [
        True,
        False,
        True,
    ]
    assert known_in(machine("a4-highgpu-8g"), "europe-west9")  # machine_zones.py checks it


def test_a_cost_is_that_of_the_region() -> None:
    def price(region: str, **more: Any) -> tuple[float | None, str]:
        costs = node_costs(platform("azure", region, accelerator="T4", **more))
        found = costs.pools[-1]
        return found.usd_per_hour, found.machine.price_region

    assert price("eastus") == (0.526, "eastus")
    dearer, where = price("southcentralus")
    assert (dearer, where) == (pytest.approx(0.526 * 1.2, rel=0.01), "southcentralus")
    assert at(machine("g6.xlarge"), "eu-west-1", Capacity.ON_DEMAND).price_region == "us-east-1"


def test_a_pool_that_states_facts_gets_that_machine() -> None:
    pool = GpuPool.model_validate(
        {"name": "new", "accelerator": "B400", "per_node": 4, "instance_type": "p9.metal", "machine": FACTS}
    )
    found = machine_for_pool(Cloud.AWS, pool)
    assert (found.instance_type, found.accelerator, found.accelerators_per_node) == ("p9.metal", "B400", 4)
    assert (found.vcpu, found.memory_gib, found.gpu_memory_gib, found.rdma) == (96, 768, 80, "none")
    assert found.usd_per_hour(Capacity.SPOT) == 12.5
    assert found.declared


def test_the_facts_of_a_pool_count_in_the_cost() -> None:
    spec = platform(
        "aws",
        "us-east-2",
        accelerator="B400",
        per_node=4,
        instance_type="p9.metal",
        machine=FACTS,
        max_nodes=2,
    )
    assert node_costs(spec).pools[-1].usd_per_hour == 12.5
