"""Rules that only Google Cloud has, on location, network and services. Each cites its source."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from ipaddress import IPv4Network

from trainfleet.api_limits import limit
from trainfleet.infra.gcp import layout, validation_pools
from trainfleet.infra.spec.node_groups import node_groups
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.validation.existing_network import in_own_network
from trainfleet.infra.validation.finding import Finding, Rule
from trainfleet.infra.validation.network import CARRIER_GRADE, CIDR, PRIVATE_RANGES, is_private
from trainfleet.infra.validation.pools import CLOUD, pools, pools_with_machine
from trainfleet.pydantic_messages import Path
from trainfleet.suggestions import nearest

MOST_LOG_DAYS: int = limit("gcp.log_retention_days", "maximum")
MOST_CHANNELS: int = limit("gcp.budget_channels", "maxItems")
MOST_LABELS: int = limit("gcp.labels", "maxProperties")
OWN_LABELS = ("name", "trainfleet-platform", "trainfleet-environment", "trainfleet-owner", "trainfleet-stack")
"""Labels that the platform sets on every resource (infra/tags.py)."""
_SPEEDS = (1000, 500, 250, 125)
LUSTRE_STEP_GIB: dict[int, int] = {each: limit(f"gcp.lustre_gib.{each}", "multipleOf") for each in _SPEEDS}
"""By MB/s per TiB: the smallest capacity and the step."""
LUSTRE_LARGEST_GIB: dict[int, int] = {each: limit(f"gcp.lustre_gib.{each}", "maximum") for each in _SPEEDS}
FILESTORE_STEPPED_FROM_GIB, FILESTORE_STEP_GIB = 10240, 2560
FILESTORE_SMALLEST_GIB: int = limit("gcp.filestore_gib", "minimum")
FILESTORE_LARGEST_GIB: int = limit("gcp.filestore_gib", "maximum")
SERVICES_PREFIX = {"lustre": 20, "nfs": 24}
_RESERVED_ADDRESSES = 4
"""Addresses of each subnet that Google reserves (VPC guide, subnets)."""
_NODE_INTERNAL = IPv4Network("172.17.0.0/16")
_LARGEST = 8
_EMAIL = r"[^@\s:]+@[^@\s:]+\.[^@\s:]+"
_SHARED: Path = ("storage", "shared_filesystem")


def gcp_region_is_known(spec: PlatformSpec) -> Iterator[Finding]:
    """The provider finds a misspelt region only with its first API call (Compute Engine guide, regions and
    zones).
    """
    if not spec.region or spec.region in layout.ZONE_LETTERS:
        return
    known = tuple(layout.ZONE_LETTERS)
    match = nearest(spec.region, known)
    zone = layout.region_of(spec.region)
    if zone in known:
        fix = f"that is a zone; its region is {zone}"
    else:
        fix = (
            f"did you mean `{match}`?"
            if match
            else "for example us-central1, us-east4, europe-west4, asia-southeast1"
        )
    yield Finding(("region",), f"`{spec.region}` is not a region of gcp", fix, (CLOUD,))


def gcp_region_has_zones(spec: PlatformSpec) -> Iterator[Finding]:
    """Nodes are in the zones of the region, and most have three (Compute Engine guide, regions and zones)."""
    there = len(layout.zones(spec.region))
    if there and spec.network.zones > there:
        yield Finding(
            ("network", "zones"),
            f"{spec.region} has {there} zones",
            f"at most {there}",
            (CLOUD, ("region",)),
        )


def gcp_zones_are_in_the_region(spec: PlatformSpec) -> Iterator[Finding]:
    """A regional cluster has nodes only in its own region, and not every region has a zone a (us-east1 has b,
    c and d).
    """
    there = layout.zones(spec.region)
    if not there:
        return
    for path, pool in pools(spec):
        if pool.zone and pool.zone not in there:
            where = (*path, "zone")
            yield Finding(
                where,
                f"`{pool.zone}` is not a zone of {spec.region}",
                f"one of {', '.join(there)}",
                (CLOUD, ("region",)),
            )


def gcp_network_can_be_divided(spec: PlatformSpec) -> Iterator[Finding]:
    """Half of the range is for pods, a /24 per node. A subnet's range is at most a /8 (VPC guide,
    subnets).
    """
    cidr = spec.network.cidr
    sizes = f"a /{_LARGEST} to a /{layout.LONGEST_PREFIX}"
    if cidr.prefixlen > layout.LONGEST_PREFIX:
        yield Finding(
            CIDR, f"{cidr} is too small to be divided into nodes, pods and services", sizes, (CLOUD,)
        )
    elif cidr.prefixlen < _LARGEST:
        yield Finding(CIDR, f"{cidr} is larger than a network can be", sizes, (CLOUD,))


def gcp_network_is_private(spec: PlatformSpec) -> Iterator[Finding]:
    """Public addresses hide their real owners, and GKE nodes use 172.17.0.0/16 themselves (GKE guide,
    VPC-native clusters). A range that is too large is named for its size alone.
    """
    cidr = spec.network.cidr
    if cidr.prefixlen < _LARGEST:
        return
    if cidr.overlaps(_NODE_INTERNAL):
        yield Finding(
            CIDR,
            f"{cidr} overlaps {_NODE_INTERNAL}, which GKE's nodes use internally",
            "another range, for example 10.40.0.0/16",
            (CLOUD,),
        )
    elif not is_private(cidr):
        yield Finding(CIDR, f"{cidr} is not a private range", PRIVATE_RANGES, (CLOUD,))
    elif spec.storage.shared_filesystem and cidr.subnet_of(CARRIER_GRADE):
        what = "Google's own services (Filestore, Managed Lustre) take ranges of RFC 1918 only"
        yield Finding(CIDR, what, "inside 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16", (CLOUD, _SHARED))


def gcp_nodes_have_pod_ranges(spec: PlatformSpec) -> Iterator[Finding]:
    """GKE gives each node a /24 for 110 pods, and a pool one more node during an upgrade (GKE guide, flexible
    pod CIDR).
    """
    if not _LARGEST <= spec.network.cidr.prefixlen <= layout.LONGEST_PREFIX:
        return
    pods = layout.plan(spec).pods
    there = 2 ** (layout.POD_PREFIX - pods.prefixlen)
    needed = spec.system_pool.max_nodes + 1 + sum(pool.max_nodes + 1 for pool in node_groups(spec))
    if needed > there:
        length = spec.network.cidr.prefixlen - math.ceil(math.log2(needed / there))
        fix = f"a /{length} or larger, or fewer nodes" if length >= _LARGEST else "fewer nodes"
        what = (
            f"at full scale there are {needed} nodes (one more per pool during an upgrade), "
            f"and {pods} for pods is enough for {there}"
        )
        yield Finding(CIDR, what, fix, (CLOUD, ("system_pool",), ("gpu_pools",)))


def gcp_fabric_has_addresses(spec: PlatformSpec) -> Iterator[Finding]:
    """Each fabric interface of each node takes an address of its own subnet, a 256th of the range (VPC guide,
    multiple interfaces).
    """
    if not _LARGEST <= spec.network.cidr.prefixlen <= layout.LONGEST_PREFIX:
        return
    there = layout.plan(spec).fabric[0].num_addresses - _RESERVED_ADDRESSES
    needed = sum(
        pool.max_nodes + 1
        for _, pool, machine in pools_with_machine(spec)
        if layout.uses_fabric(pool, machine)
    )
    if needed > there:
        what = f"the fabric of {needed} nodes needs an address for each, and its subnets have {there}"
        yield Finding(CIDR, what, "a larger range, or fewer nodes", (CLOUD, ("gpu_pools",)))


def gcp_services_have_addresses(spec: PlatformSpec) -> Iterator[Finding]:
    """Managed Lustre needs a /20 of its own, zonal Filestore a /24 (their guides, private services access).
    They get an eighth.
    """
    shared = spec.storage.shared_filesystem
    if shared is None or not _LARGEST <= spec.network.cidr.prefixlen <= layout.LONGEST_PREFIX:
        return
    required, there = SERVICES_PREFIX[shared.kind], layout.plan(spec).google_services
    if there.prefixlen > required:
        what = f"an eighth of it, {there}, is too small for the shared filesystem, which needs a /{required}"
        yield Finding(CIDR, what, f"a /{required - 3} or larger", (CLOUD, _SHARED))


def gcp_logs_are_kept_as_offered(spec: PlatformSpec) -> Iterator[Finding]:
    """A log bucket keeps logs for 1 to 3650 days (Cloud Logging guide, custom retention)."""
    if spec.kubernetes.log_retention_days > MOST_LOG_DAYS:
        what = f"Cloud Logging does not keep logs for {spec.kubernetes.log_retention_days} days"
        yield Finding(("kubernetes", "log_retention_days"), what, f"at most {MOST_LOG_DAYS}", (CLOUD,))


def gcp_people_are_emails(spec: PlatformSpec) -> Iterator[Finding]:
    """GKE identifies people, groups and service accounts by e-mail address (GKE guide, role-based access
    control).
    """
    for name in ("admins", "launchers"):
        for index, who in enumerate(getattr(spec.kubernetes, name)):
            if not re.fullmatch(f"((user|group|serviceAccount):)?{_EMAIL}", who):
                yield Finding(
                    ("kubernetes", name, index),
                    f"`{who}` is not an e-mail address",
                    "for example someone@example.com, group:team@example.com or the address of a service"
                    " account",
                    (CLOUD,),
                )


def gcp_launcher_groups_share_a_domain(spec: PlatformSpec) -> Iterator[Finding]:
    """Role bindings of GKE see the groups of one domain, through its group gke-security-groups (GKE guide,
    Google Groups for RBAC).
    """
    first = ""
    for index, who in enumerate(spec.kubernetes.launchers):
        domain = who.rpartition("@")[2] if who.startswith("group:") else ""
        if domain and first and domain != first:
            yield Finding(
                ("kubernetes", "launchers", index),
                f"is a group of {domain}, and another launcher is one of {first}",
                f"groups of {first}, which may contain others",
                (CLOUD,),
            )
        first = first or domain


def gcp_filesystem_is_sold(spec: PlatformSpec) -> Iterator[Finding]:
    """Managed Lustre comes in steps that depend on its throughput (Managed Lustre guide, performance tiers).
    Zonal Filestore comes in GiB up to 10 TiB and in steps of 2560 GiB beyond (Filestore guide, service
    tiers).
    """
    shared = spec.storage.shared_filesystem
    if shared is None:
        return
    where, size = (*_SHARED, "capacity_gib"), shared.capacity_gib
    reads = (CLOUD, (*_SHARED, "kind"), (*_SHARED, "throughput_mbps_per_tib"))
    if shared.kind == "lustre":
        step, largest = (
            LUSTRE_STEP_GIB[shared.throughput_mbps_per_tib],
            LUSTRE_LARGEST_GIB[shared.throughput_mbps_per_tib],
        )
        smallest, what = (
            step,
            f"Managed Lustre with {shared.throughput_mbps_per_tib} MB/s per TiB is not sold with {size} GiB",
        )
    else:
        step = FILESTORE_STEP_GIB if size >= FILESTORE_STEPPED_FROM_GIB else 1
        smallest, largest = FILESTORE_SMALLEST_GIB, FILESTORE_LARGEST_GIB
        what = f"Filestore is not sold with {size} GiB"
    if size % step or not smallest <= size <= largest:
        offered = min(max(-(-size // step) * step, smallest), largest)
        more = f", and more in steps of {step}" if step > 1 else ""
        yield Finding(where, what, f"{offered}{more}, at most {largest}", reads)


def gcp_budget_has_few_channels(spec: PlatformSpec) -> Iterator[Finding]:
    """A budget notifies at most five channels (Cloud Billing API, Budget.allUpdatesRule)."""
    if spec.budget and len(spec.budget.emails) > MOST_CHANNELS:
        what = f"{len(spec.budget.emails)} addresses are too many for a budget on gcp"
        yield Finding(
            ("budget", "emails"), what, f"at most {MOST_CHANNELS}: use a mailing list for more", (CLOUD,)
        )


def gcp_tags_fit_labels(spec: PlatformSpec) -> Iterator[Finding]:
    """A resource has at most 64 labels, in lower case, 63 characters long, starting with a letter (Resource
    Manager guide, labels).
    """
    seen: dict[str, str] = {}
    for key, value in spec.tags.items():
        where: Path = ("tags", key)
        label = layout.label_text(key)
        if len(key) > 63 or len(value) > 63:
            yield Finding(
                where,
                "is longer than the 63 characters of a label on gcp",
                "a shorter key and value",
                (CLOUD,),
            )
        elif not re.match("[a-z]", label):
            yield Finding(
                where,
                "does not start with a letter, as a label on gcp must",
                "a key that starts with a letter",
                (CLOUD,),
            )
        elif label in OWN_LABELS:
            yield Finding(
                where,
                f"becomes the label `{label}`, which the platform sets itself",
                "another key",
                (CLOUD,),
            )
        elif label in seen:
            yield Finding(
                where, f"becomes the label `{label}`, as `{seen[label]}` does", "another key", (CLOUD,)
            )
        seen.setdefault(label, key)
    if len(spec.tags) > MOST_LABELS - len(OWN_LABELS):
        most = MOST_LABELS - len(OWN_LABELS)
        fix = f"at most {most}, as gcp allows {MOST_LABELS} and the platform sets {len(OWN_LABELS)}"
        yield Finding(("tags",), f"{len(spec.tags)} tags are too many", fix, (CLOUD,))


RULES: tuple[Rule, ...] = (
    gcp_region_is_known,
    gcp_region_has_zones,
    gcp_zones_are_in_the_region,
    in_own_network(gcp_network_can_be_divided),
    gcp_network_is_private,
    in_own_network(gcp_nodes_have_pod_ranges),
    in_own_network(gcp_fabric_has_addresses),
    in_own_network(gcp_services_have_addresses),
    gcp_logs_are_kept_as_offered,
    gcp_people_are_emails,
    gcp_launcher_groups_share_a_domain,
    gcp_filesystem_is_sold,
    gcp_budget_has_few_channels,
    gcp_tags_fit_labels,
    *validation_pools.RULES,
)
