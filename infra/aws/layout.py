"""Names, zones and address ranges of a platform on AWS, computed from the spec alone.

Zones are listed here and not queried, so that a preview needs no credentials. A zone's range depends on its
letter, so it never changes when other zones are added.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from ipaddress import IPv4Network

from trainfleet.api_limits import limit
from trainfleet.errors import InputError, Problem
from trainfleet.infra.spec.node_group import NodeGroup
from trainfleet.infra.spec.node_groups import node_groups
from trainfleet.infra.spec.schema import Capacity, PlatformSpec

REGIONS: dict[str, int] = dict.fromkeys(
    [
        "us-east-2",
        "ca-west-1",
        "mx-central-1",
        "sa-east-1",
        "eu-central-1",
        "eu-central-2",
        "eu-north-1",
        "eu-south-1",
        "eu-south-2",
        "eu-west-1",
        "eu-west-2",
        "eu-west-3",
        "af-south-1",
        "ap-east-1",
        "ap-east-2",
        "ap-northeast-1",
        "ap-northeast-3",
        "ap-south-1",
        "ap-south-2",
        "ap-southeast-1",
        "ap-southeast-2",
        "ap-southeast-3",
        "ap-southeast-4",
        "ap-southeast-5",
        "ap-southeast-6",
        "ap-southeast-7",
        "ca-central-1",
        "il-central-1",
        "me-central-1",
        "me-south-1",
    ],
    3,
) | {"us-east-1": 4, "us-west-1": 2, "us-west-2": 4, "ap-northeast-2": 4}
"""How many zones a platform can spread over, by region (docs.aws.amazon.com, Security Incident Response API,
ImpactedAwsRegion). us-east-1 has six zones, but us-east-1e supports no EKS control plane; zones are used in
alphabetical order.
"""
ZONE_LETTERS = {"ap-northeast-1": "acd", "ca-central-1": "abd", "us-west-1": "ac"}
"""Regions whose zones are not a, b, c: the first letters that every account can use."""
LETTERS = "abcdef"
NO_CONTROL_PLANE = ("use1-az3", "usw1-az2", "cac1-az3")
"""Ids of zones in which EKS places no control plane (EKS user guide, VPC and subnet requirements). The letter
of such a zone differs by account.
"""
LONGEST_NAME = 37
LONGEST_PREFIX = 20
"""A longer prefix leaves fewer than 500 addresses to the pods of a zone."""
HYPERPOD_REGIONS = {
    "us-east-1": "767398015722",
    "us-east-2": "851725546812",
    "us-west-1": "011528288828",
    "us-west-2": "905418368575",
    "eu-central-1": "211125453373",
    "eu-north-1": "654654141839",
    "eu-west-1": "533267293120",
    "eu-west-2": "011528288831",
    "ap-northeast-1": "533267052152",
    "ap-south-1": "011528288864",
    "ap-southeast-1": "905418428165",
    "ap-southeast-2": "851725636348",
    "sa-east-1": "025066253954",
}
"""Regions of HyperPod on EKS, and the account that publishes its health agent's image there
(aws/sagemaker-hyperpod-cli, chart health-monitoring-agent, templates/_helpers.tpl at 0ae955c).
"""
LOG_RETENTION_DAYS: tuple[int, ...] = tuple(days for days in limit("aws.log_retention_days", "enum") if days)
"""What CloudWatch Logs accepts (API PutRetentionPolicy)."""


@dataclass(frozen=True)
class ZonePlan:
    """One availability zone and its two ranges: private (nodes and pods) and public."""

    zone: str
    private: IPv4Network
    public: IPv4Network


def partition(region: str) -> str:
    """The partition in ARNs of this region."""
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"


def cluster_name(spec: PlatformSpec) -> str:
    """The EKS cluster's name: fixed, because its log group, subnet tags and contexts use it."""
    return f"trainfleet-{spec.name}"


def platform_zones(spec: PlatformSpec) -> tuple[str, ...]:
    """The zones of the platform: the first `network.zones` of the region, and every zone of a GPU pool; in an
    existing network, those of its subnets.
    """
    if spec.network.existing:
        return tuple(sorted(spec.network.existing.subnets))
    letters = ZONE_LETTERS.get(spec.region, LETTERS)[: spec.network.zones]
    named = [pool.zone for pool in spec.gpu_pools if pool.zone]
    return tuple(sorted({*(f"{spec.region}{letter}" for letter in letters), *named}))


def pool_zones(spec: PlatformSpec, pool: NodeGroup) -> tuple[str, ...]:
    """The zones of a pool: one if it is compact, reserved, uses EFA or names a zone, else all."""
    zones = platform_zones(spec)
    bound = (
        pool.compact
        or pool.interconnect == "best"
        or pool.capacity in (Capacity.RESERVED, Capacity.CAPACITY_BLOCK)
    )
    if pool.zone:
        return (pool.zone,)
    return zones[:1] if bound else zones


def group_zones(spec: PlatformSpec, group: NodeGroup) -> tuple[str, ...]:
    """The zones that get a node group of their own: those of a pool that lists several capacities.

    EKS and its autoscaler treat a group as one place: over several zones, nobody chooses the zone of the next
    node, and Auto Scaling ends nodes to even out the zones (EKS best practices, cluster autoscaler). A pool
    with one capacity stays one group, since splitting it would replace the nodes of existing platforms.
    """
    zones = pool_zones(spec, group)
    return zones if group.preferences and group.kind == "nodes" and len(zones) > 1 else ()


def node_group_prefix(spec: PlatformSpec, group: NodeGroup) -> str:
    """The name prefix of a node group: EKS allows 63 characters, of which 26 are random. Long names of the
    groups of one pool differ at the end, so they keep a digest.
    """
    name = f"{spec.name}-{group.name}-"
    if len(name) <= LONGEST_NAME or not group.preferences:
        return name[:LONGEST_NAME]
    digest = hashlib.sha256(name.encode()).hexdigest()[:6]
    return f"{name[: LONGEST_NAME - 8]}-{digest}-"


def shared_volume_zone(spec: PlatformSpec) -> str:
    """The zone of the shared filesystem: that of the first pool with a single zone, close to its readers."""
    bound = [zones[0] for pool in node_groups(spec) if len(zones := pool_zones(spec, pool)) == 1]
    return bound[0] if bound else platform_zones(spec)[0]


def plan(spec: PlatformSpec) -> tuple[ZonePlan, ...]:
    """Divide the platform's range: an eighth per zone for nodes and pods, the seventh for public subnets, the
    eighth for the control plane.

    Raises:
        InputError: the range is too small, or a pool names a zone outside the region.
    """
    cidr, zones = spec.network.cidr, platform_zones(spec)
    problems = []
    if cidr.prefixlen > LONGEST_PREFIX:
        problems.append(
            Problem(
                "network.cidr",
                f"{cidr} is too small for the pods of {len(zones)} zones",
                f"a range of /{LONGEST_PREFIX} or larger",
            )
        )
    problems += [
        Problem("gpu_pools", f"{zone} is not a zone of {spec.region}", f"{spec.region}a to {spec.region}f")
        for zone in zones
        if zone[:-1] != spec.region or zone[-1] not in LETTERS
    ]
    if problems:
        raise InputError("the network cannot be planned", problems)
    eighths = list(cidr.subnets(prefixlen_diff=3))
    public = list(eighths[6].subnets(new_prefix=min(28, cidr.prefixlen + 8)))
    return tuple(ZonePlan(zone, eighths[i], public[i]) for zone in zones for i in (LETTERS.index(zone[-1]),))


def control_plane_subnets(spec: PlatformSpec) -> dict[str, IPv4Network]:
    """The subnets of the control plane's interfaces: a /28 in each of the region's first two zones, for as
    long as the cluster exists.

    EKS accepts other subnets of a cluster only in the zones it was created with (EKS user guide, network
    requirements), so these do not depend on the zones of node pools. They are in the last eighth of the
    range.
    """
    last = list(spec.network.cidr.subnets(prefixlen_diff=3))[7]
    letters = ZONE_LETTERS.get(spec.region, LETTERS)[:2]
    return {
        f"{spec.region}{letter}": subnet
        for letter, subnet in zip(letters, last.subnets(new_prefix=28), strict=False)
    }


def service_cidr(cidr: IPv4Network) -> str:
    """A range for Kubernetes services that does not overlap the network."""
    first = IPv4Network("172.20.0.0/16")
    return "10.100.0.0/16" if cidr.overlaps(first) else str(first)


def log_retention(days: int) -> int:
    """The shortest retention CloudWatch accepts that keeps logs at least `days`."""
    return next((allowed for allowed in LOG_RETENTION_DAYS if allowed >= days), LOG_RETENTION_DAYS[-1])


def endpoint_services(spec: PlatformSpec) -> tuple[str, ...]:
    """The interface endpoints: of services that every node calls often, and in production of all services."""
    always = ("ec2", "ecr.api", "ecr.dkr", "logs", "sts")
    if not spec.production:
        return always
    all_of_them = (
        *always,
        "autoscaling",
        "eks",
        "eks-auth",
        "elasticloadbalancing",
        "kms",
        "secretsmanager",
        "ssm",
        "ssmmessages",
    )
    return tuple(sorted(all_of_them))


ROLE_PURPOSES = (
    "cluster",
    "nodes",
    "hyperpod",
    "cni",
    "csi-disk",
    "autoscaler",
    "training",
    "csi-shared",
    "secrets",
    "logs",
    "flow-logs",
)


def role_purposes(spec: PlatformSpec) -> tuple[str, ...]:
    """The purposes for which a platform has a role each."""
    optional = {
        "hyperpod": any(pool.kind == "hyperpod" for pool in node_groups(spec)),
        "csi-shared": spec.storage.shared_filesystem is not None,
        "secrets": spec.secrets.provider == "cloud" and bool(spec.secrets.names),
        "logs": spec.layer.logs,
        "flow-logs": spec.network.flow_logs and spec.network.existing is None,
    }
    return tuple(purpose for purpose in ROLE_PURPOSES if optional.get(purpose, True))


def secret_name(spec: PlatformSpec, name: str) -> str:
    """The secret's name in Secrets Manager: fixed, because people write its value by this name. NOTE: a
    deleted secret reserves its name for the recovery window; a retained one must be imported by a new stack.
    """
    return f"trainfleet/{spec.name}/{name}"


SYSTEM_DISK_GIB = 100
KEYS = ("cluster", "logs", "nodes", "data")
"""The keys of a platform: what each encrypts is in keys.py."""


@dataclass(frozen=True)
class RootVolume:
    """The root volume of a node: GiB, MiB/s and IOPS (None = the volume type's own)."""

    gib: int
    throughput: int
    iops: int | None = None
    kind: str = "gp3"


def root_volume(gib: int, *, fast: bool) -> RootVolume:
    """Return the root volume of a node. The throughput is four times the default, because a training image is
    ten gigabytes and more. Parallel pulls are slower than sequential ones below 600 MiB/s, and AWS measured
    them at 1,000 MiB/s and 16,000 IOPS.
    """
    return RootVolume(gib, 1000, 16_000) if fast else RootVolume(gib, 500)


def key_alias(spec: PlatformSpec, what: str) -> str:
    """The alias of a key: fixed, because people type it."""
    return f"alias/trainfleet/{spec.name}/{what}"
