"""Zones, ranges and names that follow from a spec alone."""

from __future__ import annotations

import re
from ipaddress import IPv4Network
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.infra.gcp.platforms import platform, unchecked
from trainfleet.infra.gcp import layout, machine_zones
from trainfleet.infra.spec.node_groups import node_groups
from trainfleet.infra.tags import labels

H200 = {"name": "h200", "accelerator": "H200", "per_node": 8, "capacity": "spot"}
H100 = {"name": "h100", "accelerator": "H100", "per_node": 8}
L4 = {"name": "l4", "accelerator": "L4"}


def ranges(cidr: str) -> list[IPv4Network]:
    plan = layout.plan(unchecked(network={"cidr": cidr}))
    return [plan.nodes, plan.pods, plan.services, plan.google_services, *plan.fabric]


@given(length=st.integers(8, 20))
def test_no_two_ranges_overlap_and_all_lie_in_the_network(length: int) -> None:
    found = ranges(f"10.0.0.0/{length}")
    assert len(found) == 4 + layout.FABRIC_SUBNETS
    assert all(each.subnet_of(IPv4Network(f"10.0.0.0/{length}")) for each in found)
    assert not any(one.overlaps(other) for one, other in combinations(found, 2))


@given(length=st.integers(8, 20))
def test_ranges_are_of_the_sizes_that_google_takes(length: int) -> None:
    nodes, pods, services, _, *fabric = ranges(f"10.0.0.0/{length}")
    assert pods.prefixlen == length + 1, "half of it: every node takes a /24"
    assert 16 <= services.prefixlen <= 27
    assert nodes.prefixlen <= 29
    assert all(each.prefixlen <= 29 for each in fabric)


def test_a_network_that_cannot_be_divided_is_refused() -> None:
    with pytest.raises(layout.InputError) as refused:
        layout.plan(unchecked(network={"cidr": "10.0.0.0/21"}))
    assert [problem.where for problem in refused.value.problems] == ["network.cidr"]


def test_there_is_a_subnet_for_every_interface_of_every_fabric() -> None:
    interfaces = max(layout.TCP_FABRIC_NETWORKS.values()) + 1 + layout.RDMA_SUBNETS
    assert interfaces <= layout.FABRIC_SUBNETS


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("us-central1", "us-central1-a"),
        ("us-east1", "us-east1-b"),
        ("europe-west1", "europe-west1-b"),
        ("us-east4", "us-east4-a"),
    ],
)
def test_zones_begin_where_the_region_begins(name: str, first: str) -> None:
    assert layout.platform_zones(unchecked(region=name))[0] == first
    assert layout.region_of(first) == name


def test_a_pool_in_a_zone_of_its_own_adds_that_zone_and_moves_nothing() -> None:
    spec = unchecked(gpu_pools=[{**L4, "zone": "us-central1-f"}])
    assert layout.platform_zones(spec) == ("us-central1-a", "us-central1-b", "us-central1-f")
    assert layout.plan(spec) == layout.plan(unchecked())


@pytest.mark.parametrize(
    ("pool", "zones"),
    [
        (L4, ("us-central1-a", "us-central1-b")),
        ({**L4, "compact": True}, ("us-central1-a",)),
        ({**L4, "zone": "us-central1-c"}, ("us-central1-c",)),
        ({**L4, "capacity": "reserved", "reservation": "r"}, ("us-central1-a",)),
        ({**H100, "interconnect": "best"}, ("us-central1-a",)),
        (H200, ("us-central1-b",)),
        ({**H200, "compact": True}, ("us-central1-b",)),
    ],
)
def test_a_pool_is_in_the_zones_that_sell_its_machine_and_in_one_where_something_binds_it(
    pool: dict[str, Any], zones: tuple[str, ...]
) -> None:
    spec = unchecked(gpu_pools=[pool])
    assert layout.pool_zones(spec, node_groups(spec)[0]) == zones


@pytest.mark.parametrize(("least", "zones"), [(1, 1), (2, 2), (3, 2)])
def test_the_system_pool_is_in_no_more_zones_than_it_always_has_nodes(least: int, zones: int) -> None:
    assert len(layout.system_zones(unchecked(system_pool={"min_nodes": least}))) == zones


def test_the_shared_filesystem_is_in_the_zone_of_the_pool_that_is_bound_to_one() -> None:
    assert (
        layout.shared_volume_zone(unchecked(gpu_pools=[L4, {**H100, "zone": "us-central1-c"}]))
        == "us-central1-c"
    )
    assert layout.shared_volume_zone(unchecked(gpu_pools=[L4])) == "us-central1-a"


@pytest.mark.parametrize(
    ("pools", "networks", "rdma"),
    [
        ([L4], 0, ""),
        ([H100], 0, ""),
        ([{**H100, "interconnect": "best"}], 4, ""),
        (
            [
                {**H100, "interconnect": "best"},
                {"name": "m", "accelerator": "H100-MEGA", "per_node": 8, "interconnect": "best"},
            ],
            8,
            "",
        ),
        ([{**H200, "interconnect": "best"}], 0, "us-central1-b"),
    ],
)
def test_extra_networks_are_those_of_the_fabrics_that_pools_ask_for(
    pools: list[dict[str, Any]], networks: int, rdma: str
) -> None:
    spec = unchecked(gpu_pools=pools)
    assert (layout.tcp_fabric_networks(spec), layout.rdma_zone(spec)) == (networks, rdma)


NAMES = st.from_regex(r"[a-z]([a-z0-9-]{0,22}[a-z0-9])?", fullmatch=True)


@given(name=NAMES, role=st.sampled_from(["nodes", "training", "secrets"]))
def test_names_are_as_long_as_google_allows(name: str, role: str) -> None:
    spec = unchecked(name=name)
    assert re.fullmatch(r"[a-z]([-a-z0-9]{4,28}[a-z0-9])", layout.account_id(spec, role))
    assert len(layout.cluster_name(spec)) <= 40
    assert len(layout.node_pool_prefix(name)) + 9 <= 40


@given(one=NAMES, other=NAMES)
def test_two_platforms_never_share_a_service_account(one: str, other: str) -> None:
    same = layout.account_id(unchecked(name=one), "training") == layout.account_id(
        unchecked(name=other), "training"
    )
    assert same == (one == other)


def test_the_context_says_project_place_and_cluster() -> None:
    assert layout.kube_context(platform()) == "gke_my-project-123456_us-central1_trainfleet-lab"


@given(
    key=st.text(st.characters(codec="ascii", exclude_categories=("Cc",)), min_size=1, max_size=60),
    value=st.text(max_size=70),
)
def test_rules_see_tags_as_the_labels_that_they_become(key: str, value: str) -> None:
    if key.startswith("trainfleet:"):
        return
    assert labels(unchecked(tags={key: value}), "x").get(layout.label_text(key)) is not None


def test_every_zone_that_sells_a_machine_is_a_zone() -> None:
    listed = {
        f"{name}-{letter}"
        for regions in machine_zones.ZONES.values()
        for name, letters in regions.items()
        for letter in letters
    }
    assert {zone for zone in listed if zone not in layout.zones(layout.region_of(zone))} == set()


def test_where_a_machine_is_sold_is_known_or_not_and_never_guessed() -> None:
    assert machine_zones.sold_in("a3-ultragpu-8g", "us-central1") == ("us-central1-b",)
    assert machine_zones.sold_in("a3-ultragpu-8g", "europe-west9") == ()
    assert machine_zones.sold_in("g2-standard-4", "us-central1") is None
    assert machine_zones.sold_in("a3-highgpu-1g", "europe-west8") == ("europe-west8-c",)
    assert machine_zones.sold_in("a3-highgpu-8g", "europe-west8") == ()
