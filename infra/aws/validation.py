"""Rules that only AWS has, on location, network and services. Each cites its source."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from ipaddress import IPv4Network

from trainfleet.api_limits import limit
from trainfleet.infra.aws import validation_pools
from trainfleet.infra.aws.layout import (
    LOG_RETENTION_DAYS,
    LONGEST_PREFIX,
    REGIONS,
    plan,
    platform_zones,
    pool_zones,
)
from trainfleet.infra.catalog.machines import Machine, system_machine
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.validation.existing_network import in_own_network
from trainfleet.infra.validation.finding import Finding, Rule
from trainfleet.infra.validation.network import CIDR, PRIVATE_RANGES, is_private
from trainfleet.infra.validation.pools import CLOUD, pools_with_machine
from trainfleet.pydantic_messages import Path
from trainfleet.suggestions import nearest

_SMALLEST, _LARGER = limit("aws.lustre_ssd_gib", "anyOf")
LUSTRE_SMALLEST_GIB, LUSTRE_STEP_GIB, LUSTRE_LARGEST_GIB = _SMALLEST["enum"][0], _LARGER["multipleOf"], 100800
PARTITIONS = {
    "cn-": "AWS China (partition `aws-cn`)",
    "us-gov-": "AWS GovCloud (partition `aws-us-gov`)",
    "us-iso": "a partition of AWS's isolated regions",
    "eu-isoe-": "a partition of AWS's isolated regions",
    "eusc-": "the AWS European Sovereign Cloud (partition `aws-eusc`)",
}
"""Partitions other than `aws`, by the beginning of their regions' names."""
_RESERVED_ADDRESSES = 5
"""Addresses of each subnet that AWS reserves (VPC user guide, subnet sizing)."""
_ZONE_ADDRESSES = 32
"""Per zone, for the control plane's interfaces, interface endpoints, load balancers and the shared volume."""
_PREFIX = 16
"""The VPC CNI with prefix delegation takes addresses a /28 at a time (VPC CNI, ENABLE_PREFIX_DELEGATION)."""
_ARN = r"arn:aws(-cn|-us-gov)?:iam::\d{12}:(role|user)/.+"


def aws_region_is_known(spec: PlatformSpec) -> Iterator[Finding]:
    """The provider finds a misspelt region only when it resolves the endpoint.

    The regions of other partitions have other domains (China: amazonaws.com.cn in `kms:ViaService` and of the
    registries), other names of endpoint services (China: cn.com.amazonaws, aws/aws-cdk#16139), and other
    prices; a GovCloud account has no billing of its own (AWS GovCloud guide, billing).
    """
    other = next((each for start, each in PARTITIONS.items() if spec.region.startswith(start)), None)
    if other:
        what = f"`{spec.region}` is in {other}, which this release does not support"
        why = "names of services, domains and prices differ there"
        yield Finding(("region",), f"{what}: {why}", "a region of the partition `aws`", (CLOUD,))
    elif spec.region and spec.region not in REGIONS:
        match = nearest(spec.region, REGIONS)
        examples = "us-east-1, us-east-2, us-west-2, eu-west-1, eu-central-1, ap-northeast-1"
        fix = f"did you mean `{match}`?" if match else f"for example {examples}"
        yield Finding(("region",), f"`{spec.region}` is not a region of aws", fix, (CLOUD,))


def aws_region_has_zones(spec: PlatformSpec) -> Iterator[Finding]:
    """EKS requires subnets in at least two zones (EKS user guide, VPC and subnet requirements)."""
    where: Path = ("network", "zones")
    available = REGIONS.get(spec.region)
    if spec.network.zones < 2:
        yield Finding(where, "an EKS control plane needs two zones", "at least 2", (CLOUD,))
    elif available is not None and spec.network.zones > available:
        what = f"{spec.region} has {available} usable zones"
        yield Finding(where, what, f"at most {available}", (CLOUD, ("region",)))


def aws_zones_are_in_the_region(spec: PlatformSpec) -> Iterator[Finding]:
    """A node group's subnet is in one zone of the platform's region. AWS names zones by region
    and a letter.
    """
    if spec.region not in REGIONS:
        return
    for index, pool in enumerate(spec.gpu_pools):
        if pool.zone and not re.fullmatch(re.escape(spec.region) + "[a-f]", pool.zone):
            yield Finding(
                ("gpu_pools", index, "zone"),
                f"`{pool.zone}` is not a zone of {spec.region}",
                f"one zone, for example {spec.region}a",
                (CLOUD, ("region",)),
            )


def aws_vpc_size(spec: PlatformSpec) -> Iterator[Finding]:
    """A VPC is at most a /16 (VPC user guide, VPC CIDR blocks). Below a /20, an eighth is too small for a
    zone's pods.
    """
    length, sizes = spec.network.cidr.prefixlen, f"a /16 to a /{LONGEST_PREFIX}"
    if length < 16:
        yield Finding(CIDR, f"{spec.network.cidr} is larger than a VPC can be", sizes, (CLOUD,))
    elif length > LONGEST_PREFIX:
        yield Finding(CIDR, f"{spec.network.cidr} is too small to be divided into zones", sizes, (CLOUD,))


def aws_vpc_is_private(spec: PlatformSpec) -> Iterator[Finding]:
    """A VPC with public addresses hides the real owners of those addresses from everything inside it.

    A range that is too large is named for its size alone.
    """
    if spec.network.cidr.prefixlen >= 16 and not is_private(spec.network.cidr):
        yield Finding(CIDR, f"{spec.network.cidr} is not a private range", PRIVATE_RANGES, (CLOUD,))


def aws_pods_have_addresses(spec: PlatformSpec) -> Iterator[Finding]:
    """The VPC CNI gives every pod an address of the node's subnet, so at full scale a zone must hold nodes
    times pods.

    A pool that is bound to one zone takes all its nodes there, any other its share of the zones.
    """
    if spec.region not in REGIONS or not 16 <= spec.network.cidr.prefixlen <= LONGEST_PREFIX:
        return
    zones = platform_zones(spec)
    if any(zone[:-1] != spec.region or not "a" <= zone[-1] <= "f" for zone in zones):
        return
    share = math.ceil(spec.system_pool.max_nodes / len(zones)) * addresses(system_machine(spec))
    needed = dict.fromkeys(zones, share)
    for _, pool, machine in pools_with_machine(spec):
        where = pool_zones(spec, pool)
        for zone in where:
            needed[zone] += math.ceil(pool.max_nodes / len(where)) * addresses(machine)
    for planned in plan(spec):
        available = planned.private.num_addresses - _RESERVED_ADDRESSES - _ZONE_ADDRESSES
        if needed[planned.zone] > available:
            yield Finding(
                CIDR,
                f"at full scale {planned.zone} needs {needed[planned.zone]} addresses for nodes and pods, "
                f"its subnet {planned.private} has {available}",
                _larger(spec.network.cidr, needed[planned.zone] / available),
                (CLOUD, ("region",), ("network", "zones"), ("system_pool",), ("gpu_pools",)),
            )
            return


def addresses(machine: Machine) -> int:
    """Addresses that a full node takes from its subnet: its own, and its pods' in prefixes of 16 with one
    spare prefix.

    EKS limits pods by the machine's interfaces: 29 and 58 on the smallest (m7i.large, m7i.2xlarge), 110 on
    larger ones. EFA-only interfaces have no address.
    """
    pods = 30 if machine.vcpu <= 2 else 60 if machine.vcpu <= 8 else 110
    return 1 + (math.ceil(pods / _PREFIX) + 1) * _PREFIX


def _larger(cidr: IPv4Network, times: float) -> str:
    length = cidr.prefixlen - math.ceil(math.log2(times))
    return f"a /{length} or larger" if length >= 16 else "fewer nodes: even a /16 is too small"


def aws_logs_are_kept_as_sold(spec: PlatformSpec) -> Iterator[Finding]:
    """CloudWatch Logs accepts a fixed list of retentions (API PutRetentionPolicy)."""
    days = spec.kubernetes.log_retention_days
    if days not in LOG_RETENTION_DAYS:
        longer = next((each for each in LOG_RETENTION_DAYS if each >= days), LOG_RETENTION_DAYS[-1])
        yield Finding(
            ("kubernetes", "log_retention_days"),
            f"CloudWatch does not keep logs for {days} days",
            f"{longer}, or another of {', '.join(map(str, LOG_RETENTION_DAYS))}",
            (CLOUD,),
        )


def aws_people_are_roles(spec: PlatformSpec) -> Iterator[Finding]:
    """An access entry names an IAM role or user by its ARN."""
    examples = {"admins": "platform-admin", "launchers": "ml-engineer"}
    people = {"admins": spec.kubernetes.admins, "launchers": spec.kubernetes.launchers}
    for name, example in examples.items():
        for index, person in enumerate(people[name]):
            if not re.fullmatch(_ARN, person):
                yield Finding(
                    ("kubernetes", name, index),
                    f"`{person}` is not the ARN of a role",
                    f"arn:aws:iam::111122223333:role/{example}",
                    (CLOUD,),
                )


def aws_filesystem_is_sold(spec: PlatformSpec) -> Iterator[Finding]:
    """FSx for Lustre on SSD comes in 1200 GiB, 2400 GiB and steps of 2400 GiB (FSx API, CreateFileSystem
    StorageCapacity).
    """
    shared = spec.storage.shared_filesystem
    if shared is None:
        return
    path: Path = ("storage", "shared_filesystem")
    size, where, reads = shared.capacity_gib, (*path, "capacity_gib"), (CLOUD, (*path, "kind"))
    if shared.kind == "nfs":
        yield Finding((*path, "kind"), "this release has no `nfs` on aws", "lustre", (CLOUD,))
    elif size > LUSTRE_LARGEST_GIB:
        what = f"{size} GiB is more than one filesystem can have"
        yield Finding(where, what, f"at most {LUSTRE_LARGEST_GIB}", reads)
    elif size != LUSTRE_SMALLEST_GIB and size % LUSTRE_STEP_GIB:
        above = -(-size // LUSTRE_STEP_GIB) * LUSTRE_STEP_GIB
        nearest_size = LUSTRE_SMALLEST_GIB if size < LUSTRE_SMALLEST_GIB else above
        what = f"FSx for Lustre is not sold with {size} GiB"
        yield Finding(where, what, f"{nearest_size}: 1200, 2400, and more in steps of 2400", reads)


RULES: tuple[Rule, ...] = (
    aws_region_is_known,
    in_own_network(aws_region_has_zones),
    aws_zones_are_in_the_region,
    in_own_network(aws_vpc_size),
    aws_vpc_is_private,
    in_own_network(aws_pods_have_addresses),
    aws_logs_are_kept_as_sold,
    aws_people_are_roles,
    aws_filesystem_is_sold,
    *validation_pools.RULES,
)
