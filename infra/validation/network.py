"""Rules on who may reach the control plane, and the address ranges that all clouds treat alike."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import IPv4Network

from trainfleet.infra.catalog.machines import catalogue, sells_machines
from trainfleet.infra.cloud_support import support
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.validation.existing_network import EXISTING, in_own_network
from trainfleet.infra.validation.finding import Finding
from trainfleet.infra.validation.pools import machine_choice, pools_with_machine
from trainfleet.pydantic_messages import Path

CIDR: Path = ("network", "cidr")
PRIVATE = tuple(map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
CARRIER_GRADE = IPv4Network("100.64.0.0/10")
PRIVATE_RANGES = "inside 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 or 100.64.0.0/10"
_ACCESS: Path = ("kubernetes", "access")
_ENDPOINT, _PUBLIC, _PRIVATE = ((*_ACCESS, name) for name in ("endpoint", "public_ranges", "private_ranges"))
_DECIDES_ENDPOINT: tuple[Path, ...] = (("cloud",), _ENDPOINT, _PUBLIC, _PRIVATE)
"""Without `endpoint`, the ranges decide."""
EXAMPLES = 4
"""How many machines a message names."""
_HUB: Path = ("network", "hub")
_ENCRYPTION: Path = ("network", "encryption")


def is_private(cidr: IPv4Network) -> bool:
    """Whether a range is private or carrier-grade."""
    return any(cidr.subnet_of(each) for each in (*PRIVATE, CARRIER_GRADE))


def endpoint_is_reachable(spec: PlatformSpec) -> Iterator[Finding]:
    """`pulumi up` creates the network and the API server, and then installs the cluster layer through that
    server, so the machine that applies must be able to reach it.
    """
    cloud = support(spec.cloud)
    if not cloud.creates_cluster:
        return
    endpoint, access = cloud.endpoint(spec), spec.kubernetes.access
    if endpoint not in cloud.endpoints:
        offered = " or ".join(cloud.endpoints)
        yield Finding(_ENDPOINT, f"{spec.cloud} has no {endpoint} endpoint", offered, _DECIDES_ENDPOINT)
    elif endpoint == "public" and not access.public_ranges:
        what = "is empty, so nobody could reach the API server, and the cluster layer could not be installed"
        fix = 'the public ranges that you apply and work from, for example ["203.0.113.7/32"]'
        yield Finding(_PUBLIC, what, fix, _DECIDES_ENDPOINT)
    elif endpoint == "private" and not access.private_ranges:
        what = (
            "is empty, so nobody could reach the API server: `pulumi up` creates the network, and no machine"
            " that could install the cluster layer is in it"
        )
        others = " or ".join(each for each in cloud.endpoints if each != "private")
        fix = (
            f"the ranges of your VPN or runners, with network.hub or network.existing; or endpoint: {others}"
        )
        yield Finding(_PRIVATE, what, fix, _DECIDES_ENDPOINT)
    if endpoint != "public" and access.public_ranges:
        what = f"has no effect on a {endpoint} endpoint"
        yield Finding(_PUBLIC, what, "leave it out, or endpoint: public", _DECIDES_ENDPOINT)


@in_own_network
def network_has_egress(spec: PlatformSpec) -> Iterator[Finding]:
    """The cluster layer's charts pull from registry.k8s.io, quay.io, ghcr.io and nvcr.io. Without egress, a
    cluster pulls only from its own cloud's registries (EKS user guide, private clusters; GKE documentation,
    network isolation), and this release mirrors no images. On Azure, pods get no identity either, because
    Entra ID has public endpoints only (Private Link documentation, available services).
    """
    if spec.network.nat == "none" and support(spec.cloud).creates_cluster:
        what = "leaves nodes without egress, and the images of the cluster layer are in public registries"
        fix = "per-zone or single, or network.existing with egress of its own"
        yield Finding(("network", "nat"), what, fix, (("cloud",),))


def network_can_be_encrypted(spec: PlatformSpec) -> Iterator[Finding]:
    """A cloud encrypts traffic between machines that support it, and leaves other traffic as it is."""
    if not spec.network.encryption or not sells_machines(spec.cloud):
        return
    pattern = support(spec.cloud).encrypting_machines
    offers = [each.instance_type for each in catalogue() if each.cloud is spec.cloud and each.accelerator]
    for path, _, machine in pools_with_machine(spec):
        if not re.fullmatch(pattern, machine.instance_type.removeprefix("ml.")):
            others = [each for each in offers if re.fullmatch(pattern, each)][:EXAMPLES]
            what = f"{spec.cloud} is not known to encrypt the traffic of {machine.instance_type}"
            fix = f"another machine, for example {', '.join(others)}; or network.encryption: false"
            yield Finding((*path, "instance_type"), what, fix, (*machine_choice(path), _ENCRYPTION))


def public_ranges_are_narrow(spec: PlatformSpec) -> Iterator[Finding]:
    """Two halves of the internet are the whole internet, and a public endpoint never receives a private
    address.
    """
    for index, allowed in enumerate(spec.kubernetes.access.public_ranges):
        where = (*_PUBLIC, index)
        if allowed.prefixlen < 8:
            what = f"{allowed} opens the control plane to the internet"
            yield Finding(where, what, "the ranges of your offices, VPNs or runners")
        elif any(allowed.subnet_of(private) for private in PRIVATE):
            what = f"{allowed} is a private range, which a public endpoint never receives"
            fix = "the public addresses of its users, or kubernetes.access.private_ranges"
            yield Finding(where, what, fix)
    yield from _repeated(_PUBLIC, spec.kubernetes.access.public_ranges)


def private_ranges_are_connected(spec: PlatformSpec) -> Iterator[Finding]:
    """Clients with private addresses reach a new network through a hub only, and an existing one also from
    inside.
    """
    ranges, hub = spec.kubernetes.access.private_ranges, spec.network.hub
    existing = spec.network.existing is not None
    if ranges and hub is None and not existing:
        what = "reach nothing: the platform's network is new and connected to no other"
        yield Finding(_PRIVATE, what, "network.hub: {id: ...}, or network.existing", (_HUB, EXISTING))
    if hub is not None and not ranges:
        what = "connects networks that may not reach each other"
        yield Finding(_HUB, what, "kubernetes.access.private_ranges, or leave it out", (_PRIVATE,))
    for index, allowed in enumerate(ranges):
        where = (*_PRIVATE, index)
        if not is_private(allowed):
            yield Finding(where, f"{allowed} is not private", f"a range {PRIVATE_RANGES}")
        elif allowed.overlaps(spec.network.cidr) and not existing:
            what = f"{allowed} overlaps the platform's own range {spec.network.cidr}"
            yield Finding(where, what, "ranges of other networks", (CIDR,))
    yield from _repeated(_PRIVATE, ranges)


def hub_is_well_formed(spec: PlatformSpec) -> Iterator[Finding]:
    """Each cloud connects networks by another kind of resource."""
    hub, known = spec.network.hub, support(spec.cloud).hub
    if hub is None or known is None:
        return
    if not re.fullmatch(known.pattern, hub.id):
        yield Finding((*_HUB, "id"), f"`{hub.id}` is not a {known.noun}", known.example, (("cloud",),))
    if hub.gateway and not known.gateway:
        what = f"does not exist on {spec.cloud}"
        yield Finding((*_HUB, "gateway"), what, "leave it out", (("cloud",),))


def _repeated(path: Path, ranges: tuple[IPv4Network, ...]) -> Iterator[Finding]:
    for index, allowed in enumerate(ranges):
        wider = next((each for each in ranges if each != allowed and allowed.subnet_of(each)), None)
        if allowed in ranges[:index]:
            yield Finding((*path, index), f"{allowed} is listed twice", "keep one")
        elif wider:
            yield Finding((*path, index), f"{allowed} is contained in {wider}", "keep one of them")
