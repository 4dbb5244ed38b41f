"""Zones, subnets and endpoints that follow from a spec alone."""

from __future__ import annotations

from ipaddress import IPv4Network
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.infra.aws.platforms import SMALL, platform
from trainfleet.infra.aws import layout
from trainfleet.infra.aws.layout import REGIONS
from trainfleet.infra.spec.node_groups import node_groups
from trainfleet.infra.spec.schema import PlatformSpec


def unchecked(**changes: Any) -> PlatformSpec:
    """A spec that the rules have not seen."""
    return PlatformSpec.model_validate({**SMALL, **changes})


@given(length=st.integers(8, 20), zones=st.integers(1, 6))
def test_no_two_subnets_overlap_and_all_lie_in_the_network(length: int, zones: int) -> None:
    cidr = IPv4Network(f"10.0.0.0/{length}")
    plan = layout.plan(unchecked(network={"cidr": str(cidr), "zones": zones}))
    subnets = [subnet for zone in plan for subnet in (zone.private, zone.public)]
    assert len(plan) == zones
    assert all(subnet.subnet_of(cidr) for subnet in subnets)
    assert not any(one.overlaps(other) for one, other in combinations(subnets, 2))
    assert all(zone.private.num_addresses >= 16 * zone.public.num_addresses for zone in plan)
    assert all(zone.public.prefixlen <= 28 for zone in plan), "AWS makes no subnet smaller than a /28"


def test_a_zone_keeps_its_ranges_when_others_come_and_go() -> None:
    two = {each.zone: each for each in layout.plan(unchecked(network={"cidr": "10.50.0.0/16", "zones": 2}))}
    four = {each.zone: each for each in layout.plan(unchecked(network={"cidr": "10.50.0.0/16", "zones": 4}))}
    assert all(four[zone] == planned for zone, planned in two.items())


def test_a_pool_in_a_zone_of_its_own_adds_that_zone_and_moves_nothing() -> None:
    pool = {"name": "p", "accelerator": "H100", "per_node": 8, "zone": "us-east-2d"}
    spec = unchecked(gpu_pools=[pool])
    assert layout.platform_zones(spec) == ("us-east-2a", "us-east-2b", "us-east-2d")
    before = layout.plan(unchecked())
    assert layout.plan(spec)[:2] == before


def test_every_region_has_as_many_zones_as_the_rules_allow() -> None:
    for name, zones in REGIONS.items():
        found = layout.platform_zones(unchecked(region=name, network={"cidr": "10.0.0.0/16", "zones": zones}))
        assert len(found) == zones, name


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"network": {"cidr": "10.0.0.0/21", "zones": 2}}, "network.cidr"),
        (
            {"gpu_pools": [{"name": "p", "accelerator": "L4", "per_node": 4, "zone": "eu-west-1a"}]},
            "gpu_pools",
        ),
    ],
)
def test_a_network_that_cannot_be_planned_is_refused(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(layout.InputError) as refused:
        layout.plan(unchecked(**changes))
    assert [problem.where for problem in refused.value.problems] == [where]


BOUND = {"name": "p", "accelerator": "H100", "per_node": 8}


@pytest.mark.parametrize(
    ("pool", "zones"),
    [
        (BOUND, 2),
        ({**BOUND, "capacity": "spot"}, 2),
        ({**BOUND, "compact": True}, 1),
        ({**BOUND, "interconnect": "best"}, 1),
        ({**BOUND, "capacity": "reserved", "reservation": "cr-0123456789abcdef0"}, 1),
        ({**BOUND, "capacity": "capacity-block", "reservation": "cr-0123456789abcdef0"}, 1),
        ({**BOUND, "zone": "us-east-2b"}, 1),
    ],
)
def test_a_pool_spreads_over_all_zones_unless_something_binds_it_to_one(
    pool: dict[str, Any], zones: int
) -> None:
    spec = unchecked(gpu_pools=[pool])
    found = layout.pool_zones(spec, node_groups(spec)[0])
    assert len(found) == zones
    assert not pool.get("zone") or found == (pool["zone"],)


def test_the_shared_filesystem_is_in_the_zone_of_the_pool_that_is_bound_to_one() -> None:
    spread = {"name": "spread", "accelerator": "L4", "per_node": 4}
    bound = {**BOUND, "zone": "us-east-2b"}
    assert layout.shared_volume_zone(unchecked(gpu_pools=[spread, bound])) == "us-east-2b"
    assert layout.shared_volume_zone(unchecked(gpu_pools=[spread])) == "us-east-2a"


@pytest.mark.parametrize(
    ("pool_spec", "kept"), [(1, 1), (2, 3), (8, 14), (365, 365), (366, 400), (5000, 3653)]
)
def test_logs_are_kept_at_least_as_long_as_requested_where_aws_can(pool_spec: int, kept: int) -> None:
    assert layout.log_retention(pool_spec) == kept


@pytest.mark.parametrize("cidr", ["10.0.0.0/16", "172.20.0.0/16", "172.16.0.0/12", "10.100.0.0/16"])
def test_services_never_overlap_the_network(cidr: str) -> None:
    network = IPv4Network(cidr)
    assert not IPv4Network(layout.service_cidr(network)).overlaps(network)


@pytest.mark.parametrize(
    ("name", "partition"), [("us-east-2", "aws"), ("cn-north-1", "aws-cn"), ("us-gov-west-1", "aws-us-gov")]
)
def test_arns_carry_the_partition_of_the_region(name: str, partition: str) -> None:
    assert layout.partition(name) == partition


def test_production_has_a_private_way_to_every_service_that_is_called() -> None:
    production = layout.endpoint_services(platform(environment="prod"))
    assert {
        "ecr.api",
        "ecr.dkr",
        "sts",
        "ec2",
        "logs",
        "eks",
        "eks-auth",
        "secretsmanager",
        "kms",
        "autoscaling",
    } <= set(production)
    assert set(layout.endpoint_services(platform())) < set(production)
