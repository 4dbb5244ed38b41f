"""Rules that Google Cloud alone has, known before the engine starts. Each has its source in its docstring.

Used by `trainfleet.infra.validation`. What all clouds share (an accelerator that is sold, a fabric that is
there) is judged there; here
is what GKE, Compute Engine and the stores would refuse after a quarter of an hour of applying.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from ipaddress import IPv4Network

from trainfleet.infra.catalog.machines import Machine, machine_for_pool
from trainfleet.infra.gcp import layout, machine_zones
from trainfleet.infra.spec.schema import Capacity, Cloud, GpuPool, PlatformSpec
from trainfleet.infra.validation.finding import Finding, Rule
from trainfleet.pydantic_messages import Path
from trainfleet.suggestions import nearest

KUBERNETES_VERSIONS = ("1.33", "1.34", "1.35")
"""What the REGULAR channel offers in November 2026 (GKE release schedule)."""
MOST_LOG_DAYS = 3650
MOST_CHANNELS = 5
MOST_LABELS = 64
OWN_LABELS = ("name", "trainfleet-platform", "trainfleet-environment", "trainfleet-owner", "trainfleet-stack")
"""Labels that every resource gets from the platform itself (infra/tags.py)."""
BY_REQUEST = (Capacity.FLEX_START, Capacity.QUEUED)
NO_ON_DEMAND = ("a3-ultragpu-", "a4-")
SPOT_OR_FLEX = ("a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g")
LUSTRE_STEP_GIB = {1000: 9000, 500: 18000, 250: 36000, 125: 72000}
"""By MB/s per TiB: the least capacity, and the step."""
LUSTRE_LARGEST_GIB = {1000: 954_000, 500: 1_908_000, 250: 3_816_000, 125: 7_632_000}
FILESTORE_STEPPED_FROM_GIB, FILESTORE_STEP_GIB, FILESTORE_LARGEST_GIB = 10240, 2560, 102_400
GOOGLE_PREFIX = {"lustre": 20, "nfs": 24}
_GOOGLE_KEEPS = 4
"""Addresses of each subnet that Google keeps for itself (VPC guide, subnets)."""
_PRIVATE = tuple(map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
_CARRIER_GRADE = IPv4Network("100.64.0.0/10")
_TAKEN_BY_NODES = IPv4Network("172.17.0.0/16")
_LARGEST = 8
_OWNED_LABELS = ("cloud.google.com", "gke.io", "googleapis.com")
_EMAIL = r"[^@\s:]+@[^@\s:]+\.[^@\s:]+"
_RESERVATION = (
    r"(projects/[a-z0-9:.-]+/reservations/)?[a-z]([-a-z0-9]{0,61}[a-z0-9])?(/reservationBlocks/[a-z0-9-]+)?"
)
_CLOUD: Path = ("cloud",)
_CIDR: Path = ("network", "cidr")
_SHARED: Path = ("storage", "shared_filesystem")


def gcp_region_is_known(spec: PlatformSpec) -> Iterator[Finding]:
    """A region misspelt is otherwise found by the first call to its API (Compute Engine guide, regions and
    zones).
    """
    if _elsewhere(spec) or not spec.region or spec.region in layout.ZONE_LETTERS:
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
    yield Finding(("region",), f"`{spec.region}` is not a region of gcp", fix, (_CLOUD,))


def gcp_region_has_zones(spec: PlatformSpec) -> Iterator[Finding]:
    """Nodes are in the zones of the region, and most have three (Compute Engine guide, regions and zones)."""
    there = len(layout.zones(spec.region))
    if not _elsewhere(spec) and there and spec.network.zones > there:
        yield Finding(
            ("network", "zones"),
            f"{spec.region} has {there} zones",
            f"at most {there}",
            (_CLOUD, ("region",)),
        )


def gcp_zones_are_in_the_region(spec: PlatformSpec) -> Iterator[Finding]:
    """A regional cluster has nodes in its own region only; and not every region begins with zone a (us-east1
    has b, c, d).
    """
    there = layout.zones(spec.region)
    if _elsewhere(spec) or not there:
        return
    for path, pool in _pools(spec):
        if pool.zone and pool.zone not in there:
            where = (*path, "zone")
            yield Finding(
                where,
                f"`{pool.zone}` is not a zone of {spec.region}",
                f"one of {', '.join(there)}",
                (_CLOUD, ("region",)),
            )


def gcp_machines_are_sold_there(spec: PlatformSpec) -> Iterator[Finding]:
    """GKE refuses a pool in a zone that does not have its machine (Compute Engine guide, GPU regions and
    zones).
    """
    there = layout.zones(spec.region)
    for path, pool, machine in _machines(spec):
        sold = machine_zones.sold_in(machine.instance_type, spec.region)
        if sold is None or not there or (pool.zone and pool.zone not in there):
            continue
        reads = (*_choice(path), ("region",), ("network", "zones"), (*path, "zone"))
        where = layout.pool_zones(spec, pool)
        if not sold:
            elsewhere = ", ".join(machine_zones.regions_of(machine.instance_type))
            yield Finding(
                (*path, "accelerator"),
                f"{machine.instance_type} is not sold in {spec.region}",
                f"it is in {elsewhere}",
                reads,
            )
        elif not set(where) & set(sold):
            what = f"{machine.instance_type} is not sold in {' or '.join(where)}"
            yield Finding((*path, "zone"), what, f"zone: {' or '.join(sold)}", reads)


def gcp_network_can_be_divided(spec: PlatformSpec) -> Iterator[Finding]:
    """Half of the range is for pods, a /24 for each node; a subnet's range is a /8 at most (VPC guide,
    subnets).
    """
    if _elsewhere(spec):
        return
    cidr = spec.network.cidr
    sizes = f"a /{_LARGEST} to a /{layout.LONGEST_PREFIX}"
    if cidr.prefixlen > layout.LONGEST_PREFIX:
        yield Finding(
            _CIDR, f"{cidr} is too small to be divided into nodes, pods and services", sizes, (_CLOUD,)
        )
    elif cidr.prefixlen < _LARGEST:
        yield Finding(_CIDR, f"{cidr} is larger than a network can be", sizes, (_CLOUD,))


def gcp_network_is_private(spec: PlatformSpec) -> Iterator[Finding]:
    """Public addresses hide their owners; GKE nodes use 172.17.0.0/16 themselves (GKE guide, VPC-native
    clusters).
    """
    if _elsewhere(spec):
        return
    cidr = spec.network.cidr
    if cidr.overlaps(_TAKEN_BY_NODES):
        yield Finding(
            _CIDR,
            f"{cidr} overlaps {_TAKEN_BY_NODES}, which GKE's nodes use inside",
            "another range, for example 10.40.0.0/16",
            (_CLOUD,),
        )
    elif cidr.prefixlen >= _LARGEST and not any(cidr.subnet_of(each) for each in (*_PRIVATE, _CARRIER_GRADE)):
        fix = "inside 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 or 100.64.0.0/10"
        yield Finding(_CIDR, f"{cidr} is not a private range", fix, (_CLOUD,))
    elif spec.storage.shared_filesystem and cidr.subnet_of(_CARRIER_GRADE):
        what = "Google's own services (Filestore, Managed Lustre) take ranges of RFC 1918 only"
        yield Finding(_CIDR, what, "inside 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16", (_CLOUD, _SHARED))


def gcp_nodes_have_pod_ranges(spec: PlatformSpec) -> Iterator[Finding]:
    """GKE gives each node a /24 for 110 pods, and one more per pool while it is upgraded (GKE guide, flexible
    pod CIDR).
    """
    if _elsewhere(spec) or not _LARGEST <= spec.network.cidr.prefixlen <= layout.LONGEST_PREFIX:
        return
    pods = layout.plan(spec).pods
    there = 2 ** (layout.POD_PREFIX - pods.prefixlen)
    needed = spec.system_pool.max_nodes + 1 + sum(pool.max_nodes + 1 for pool in spec.gpu_pools)
    if needed > there:
        length = spec.network.cidr.prefixlen - math.ceil(math.log2(needed / there))
        fix = f"a /{length} or larger, or fewer nodes" if length >= _LARGEST else "fewer nodes"
        what = f"at full scale there are {needed} nodes (one more per pool while it is upgraded), and {pods} for pods is enough for {there}"
        yield Finding(_CIDR, what, fix, (_CLOUD, ("system_pool",), ("gpu_pools",)))


def gcp_fabric_has_addresses(spec: PlatformSpec) -> Iterator[Finding]:
    """Each fabric interface of each node takes an address of its own subnet, a 256th of the range (VPC guide,
    multiple interfaces).
    """
    if _elsewhere(spec) or not _LARGEST <= spec.network.cidr.prefixlen <= layout.LONGEST_PREFIX:
        return
    there = layout.plan(spec).fabric[0].num_addresses - _GOOGLE_KEEPS
    needed = sum(
        pool.max_nodes + 1 for _, pool, machine in _machines(spec) if layout.uses_fabric(pool, machine)
    )
    if needed > there:
        what = f"the fabric of {needed} nodes needs an address for each, and its subnets have {there}"
        yield Finding(_CIDR, what, "a larger range, or fewer nodes", (_CLOUD, ("gpu_pools",)))


def gcp_google_has_addresses(spec: PlatformSpec) -> Iterator[Finding]:
    """Managed Lustre wants a /20 of its own, zonal Filestore a /24 (their guides, private services access);
    they get an eighth.
    """
    wish = spec.storage.shared_filesystem
    if (
        _elsewhere(spec)
        or wish is None
        or not _LARGEST <= spec.network.cidr.prefixlen <= layout.LONGEST_PREFIX
    ):
        return
    wanted, there = GOOGLE_PREFIX[wish.kind], layout.plan(spec).google
    if there.prefixlen > wanted:
        what = f"an eighth of it, {there}, is too small for the shared filesystem, which wants a /{wanted}"
        yield Finding(_CIDR, what, f"a /{wanted - 3} or larger", (_CLOUD, _SHARED))


def gcp_rdma_is_in_one_zone(spec: PlatformSpec) -> Iterator[Finding]:
    """An RDMA network is of one zone, and the names of its interfaces exist once in a cluster (VPC guide,
    RDMA network profile).
    """
    first = ""
    for path, pool, machine in _machines(spec):
        if (
            not layout.uses_fabric(pool, machine)
            or machine.rdma != "roce"
            or not layout.pool_zones(spec, pool)
        ):
            continue
        zone = layout.pool_zones(spec, pool)[0]
        first = first or zone
        if zone != first:
            what = f"another pool has its RDMA network in {first}, and a cluster has one"
            yield Finding(
                (*path, "zone"), what, f"zone: {first}, or interconnect: none", (*_choice(path), ("region",))
            )


def gcp_compact_is_not_queued(spec: PlatformSpec) -> Iterator[Finding]:
    """GKE refuses compact placement with queued provisioning (GKE guide, compact placement; cluster-toolkit's
    preconditions).
    """
    for path, pool in _pools(spec):
        if pool.capacity is Capacity.QUEUED and pool.compact:
            yield Finding(
                (*path, "compact"),
                "queued nodes cannot be placed close together",
                "false, or capacity: flex-start",
                _capacity(path),
            )


def gcp_requested_pools_start_empty(spec: PlatformSpec) -> Iterator[Finding]:
    """Flex-start and queued nodes exist only while a workload asked for them (GKE guide, DWS; no static node
    count).
    """
    for path, pool in _pools(spec):
        if pool.capacity in BY_REQUEST and pool.min_nodes > 0:
            yield Finding(
                (*path, "min_nodes"),
                f"`{pool.capacity}` nodes come by request only and end by themselves",
                "0",
                _capacity(path),
            )


def gcp_run_hours_mean_something(spec: PlatformSpec) -> Iterator[Finding]:
    """Only nodes given for some time end after it (GKE guide, flex-start, maxRunDuration)."""
    for path, pool in _pools(spec):
        if (
            pool.max_run_hours != GpuPool.model_fields["max_run_hours"].default
            and pool.capacity not in BY_REQUEST
        ):
            fix = "leave it out, or capacity: flex-start or queued"
            yield Finding(
                (*path, "max_run_hours"),
                f"means nothing with capacity `{pool.capacity}`",
                fix,
                _capacity(path),
            )


def gcp_machines_are_bought_as_sold(spec: PlatformSpec) -> Iterator[Finding]:
    """A3 Ultra and A4 are not sold plainly on demand, small A3 High only as Spot or flex-start (Compute
    Engine guide, GPU machine types).
    """
    for path, pool, machine in _machines(spec):
        where, reads = (*path, "capacity"), (*_choice(path), (*path, "capacity"))
        if machine.instance_type.startswith(SPOT_OR_FLEX) and pool.capacity not in (
            Capacity.SPOT,
            *BY_REQUEST,
        ):
            yield Finding(
                where,
                f"{machine.instance_type} is sold as Spot or flex-start only",
                "spot, flex-start or queued",
                reads,
            )
        elif machine.instance_type.startswith(NO_ON_DEMAND) and pool.capacity is Capacity.ON_DEMAND:
            yield Finding(
                where,
                f"{machine.instance_type} is not sold on demand",
                "reserved, spot, flex-start or queued",
                reads,
            )


def gcp_reservations_are_named(spec: PlatformSpec) -> Iterator[Finding]:
    """A reservation is named as Compute Engine names it, with its project where it is shared, and a block
    where it has some (GKE guide, reservations).
    """
    for path, pool in _pools(spec):
        if (
            pool.capacity is Capacity.RESERVED
            and pool.reservation
            and not re.fullmatch(_RESERVATION, pool.reservation)
        ):
            fix = "its name, or projects/PROJECT/reservations/NAME where it is shared"
            yield Finding(
                (*path, "reservation"),
                f"`{pool.reservation}` is not the name of a reservation",
                fix,
                _capacity(path),
            )


def gcp_labels_of_nodes_are_free(spec: PlatformSpec) -> Iterator[Finding]:
    """GKE sets labels of its own domains and refuses them from others (GKE guide, node labels)."""
    for path, pool in _pools(spec):
        for key in pool.labels:
            domain = key.rpartition("/")[0]
            if any(domain == each or domain.endswith(f".{each}") for each in _OWNED_LABELS):
                yield Finding(
                    (*path, "labels", key),
                    f"labels of {domain} are set by GKE",
                    "a domain of your own, or none",
                    (_CLOUD,),
                )


def gcp_kubernetes_is_offered(spec: PlatformSpec) -> Iterator[Finding]:
    """The REGULAR channel offers three minor versions at a time (GKE release schedule)."""
    if not _elsewhere(spec) and spec.kubernetes.version not in KUBERNETES_VERSIONS:
        what = f"Kubernetes {spec.kubernetes.version} is not one of those this release runs on GKE"
        yield Finding(("kubernetes", "version"), what, f"one of {', '.join(KUBERNETES_VERSIONS)}", (_CLOUD,))


def gcp_logs_are_kept_as_offered(spec: PlatformSpec) -> Iterator[Finding]:
    """A log bucket keeps logs for 1 to 3650 days (Cloud Logging guide, custom retention)."""
    if not _elsewhere(spec) and spec.kubernetes.log_retention_days > MOST_LOG_DAYS:
        what = f"Cloud Logging does not keep logs for {spec.kubernetes.log_retention_days} days"
        yield Finding(("kubernetes", "log_retention_days"), what, f"at most {MOST_LOG_DAYS}", (_CLOUD,))


def gcp_people_are_emails(spec: PlatformSpec) -> Iterator[Finding]:
    """GKE knows people by the e-mail of their Google account (GKE guide, role-based access control)."""
    if _elsewhere(spec):
        return
    for name in ("admins", "launchers"):
        for index, who in enumerate(getattr(spec.kubernetes, name)):
            if not re.fullmatch(_EMAIL, who):
                yield Finding(
                    ("kubernetes", name, index),
                    f"`{who}` is not an e-mail address",
                    "for example someone@example.com",
                    (_CLOUD,),
                )


def gcp_filesystem_is_sold(spec: PlatformSpec) -> Iterator[Finding]:
    """Managed Lustre comes in steps that depend on its throughput (Managed Lustre guide, performance tiers);
    zonal Filestore in
    GiB up to 10 TiB and in steps of 2560 GiB beyond (Filestore guide, service tiers)."""
    wish = spec.storage.shared_filesystem
    if _elsewhere(spec) or wish is None:
        return
    where, size = (*_SHARED, "capacity_gib"), wish.capacity_gib
    reads = (_CLOUD, (*_SHARED, "kind"), (*_SHARED, "throughput_mbps_per_tib"))
    if wish.kind == "lustre":
        step, largest = (
            LUSTRE_STEP_GIB[wish.throughput_mbps_per_tib],
            LUSTRE_LARGEST_GIB[wish.throughput_mbps_per_tib],
        )
        smallest, what = (
            step,
            f"Managed Lustre with {wish.throughput_mbps_per_tib} MB/s per TiB is not sold with {size} GiB",
        )
    else:
        step = FILESTORE_STEP_GIB if size >= FILESTORE_STEPPED_FROM_GIB else 1
        smallest, largest, what = 1, FILESTORE_LARGEST_GIB, f"Filestore is not sold with {size} GiB"
    if size % step or not smallest <= size <= largest:
        offered = min(max(-(-size // step) * step, smallest), largest)
        more = f", and more in steps of {step}" if step > 1 else ""
        yield Finding(where, what, f"{offered}{more}, at most {largest}", reads)


def gcp_budget_tells_few(spec: PlatformSpec) -> Iterator[Finding]:
    """A budget tells five channels at most (Cloud Billing API, Budget.allUpdatesRule)."""
    if not _elsewhere(spec) and spec.budget and len(spec.budget.emails) > MOST_CHANNELS:
        what = f"{len(spec.budget.emails)} addresses are too many for a budget on gcp"
        yield Finding(
            ("budget", "emails"), what, f"at most {MOST_CHANNELS}: a mailing list tells more", (_CLOUD,)
        )


def gcp_tags_fit_labels(spec: PlatformSpec) -> Iterator[Finding]:
    """Labels are in lower case, 63 long, begin with a letter, and are 64 at most; tags are written so
    (Resource Manager guide, labels).
    """
    if _elsewhere(spec):
        return
    seen: dict[str, str] = {}
    for key, value in spec.tags.items():
        where: Path = ("tags", key)
        label = layout.label_text(key)
        if len(key) > 63 or len(value) > 63:
            yield Finding(
                where,
                "is longer than the 63 characters of a label on gcp",
                "a shorter key and value",
                (_CLOUD,),
            )
        elif not re.match("[a-z]", label):
            yield Finding(
                where,
                "does not begin with a letter, as a label on gcp must",
                "a key that begins with a letter",
                (_CLOUD,),
            )
        elif label in OWN_LABELS:
            yield Finding(
                where,
                f"becomes the label `{label}`, which the platform sets itself",
                "another key",
                (_CLOUD,),
            )
        elif label in seen:
            yield Finding(
                where, f"becomes the label `{label}`, as `{seen[label]}` does", "another key", (_CLOUD,)
            )
        seen.setdefault(label, key)
    if len(spec.tags) > MOST_LABELS - len(OWN_LABELS):
        fix = f"at most {MOST_LABELS - len(OWN_LABELS)}, as gcp allows {MOST_LABELS} and the platform sets {len(OWN_LABELS)}"
        yield Finding(("tags",), f"{len(spec.tags)} tags are too many", fix, (_CLOUD,))


RULES: tuple[Rule, ...] = (
    gcp_region_is_known,
    gcp_region_has_zones,
    gcp_zones_are_in_the_region,
    gcp_machines_are_sold_there,
    gcp_network_can_be_divided,
    gcp_network_is_private,
    gcp_nodes_have_pod_ranges,
    gcp_fabric_has_addresses,
    gcp_google_has_addresses,
    gcp_rdma_is_in_one_zone,
    gcp_compact_is_not_queued,
    gcp_requested_pools_start_empty,
    gcp_run_hours_mean_something,
    gcp_machines_are_bought_as_sold,
    gcp_reservations_are_named,
    gcp_labels_of_nodes_are_free,
    gcp_kubernetes_is_offered,
    gcp_logs_are_kept_as_offered,
    gcp_people_are_emails,
    gcp_filesystem_is_sold,
    gcp_budget_tells_few,
    gcp_tags_fit_labels,
)


def _elsewhere(spec: PlatformSpec) -> bool:
    return spec.cloud is not Cloud.GCP


def _pools(spec: PlatformSpec) -> Iterator[tuple[Path, GpuPool]]:
    if spec.cloud is Cloud.GCP:
        for index, pool in enumerate(spec.gpu_pools):
            yield ("gpu_pools", index), pool


def _machines(spec: PlatformSpec) -> Iterator[tuple[Path, GpuPool, Machine]]:
    """The pools whose machine the cloud sells; the others have their own finding."""
    for path, pool in _pools(spec):
        try:
            yield path, pool, machine_for_pool(spec.cloud, pool)
        except LookupError:
            continue


def _choice(path: Path) -> tuple[Path, ...]:
    """What the choice of a pool's machine rests on."""
    return (
        _CLOUD,
        *((*path, name) for name in ("accelerator", "per_node", "instance_type", "capacity", "interconnect")),
    )


def _capacity(path: Path) -> tuple[Path, ...]:
    return (_CLOUD, (*path, "capacity"))
