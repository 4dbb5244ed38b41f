"""What follows from a region and a spec: zones, ranges that never overlap, and names within Azure's limits."""

from __future__ import annotations

import itertools
import re
from ipaddress import IPv4Network

import pytest

from tests.infra.azure.platforms import RESERVATION, SMALL, platform
from trainfleet.errors import InputError
from trainfleet.infra.azure import layout
from trainfleet.infra.spec.load import parse_spec
from trainfleet.infra.spec.node_group import NodeGroup, groups_of_capacity
from trainfleet.infra.spec.schema import GpuPool

CIDRS = [
    "10.60.0.0/16",
    "10.0.0.0/8",
    "172.16.0.0/13",
    "192.168.0.0/16",
    "10.244.0.0/16",
    "172.20.0.0/16",
    "172.24.0.0/16",
    "10.100.0.0/20",
]


def pool(**more: object) -> NodeGroup:
    written = {"name": "big", "accelerator": "A100-80GB", "per_node": 4, **more}
    return groups_of_capacity(GpuPool.model_validate(written))[0]


def subnets(plan: layout.Plan) -> list[IPv4Network]:
    return [plan.nodes, *plan.zonal.values(), plan.lustre, plan.endpoints, plan.control_plane]


@pytest.mark.parametrize("cidr", CIDRS)
def test_no_two_subnets_overlap_and_all_lie_in_the_network(cidr: str) -> None:
    planned = subnets(layout.plan(platform(network={"cidr": cidr, "zones": 3})))
    assert not [pair for pair in itertools.combinations(planned, 2) if pair[0].overlaps(pair[1])]
    assert all(each.subnet_of(IPv4Network(cidr)) for each in planned)


@pytest.mark.parametrize("cidr", CIDRS)
def test_pods_and_services_have_ranges_apart_from_the_network_and_each_other(cidr: str) -> None:
    network = IPv4Network(cidr)
    ranges = [network, IPv4Network(layout.pod_cidr(network)), IPv4Network(layout.service_cidr(network))]
    assert not [pair for pair in itertools.combinations(ranges, 2) if pair[0].overlaps(pair[1])]
    assert IPv4Network(f"{layout.dns_address(network)}/32").subnet_of(ranges[2])


def test_lustre_gets_the_24_bits_it_asks_for_even_in_the_smallest_network() -> None:
    assert layout.plan(platform(network={"cidr": "10.60.0.0/20", "zones": 1})).lustre.prefixlen <= 24


def test_a_zone_keeps_its_range_whatever_the_others_do() -> None:
    one = layout.plan(platform(network={"cidr": "10.60.0.0/16", "zones": 1}))
    three = layout.plan(platform(network={"cidr": "10.60.0.0/16", "zones": 3}))
    assert three.zonal["1"] == one.zonal["1"]
    assert (three.nodes, three.lustre, three.endpoints, three.control_plane) == (
        one.nodes,
        one.lustre,
        one.endpoints,
        one.control_plane,
    )


def test_a_network_that_cannot_be_divided_is_refused() -> None:
    with pytest.raises(InputError, match="too small"):
        layout.plan(
            parse_spec(SMALL).model_copy(
                update={"network": platform().network.model_copy(update={"cidr": IPv4Network("10.0.0.0/24")})}
            )
        )


def test_a_region_without_zones_has_none_for_platform_and_pools() -> None:
    spec = platform(region="westus", network={"zones": 1})
    assert layout.platform_zones(spec) == ()
    assert layout.pool_zones(spec, pool(compact=True)) == ()
    assert layout.plan(spec).zonal == {}
    assert layout.shared_volume_zones(spec) == ()


@pytest.mark.parametrize(
    ("pool_spec", "zones"),
    [
        ({}, ("1", "2")),
        ({"capacity": "spot"}, ("1", "2")),
        ({"compact": True}, ("1",)),
        ({"interconnect": "best"}, ("1",)),
        ({"capacity": "reserved", "reservation": RESERVATION}, ("1",)),
        ({"zone": "2"}, ("2",)),
        ({"zone": "2", "compact": True}, ("2",)),
    ],
)
def test_what_holds_in_one_zone_only_is_put_into_one(
    pool_spec: dict[str, object], zones: tuple[str, ...]
) -> None:
    assert layout.pool_zones(platform(), pool(**pool_spec)) == zones


def test_a_zone_that_only_a_pool_names_is_the_platforms_too() -> None:
    spec = platform(gpu_pools=[{"name": "a", "accelerator": "T4", "zone": "3"}])
    assert layout.platform_zones(spec) == ("1", "2", "3")
    assert layout.shared_volume_zones(spec) == ("3",)


@pytest.mark.parametrize("name", ["a", "lab", "a-b-c-d-e-f-g-h-i-j-k-l", "abcdefghijklmnopqrstuvwx"])
@pytest.mark.parametrize("what", ["data", "flow", "nfs", "keys", "secrets", "imgs"])
def test_worldwide_names_keep_every_services_limits(name: str, what: str) -> None:
    found = layout.global_name(platform(name=name), what, "lab-data1234abcd")
    assert re.fullmatch(r"[a-z][a-z0-9]{4,23}", found)


def test_a_worldwide_name_is_the_same_for_one_platform_and_differs_for_any_other() -> None:
    spec = platform()
    assert layout.global_name(spec, "data", "seed") == layout.global_name(spec, "data", "seed")
    others = {
        layout.global_name(spec, "data", "another seed"),
        layout.global_name(spec, "flow", "seed"),
        layout.global_name(platform(account="99999999-2222-3333-4444-555555555555"), "data", "seed"),
        layout.global_name(platform(name="lab2"), "data", "seed"),
    }
    assert len(others) == 4
    assert layout.global_name(spec, "data", "seed") not in others


def test_two_reservation_groups_with_one_name_have_names_of_their_own() -> None:
    ids = [f"/subscriptions/s/resourceGroups/{group}/x/capacityReservationGroups/h100" for group in "ab"]
    assert len({layout.reservation_name(each) for each in ids}) == 2
    assert layout.reservation_name(ids[0]) == layout.reservation_name(ids[0].upper().replace("H100", "h100"))


@pytest.mark.parametrize(
    "name", ["a", "h100", "a100-spot", "a-very-long-name-of-pools", "abcdefghijklmnopqrstuvwx"]
)
def test_node_pool_names_keep_akss_limits(name: str) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9]{0,11}", layout.node_pool_name(name, "Standard_X", ("1",)))


def test_node_pools_with_similar_names_are_distinguished() -> None:
    names = ["ab", "a-b", "a100-spot-one", "a100-spot-two", "a100spotone"]
    assert len({layout.node_pool_name(name, "Standard_X") for name in names}) == len(names)


def test_what_cannot_change_is_in_a_node_pools_name() -> None:
    before = layout.node_pool_name("h100", "Standard_X", ("1",), "Ephemeral", 200)
    assert layout.node_pool_name("h100", "Standard_X", ("1",), "Ephemeral", 200) == before
    assert layout.node_pool_name("h100", "Standard_Y", ("1",), "Ephemeral", 200) != before
    assert layout.node_pool_name("h100", "Standard_X", ("2",), "Ephemeral", 200) != before


@pytest.mark.parametrize(("pool_spec", "kept"), [(1, 30), (30, 30), (365, 365), (5000, 730)])
def test_logs_are_kept_as_long_as_log_analytics_can(pool_spec: int, kept: int) -> None:
    assert layout.log_retention(pool_spec) == kept


def test_azure_has_versions_or_folders_and_only_folders_need_the_second_endpoint() -> None:
    versioned, foldered = platform(), platform(storage={"versioning": False})
    assert (layout.hierarchical(versioned), layout.hierarchical(foldered)) == (False, True)
    assert "dfs" not in layout.endpoint_kinds(versioned)
    assert "dfs" in layout.endpoint_kinds(foldered)
    nfs = platform(storage={"shared_filesystem": {"kind": "nfs", "capacity_gib": 200}})
    assert set(layout.endpoint_kinds(nfs)) == {"blob", "file", "registry", "vault"}
    assert set(layout.endpoint_kinds(nfs)) <= set(layout.PRIVATE_ZONES)


HUB = "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/a/providers/Microsoft.Network/virtualNetworks/b"


def test_nobody_outside_reaches_a_private_platform() -> None:
    network = {"cidr": "10.60.0.0/16", "zones": 2, "hub": {"id": HUB, "gateway": True}}
    private = {**SMALL["kubernetes"], "access": {"private_ranges": ["192.168.0.0/24"]}}
    public = {**SMALL["kubernetes"], "access": {"public_ranges": ["203.0.113.0/24"]}}
    assert layout.open_to(platform(network=network, kubernetes=private)) == ()
    assert layout.clients(platform(network=network, kubernetes=private)) == ("192.168.0.0/24",)
    assert layout.open_to(platform(kubernetes=public)) == ("203.0.113.0/24",)


def test_a_storage_firewall_takes_single_addresses_without_a_mask() -> None:
    found = layout.single_addresses(("203.0.113.7/32", "203.0.113.8/31", "203.0.113.0/30", "198.51.100.0/24"))
    assert found == ("203.0.113.7", "203.0.113.8", "203.0.113.9", "203.0.113.0/30", "198.51.100.0/24")
