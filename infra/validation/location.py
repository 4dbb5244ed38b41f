"""Rules on where a platform stands: the cloud, its region and zones, and what a cluster that is already there
leaves open.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainfleet.infra.spec.schema import (
    Capacity,
    Cloud,
    GpuPool,
    Kubernetes,
    Network,
    PlatformSpec,
    Storage,
    SystemPool,
)
from trainfleet.infra.validation.finding import Finding
from trainfleet.pydantic_messages import Path
from trainfleet.suggestions import nearest

AWS_REGIONS: dict[str, int] = dict.fromkeys(
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
        "us-gov-east-1",
        "us-gov-west-1",
        "cn-north-1",
        "cn-northwest-1",
    ],
    3,
) | {"us-east-1": 4, "us-west-1": 2, "us-west-2": 4, "ap-northeast-2": 4}
"""How many zones a platform can spread over, by region. Names: docs.aws.amazon.com, Security Incident
Response API,
ImpactedAwsRegion. us-east-1 has six zones, but one of them (us-east-1e) takes no EKS control plane; zones are
taken from a on."""

REGION_EXAMPLES = {Cloud.AWS: "us-east-2", Cloud.GCP: "us-central1", Cloud.AZURE: "eastus"}
ACCOUNTS = {
    Cloud.AWS: ("account", r"\d{12}", "twelve digits in quotes"),
    Cloud.GCP: (
        "project",
        r"[a-z][a-z0-9-]{4,28}[a-z0-9]",
        "the project's id, for example my-project-123456",
    ),
    Cloud.AZURE: (
        "subscription",
        r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
        "the subscription's id, for example 00000000-1111-2222-3333-444444444444",
    ),
}
"""What each cloud calls an account, how its id is written, and in words. Sources: AWS account ids; Resource
Manager, project ids; Azure
subscriptions are UUIDs."""

_STORES = ("s3", "gs", "az", "file")
_LOCAL_ONLY_SETTINGS = ("context", "kubeconfig")


def region_exists(spec: PlatformSpec) -> Iterator[Finding]:
    """A region misspelt is otherwise found by the provider only after it has tried to resolve its endpoint."""
    if spec.cloud is Cloud.LOCAL:
        return
    if not spec.region:
        yield Finding(
            ("region",),
            "is missing",
            f"the region of {spec.cloud}, for example {REGION_EXAMPLES[spec.cloud]}",
            (("cloud",),),
        )
    elif spec.cloud is Cloud.AWS and spec.region not in AWS_REGIONS:
        match = nearest(spec.region, AWS_REGIONS)
        fix = (
            f"did you mean `{match}`?"
            if match
            else "for example us-east-1, us-east-2, us-west-2, eu-west-1, eu-central-1, ap-northeast-1"
        )
        yield Finding(("region",), f"`{spec.region}` is not a region of aws", fix, (("cloud",),))


def account_is_named(spec: PlatformSpec) -> Iterator[Finding]:
    """GCP and Azure name every resource below a project or subscription, and a preview that guesses it would
    describe somebody else's.
    """
    if spec.cloud not in ACCOUNTS:
        return
    called, pattern, fix = ACCOUNTS[spec.cloud]
    if not spec.account and spec.cloud is not Cloud.AWS:
        yield Finding(
            ("account",), f"is missing: on {spec.cloud} everything stands in a {called}", fix, (("cloud",),)
        )
    elif spec.account and not re.fullmatch(pattern, spec.account):
        yield Finding(("account",), f"`{spec.account}` is not the id of a {called}", fix, (("cloud",),))


def region_has_zones(spec: PlatformSpec) -> Iterator[Finding]:
    """EKS wants subnets in at least two zones (EKS user guide, VPC and subnet requirements), and a region has
    only so many.
    """
    if spec.cloud is not Cloud.AWS:
        return
    where: Path = ("network", "zones")
    there = AWS_REGIONS.get(spec.region)
    if spec.network.zones < 2:
        yield Finding(where, "an EKS control plane needs two zones", "at least 2", (("cloud",),))
    elif there is not None and spec.network.zones > there:
        yield Finding(
            where,
            f"{spec.region} has {there} zones that can be used",
            f"at most {there}",
            (("cloud",), ("region",)),
        )


def zones_are_in_the_region(spec: PlatformSpec) -> Iterator[Finding]:
    """A node group's subnet lies in one zone of the platform's own region; AWS names zones by region and a
    letter.
    """
    if spec.cloud is not Cloud.AWS or spec.region not in AWS_REGIONS:
        return
    for index, pool in enumerate(spec.gpu_pools):
        if pool.zone and not re.fullmatch(re.escape(spec.region) + "[a-f]", pool.zone):
            yield Finding(
                ("gpu_pools", index, "zone"),
                f"`{pool.zone}` is not a zone of {spec.region}",
                f"one zone, for example {spec.region}a",
                (("cloud",), ("region",)),
            )


def local_has_no_cloud(spec: PlatformSpec) -> Iterator[Finding]:
    """`cloud: local` puts the layer on a cluster that is already there; what a cloud would make cannot be
    asked for.
    """
    if spec.cloud is not Cloud.LOCAL:
        return
    for where, written in _cloud_settings(spec):
        if written:
            yield Finding(
                where,
                "means nothing with cloud: local, where the cluster is already there",
                "leave it out",
                (("cloud",),),
            )


def local_stores_somewhere(spec: PlatformSpec) -> Iterator[Finding]:
    """No bucket is made on `cloud: local`, so runs must be told where to go: a store that every pod reaches."""
    where: Path = ("storage", "bucket_url")
    url = spec.storage.bucket_url
    if spec.cloud is not Cloud.LOCAL:
        if url:
            yield Finding(
                where,
                f"is for cloud: local only; on {spec.cloud} the platform makes its own bucket",
                "leave it out",
                (("cloud",),),
            )
    elif not url:
        yield Finding(
            where,
            "is missing: runs must be stored somewhere",
            "an s3://, gs://, az:// or file:// URL",
            (("cloud",),),
        )
    elif not re.fullmatch(rf"({'|'.join(_STORES)})://\S+", url):
        yield Finding(
            where,
            f"`{url}` is not a store's URL",
            "s3://, gs://, az:// or file:// and what follows",
            (("cloud",),),
        )


def local_only_settings(spec: PlatformSpec) -> Iterator[Finding]:
    """A cloud's own cluster gets its context and kubeconfig from the platform; a given one would be ignored."""
    if spec.cloud is Cloud.LOCAL:
        return
    for name in _LOCAL_ONLY_SETTINGS:
        if getattr(spec.kubernetes, name):
            yield Finding(
                ("kubernetes", name),
                f"is for cloud: local only; on {spec.cloud} the platform makes the cluster",
                "leave it out",
                (("cloud",),),
            )


def local_secrets(spec: PlatformSpec) -> Iterator[Finding]:
    """A cloud's secret store is there only with a cloud."""
    if spec.cloud is Cloud.LOCAL and spec.secrets.provider == "cloud" and spec.secrets.names:
        yield Finding(
            ("secrets", "provider"),
            "there is no cloud to keep these secrets",
            "none, and create them in the cluster",
            (("cloud",), ("secrets", "names")),
        )


def _cloud_settings(spec: PlatformSpec) -> Iterator[tuple[Path, bool]]:
    """What only a cloud can make, and whether the spec asks for it: differs from the default, which asks for
    nothing.
    """
    yield ("region",), bool(spec.region)
    yield ("account",), bool(spec.account)
    yield ("network",), spec.network != Network()
    yield ("system_pool",), spec.system_pool != SystemPool()
    yield ("budget",), spec.budget is not None
    for name in ("version", "private_endpoint", "log_retention_days", "admins"):
        yield ("kubernetes", name), getattr(spec.kubernetes, name) != getattr(Kubernetes(), name)
    for name in ("retention_days", "versioning", "shared_filesystem"):
        yield ("storage", name), getattr(spec.storage, name) != getattr(Storage(), name)
    for index, pool in enumerate(spec.gpu_pools):
        yield ("gpu_pools", index, "capacity"), pool.capacity is not Capacity.ON_DEMAND
        for name in ("kind", "reservation", "interconnect", "compact", "instance_type", "zone", "disk_gib"):
            yield ("gpu_pools", index, name), getattr(pool, name) != GpuPool.model_fields[name].default
