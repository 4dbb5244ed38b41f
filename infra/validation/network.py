"""Rules on who may reach the control plane, and the address ranges that all clouds treat alike."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Network

from trainfleet.infra.cloud_support import support
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.validation.finding import Finding
from trainfleet.pydantic_messages import Path

CIDR: Path = ("network", "cidr")
PRIVATE = tuple(map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
CARRIER_GRADE = IPv4Network("100.64.0.0/10")
PRIVATE_RANGES = "inside 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 or 100.64.0.0/10"
_ALLOWED: Path = ("network", "allowed_cidrs")
_PRIVATE_ENDPOINT: Path = ("kubernetes", "private_endpoint")


def is_private(cidr: IPv4Network) -> bool:
    """Whether a range is private or carrier-grade."""
    return any(cidr.subnet_of(each) for each in (*PRIVATE, CARRIER_GRADE))


def endpoint_is_reachable(spec: PlatformSpec) -> Iterator[Finding]:
    """A public endpoint without ranges is open to the world (EKS's own default is 0.0.0.0/0)."""
    if not support(spec.cloud).creates_cluster:
        return
    if not spec.kubernetes.private_endpoint and not spec.network.allowed_cidrs:
        what = "is empty, so the control plane would be open to the whole internet"
        fix = "the ranges that may reach it, or kubernetes.private_endpoint: true"
        yield Finding(_ALLOWED, what, fix, (_PRIVATE_ENDPOINT,))
    if spec.kubernetes.private_endpoint and spec.network.allowed_cidrs:
        what = "has no effect while the control plane answers inside the network only"
        fix = "leave it out, or kubernetes.private_endpoint: false"
        yield Finding(_ALLOWED, what, fix, (_PRIVATE_ENDPOINT,))


def allowed_ranges_are_narrow(spec: PlatformSpec) -> Iterator[Finding]:
    """Two halves of the internet are the whole internet, and a public endpoint never sees a
    private address.
    """
    ranges = spec.network.allowed_cidrs
    for index, allowed in enumerate(ranges):
        where = (*_ALLOWED, index)
        wider = next((each for each in ranges if each != allowed and allowed.subnet_of(each)), None)
        if allowed.prefixlen < 8:
            what = f"{allowed} opens the control plane to the internet"
            yield Finding(where, what, "the ranges of your offices, VPNs or runners")
        elif any(allowed.subnet_of(private) for private in PRIVATE):
            what = f"{allowed} is a private range, which a public endpoint never sees"
            yield Finding(where, what, "the public addresses of its users")
        elif allowed in ranges[:index]:
            yield Finding(where, f"{allowed} is listed twice", "keep one")
        elif wider:
            yield Finding(where, f"{allowed} is contained in {wider}", "keep one of them")
