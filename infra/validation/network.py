"""Rules on the network: its size, the addresses that nodes and pods take, and who may reach the control
plane.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from ipaddress import IPv4Network

from trainfleet.infra.aws.layout import LONGEST_PREFIX, plan, platform_zones, pool_zones
from trainfleet.infra.catalog.machines import Machine, machine_for_pool, system_machine
from trainfleet.infra.spec.schema import Cloud, PlatformSpec
from trainfleet.infra.validation.finding import Finding
from trainfleet.infra.validation.location import AWS_REGIONS
from trainfleet.pydantic_messages import Path

_CIDR: Path = ("network", "cidr")
_ALLOWED: Path = ("network", "allowed_cidrs")
_AWS_KEEPS = 5
"""Addresses of each subnet that AWS keeps for itself (VPC user guide, subnet sizing)."""
_ZONE_KEEPS = 32
"""Per zone, for the control plane's interfaces, interface endpoints, load balancers and the shared volume."""
_PREFIX = 16
"""The VPC CNI with prefix delegation takes addresses a /28 at a time (VPC CNI, ENABLE_PREFIX_DELEGATION)."""
_PRIVATE = tuple(map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))


def vpc_size(spec: PlatformSpec) -> Iterator[Finding]:
    """A VPC is at most a /16 (VPC user guide, VPC CIDR blocks); below a /20 a zone's eighth leaves no room
    for pods.
    """
    if spec.cloud is not Cloud.AWS:
        return
    length = spec.network.cidr.prefixlen
    if length < 16:
        yield Finding(
            _CIDR,
            f"{spec.network.cidr} is larger than a VPC can be",
            f"a /16 to a /{LONGEST_PREFIX}",
            (("cloud",),),
        )
    elif length > LONGEST_PREFIX:
        yield Finding(
            _CIDR,
            f"{spec.network.cidr} is too small to be divided into zones",
            f"a /16 to a /{LONGEST_PREFIX}",
            (("cloud",),),
        )


def vpc_is_private(spec: PlatformSpec) -> Iterator[Finding]:
    """A VPC on public addresses hides the real owners of those addresses from everything inside it."""
    carrier_grade = IPv4Network("100.64.0.0/10")
    if spec.cloud is Cloud.AWS and not any(
        spec.network.cidr.subnet_of(each) for each in (*_PRIVATE, carrier_grade)
    ):
        yield Finding(
            _CIDR,
            f"{spec.network.cidr} is not a private range",
            "inside 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 or 100.64.0.0/10",
            (("cloud",),),
        )


def pods_have_addresses(spec: PlatformSpec) -> Iterator[Finding]:
    """The VPC CNI gives every pod an address of the node's subnet, so at full scale a zone must hold nodes
    times pods.

    A pool bound to one zone takes all its nodes there, any other its share of the zones.
    """
    if (
        spec.cloud is not Cloud.AWS
        or spec.region not in AWS_REGIONS
        or not 16 <= spec.network.cidr.prefixlen <= LONGEST_PREFIX
    ):
        return
    zones = platform_zones(spec)
    if any(zone[:-1] != spec.region or not "a" <= zone[-1] <= "f" for zone in zones):
        return
    share = math.ceil(spec.system_pool.max_nodes / len(zones)) * addresses(system_machine(spec))
    needed = dict.fromkeys(zones, share)
    for pool in spec.gpu_pools:
        try:
            machine = machine_for_pool(spec.cloud, pool)
        except LookupError:
            continue
        where = pool_zones(spec, pool)
        for zone in where:
            needed[zone] += math.ceil(pool.max_nodes / len(where)) * addresses(machine)
    for planned in plan(spec):
        there = planned.private.num_addresses - _AWS_KEEPS - _ZONE_KEEPS
        if needed[planned.zone] > there:
            yield Finding(
                _CIDR,
                f"at full scale {planned.zone} needs {needed[planned.zone]} addresses for nodes and pods, its subnet {planned.private} has {there}",
                _larger(spec.network.cidr, needed[planned.zone] / there),
                (("cloud",), ("region",), ("network", "zones"), ("system_pool",), ("gpu_pools",)),
            )
            return


def addresses(machine: Machine) -> int:
    """Addresses that a full node takes from its subnet: its own, and its pods' in prefixes of 16, one of them
    kept warm.

    Pods are bounded as EKS bounds them by the machine's interfaces: 29 and 58 on the smallest (m7i.large,
    m7i.2xlarge),
    110 from there on, the number up to which Kubernetes is tested. Interfaces for EFA alone carry no address.
    """
    pods = 30 if machine.vcpu <= 2 else 60 if machine.vcpu <= 8 else 110
    return 1 + (math.ceil(pods / _PREFIX) + 1) * _PREFIX


def endpoint_is_reachable(spec: PlatformSpec) -> Iterator[Finding]:
    """A public endpoint without ranges is open to the world (EKS's own default is 0.0.0.0/0)."""
    if spec.cloud is Cloud.LOCAL:
        return
    if not spec.kubernetes.private_endpoint and not spec.network.allowed_cidrs:
        yield Finding(
            _ALLOWED,
            "is empty, and the control plane would answer to the whole internet",
            "the ranges that may reach it, or kubernetes.private_endpoint: true",
            (("kubernetes", "private_endpoint"),),
        )
    if spec.kubernetes.private_endpoint and spec.network.allowed_cidrs:
        yield Finding(
            _ALLOWED,
            "means nothing while the control plane answers inside the network only",
            "leave it out, or kubernetes.private_endpoint: false",
            (("kubernetes", "private_endpoint"),),
        )


def allowed_ranges_are_narrow(spec: PlatformSpec) -> Iterator[Finding]:
    """Half the internet twice is the whole internet; and the internet never shows a private address."""
    for index, allowed in enumerate(spec.network.allowed_cidrs):
        where = (*_ALLOWED, index)
        if allowed.prefixlen < 8:
            yield Finding(
                where,
                f"{allowed} opens the control plane to the internet",
                "the ranges of your offices, VPNs or runners",
            )
        elif any(allowed.subnet_of(private) for private in _PRIVATE):
            yield Finding(
                where,
                f"{allowed} is a private range, which a public endpoint never sees",
                "the public addresses behind which its users are",
            )
        elif allowed in spec.network.allowed_cidrs[:index]:
            yield Finding(where, f"{allowed} stands here twice", "keep one")
        elif wider := next(
            (each for each in spec.network.allowed_cidrs if each != allowed and allowed.subnet_of(each)), None
        ):
            yield Finding(
                where, f"{allowed} overlaps {wider}, which holds all of it", "keep the one that is meant"
            )


def _larger(cidr: IPv4Network, times: float) -> str:
    length = cidr.prefixlen - math.ceil(math.log2(times))
    return f"a /{length} or larger" if length >= 16 else "fewer nodes: even a /16 is too small"
