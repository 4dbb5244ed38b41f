"""Rules on a platform in an existing network: what it must bring, and which options have no effect there."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from trainfleet.infra.cloud_support import NetworkIds, support
from trainfleet.infra.spec.schema import ExistingNetwork, PlatformSpec
from trainfleet.infra.validation.finding import Finding, Rule
from trainfleet.pydantic_messages import Path

EXISTING: Path = ("network", "existing")
CLOUD: Path = ("cloud",)


def in_own_network(rule: Rule) -> Rule:
    """A rule on the network that the platform creates. It does not apply to an existing one."""

    @functools.wraps(rule)
    def check(spec: PlatformSpec) -> Iterator[Finding]:
        if spec.network.existing is None:
            yield from rule(spec)

    return check


def existing_network_is_complete(spec: PlatformSpec) -> Iterator[Finding]:
    """A platform needs the ids of the network and of each subnet, in the cloud's own form."""
    existing, ids = spec.network.existing, support(spec.cloud).existing_network
    if existing is None:
        return
    if ids is None:
        yield Finding(EXISTING, f"has no effect on {spec.cloud}", "leave it out", (CLOUD,))
        return
    yield from _ids(existing, ids)
    yield from _zones(spec, existing) if ids.by_zone else _named(existing, ids)


def existing_network_has_what_pools_need(spec: PlatformSpec) -> Iterator[Finding]:
    """Some filesystems and fabrics need subnets, peerings or networks that the platform creates only next to
    a network of its own.
    """
    ids, shared = support(spec.cloud).existing_network, spec.storage.shared_filesystem
    if spec.network.existing is None or ids is None:
        return
    what = f"is not supported in an existing network on {spec.cloud}"
    if shared and shared.kind in ids.no_filesystems:
        yield Finding(("storage", "shared_filesystem"), what, "leave it out", (EXISTING, CLOUD))
    for index, pool in enumerate(spec.gpu_pools):
        if pool.interconnect == "best" and ids.no_fabric:
            yield Finding(("gpu_pools", index, "interconnect"), what, "none", (EXISTING, CLOUD))


def existing_network_has_its_own_settings(spec: PlatformSpec) -> Iterator[Finding]:
    """Egress, flow logs and connections of an existing network belong to its owner."""
    if spec.network.existing is None:
        return
    ids = support(spec.cloud).existing_network
    for name in ("nat", "flow_logs", "hub", *(("zones",) if ids and ids.by_zone else ())):
        if name in spec.network.model_fields_set:
            what = "belongs to the owner of the existing network"
            yield Finding(("network", name), what, "leave it out", (EXISTING, CLOUD))


def _ids(existing: ExistingNetwork, ids: NetworkIds) -> Iterator[Finding]:
    written: list[tuple[Path, str, str, str]] = [
        ((*EXISTING, "id"), existing.id, ids.network, ids.network_example),
        *(
            ((*EXISTING, "subnets", name), each, ids.subnet, ids.subnet_example)
            for name, each in existing.subnets.items()
        ),
        *(
            ((*EXISTING, "control_plane_subnets", index), each, ids.subnet, ids.subnet_example)
            for index, each in enumerate(existing.control_plane_subnets)
        ),
    ]
    for where, value, pattern, example in written:
        if not re.fullmatch(pattern, value):
            yield Finding(where, f"`{value}` is not an id", f"for example {example}", (CLOUD,))
    for name, known in (("ranges", ids.ranges), ("dns_zones", ids.dns_zones)):
        for key in getattr(existing, name):
            if key not in known:
                fix = f"one of {', '.join(known)}" if known else "leave it out"
                yield Finding((*EXISTING, name, key), "has no effect on this cloud", fix, (CLOUD,))
    for key in ids.ranges:
        if not existing.ranges.get(key):
            yield Finding((*EXISTING, "ranges", key), "is missing", "the name of a secondary range", (CLOUD,))


def _zones(spec: PlatformSpec, existing: ExistingNetwork) -> Iterator[Finding]:
    where: Path = (*EXISTING, "subnets")
    for zone in existing.subnets:
        if not re.fullmatch(re.escape(spec.region) + "[a-f]", zone):
            yield Finding(
                (*where, zone), f"is not a zone of {spec.region}", f"{spec.region}a", (("region",),)
            )
    if len(existing.subnets) < 2:
        yield Finding(where, "a control plane needs subnets in two zones", "at least two zones", (CLOUD,))
    if existing.control_plane_subnets and len(set(existing.control_plane_subnets)) < 2:
        yield Finding(
            (*EXISTING, "control_plane_subnets"),
            "a control plane needs two subnets",
            "at least two",
            (CLOUD,),
        )
    for index, pool in enumerate(spec.gpu_pools):
        if pool.zone and pool.zone not in existing.subnets:
            what = f"`{pool.zone}` has no subnet in the existing network"
            fix = f"one of {', '.join(sorted(existing.subnets))}, or a subnet for it"
            yield Finding(("gpu_pools", index, "zone"), what, fix, (EXISTING,))


def _named(existing: ExistingNetwork, ids: NetworkIds) -> Iterator[Finding]:
    where: Path = (*EXISTING, "subnets")
    for name in ids.subnets:
        if name not in existing.subnets:
            yield Finding((*where, name), "is missing", f"its id: {ids.subnet_example}", (CLOUD,))
    for name in existing.subnets:
        if name not in ids.subnets:
            yield Finding((*where, name), "is not used", f"{', '.join(ids.subnets)}", (CLOUD,))
    if existing.control_plane_subnets:
        what = "has no effect on this cloud"
        yield Finding((*EXISTING, "control_plane_subnets"), what, "leave it out", (CLOUD,))
