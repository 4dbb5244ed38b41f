"""A pool that lists several capacities becomes a node group for each, in order, on every cloud alike."""

from __future__ import annotations

from typing import Any

import pytest

from trainfleet.errors import InputError
from trainfleet.infra.aws import layout as aws
from trainfleet.infra.azure import layout as azure
from trainfleet.infra.catalog.cost import node_costs
from trainfleet.infra.catalog.machines import machine_for_pool
from trainfleet.infra.gcp import layout as gcp
from trainfleet.infra.platform import Pool
from trainfleet.infra.program import pool_output
from trainfleet.infra.spec.load import parse_spec
from trainfleet.infra.spec.node_groups import node_groups, once_per_quota
from trainfleet.infra.spec.schema import PlatformSpec

RESERVATION = {
    "aws": "cr-0123456789abcdef0",
    "gcp": "h100",
    "azure": (
        "/subscriptions/00000000-1111-2222-3333-444444444444/resourceGroups/capacity"
        "/providers/Microsoft.Compute/capacityReservationGroups/a100"
    ),
}
PLACES = {
    "aws": {"region": "us-east-2", "kubernetes": {"access": {"public_ranges": ["203.0.113.0/24"]}}},
    "gcp": {"region": "us-central1", "account": "my-project-123456"},
    "azure": {
        "region": "eastus",
        "account": "00000000-1111-2222-3333-444444444444",
        "kubernetes": {
            "access": {"public_ranges": ["203.0.113.0/24"]},
            "admins": ["00000000-1111-2222-3333-555555555555"],
        },
    },
}
POOL = {
    "aws": {"accelerator": "H100", "per_node": 8},
    "gcp": {"accelerator": "H100", "per_node": 8},
    "azure": {"accelerator": "A100-80GB", "per_node": 1},
}
CLOUDS = ("aws", "gcp", "azure")


def platform(cloud: str, **pool: Any) -> PlatformSpec:
    return parse_spec(
        {
            "name": "lab",
            "cloud": cloud,
            "owner": "ml@example.com",
            "gpu_pools": [{"name": "big", "max_nodes": 4, **POOL[cloud], **pool}],
            **PLACES[cloud],
        },
        "test",
    )


def listed(cloud: str, *order: str, **pool: Any) -> PlatformSpec:
    named = {"reservation": RESERVATION[cloud]} if "reserved" in order else {}
    return platform(cloud, capacity=list(order), **named, **pool)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_pool_with_one_capacity_is_one_group_of_its_own_name(cloud: str) -> None:
    (group,) = node_groups(platform(cloud, capacity="spot", min_nodes=1))
    assert (group.name, group.pool, group.capacity, group.min_nodes, group.capacity_label) == (
        "big",
        "big",
        "spot",
        1,
        {},
    )


@pytest.mark.parametrize("cloud", CLOUDS)
def test_each_capacity_is_a_group_in_the_order_of_the_list(cloud: str) -> None:
    found = node_groups(listed(cloud, "reserved", "spot", min_nodes=1, zone=""))
    assert list(dict.fromkeys(group.capacity.value for group in found)) == ["reserved", "spot"]
    assert {group.pool for group in found} == {"big"}
    assert [group.capacity_label for group in found] == [
        {"trainfleet.io/capacity": group.capacity.value} for group in found
    ]
    assert [group.min_nodes for group in found] == [1] + [0] * (len(found) - 1), "of the first only"
    assert {group.max_nodes for group in found} == {4}, "of each"


@pytest.mark.parametrize("cloud", CLOUDS)
def test_only_the_reserved_group_uses_the_reservation(cloud: str) -> None:
    found = node_groups(listed(cloud, "spot", "reserved", "on-demand"))
    assert {group.reservation for group in found if group.capacity == "reserved"} == {RESERVATION[cloud]}
    assert {group.reservation for group in found if group.capacity != "reserved"} == {""}


def test_only_the_group_of_requested_nodes_has_their_run_time() -> None:
    found = node_groups(listed("gcp", "spot", "flex-start", max_run_hours=24))
    assert [group.max_run_hours for group in found] == [168, 24]
    with pytest.raises(InputError, match="no effect with capacity `spot`"):
        listed("gcp", "spot", "on-demand", max_run_hours=24)


def test_a_reservation_and_a_capacity_block_are_two() -> None:
    spec = listed("aws", "reserved", "capacity-block", "spot", capacity_block="cr-0fedcba9876543210")
    named = {group.capacity.value: group.reservation for group in node_groups(spec)}
    assert named == {"reserved": "cr-0123456789abcdef0", "capacity-block": "cr-0fedcba9876543210", "spot": ""}


def test_all_groups_of_a_pool_have_the_machine_of_the_preferred_capacity() -> None:
    """Otherwise the cheapest spot machine could have other fabric interfaces than the reserved one."""
    spec = listed("aws", "reserved", "spot", "on-demand")
    machines = {machine_for_pool(spec.cloud, group).instance_type for group in node_groups(spec)}
    assert machines == {machine_for_pool(spec.cloud, spec.gpu_pools[0]).instance_type}


def test_on_aws_a_group_that_is_not_bound_to_a_zone_exists_once_in_each() -> None:
    found = [(group.name, group.zone) for group in node_groups(listed("aws", "reserved", "spot"))]
    assert found == [
        ("big-reserved", ""),
        ("big-spot-a", "us-east-2a"),
        ("big-spot-b", "us-east-2b"),
        ("big-spot-c", "us-east-2c"),
    ]
    named = node_groups(listed("aws", "reserved", "spot", zone="us-east-2b"))
    assert [group.name for group in named] == ["big-reserved", "big-spot"], "the zone binds all groups"


def test_nodes_that_always_run_are_spread_over_the_zones_of_the_first_capacity() -> None:
    found = node_groups(listed("aws", "on-demand", "spot", min_nodes=4))
    assert [group.min_nodes for group in found] == [2, 1, 1, 0, 0, 0]


ZONES = {"aws": aws.pool_zones, "gcp": gcp.pool_zones, "azure": azure.pool_zones}


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize(
    ("settings", "together"),
    [({"compact": True}, True), ({"interconnect": "best", "compact": True}, True), ({}, False)],
    ids=["compact", "fabric", "Ethernet"],
)
def test_workers_stay_in_one_group_of_one_zone_where_they_need_to_be_close(
    cloud: str, settings: dict[str, Any], together: bool
) -> None:
    machine = {"azure": {"accelerator": "A100-80GB", "per_node": 8}}.get(cloud, {})
    spec = listed(cloud, "spot", "on-demand", **{**machine, **settings})
    groups = tuple(
        Pool(
            spec=group,
            machine=machine_for_pool(spec.cloud, group),
            labels={},
            zones=ZONES[cloud](spec, group),
            nodes=None,
            rdma_resource="fabric" if group.interconnect == "best" else "",
        )
        for group in node_groups(spec)
    )
    contract = pool_output(groups)
    assert contract["one_group_label"] == ("trainfleet.io/capacity" if together else "")
    if together:
        assert len({group.zones for group in groups}) == len(groups[0].zones) == 1
        assert len(groups) == len(contract["groups"]) == 2, "so the capacity names the group"


def test_a_pool_with_one_capacity_is_one_group_for_launchers_too() -> None:
    spec = platform("aws", capacity="spot", compact=True)
    (group,) = node_groups(spec)
    contract = pool_output((Pool(group, machine_for_pool(spec.cloud, group), {}, (), None),))
    assert (contract["groups"], contract["one_group_label"]) == ([], "")


@pytest.mark.parametrize("cloud", ["gcp", "azure"])
def test_elsewhere_one_group_spans_the_zones(cloud: str) -> None:
    assert [group.name for group in node_groups(listed(cloud, "spot", "on-demand"))] == [
        "big-spot",
        "big-on-demand",
    ]


def test_a_mistake_of_a_pool_is_reported_once_for_all_its_groups() -> None:
    with pytest.raises(InputError) as caught:
        listed("aws", "spot", "on-demand", labels={"nvidia.com/x": "y"}, min_nodes=5)
    assert [problem.where for problem in caught.value.problems] == [
        "test gpu_pools[0].max_nodes",
        'test gpu_pools[0].labels["nvidia.com/x"]',
    ]


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_quota_is_needed_once_for_a_pool_and_once_for_its_spot_nodes(cloud: str) -> None:
    spec = listed(cloud, "reserved", "spot", "on-demand")
    found = [group.capacity.value for group in once_per_quota(node_groups(spec))]
    assert found == ["reserved", "spot"]


@pytest.mark.parametrize("cloud", CLOUDS)
def test_the_estimate_has_a_row_for_each_group_and_the_minimum_of_the_first(cloud: str) -> None:
    costs = node_costs(listed(cloud, "reserved", "spot", min_nodes=1))
    rows = [row for row in costs.pools if row.name.startswith("big")]
    assert [row.min_nodes for row in rows] == [1] + [0] * (len(rows) - 1)
    assert len({row.machine.instance_type for row in rows}) == 1
    reserved = rows[0].usd_per_hour
    standing = sum((row.usd_per_hour or 0) * row.min_nodes for row in costs.pools)
    assert reserved is not None
    assert costs.min_usd_per_hour == pytest.approx(standing)
