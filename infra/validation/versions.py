"""Rules on the Kubernetes version: what the cloud offers, and how long it supports it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainfleet.dates import today
from trainfleet.infra.cloud_support import support
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.validation.finding import Finding
from trainfleet.infra.validation.pools import CLOUD, pools
from trainfleet.kubernetes_support import AFTERWARDS, SERVICES, supported_versions, versions_of
from trainfleet.pydantic_messages import Path

WHERE: Path = ("kubernetes", "version")


def kubernetes_is_supported(spec: PlatformSpec) -> Iterator[Finding]:
    """After standard support, a cloud upgrades the cluster, charges more or rejects changes
    (trainfleet/kubernetes_support.toml).
    """
    rows = {row.version: row for row in versions_of(spec.cloud)}
    if not rows:
        return
    service, day, version = SERVICES[spec.cloud], today(), spec.kubernetes.version
    current = supported_versions(spec.cloud, day)
    offered = ", ".join(row.version for row in current)
    fix = f"one of {offered}" if offered else "a newer release of Trainfleet"
    row = rows.get(version)
    if row is None:
        what = f"Kubernetes {version} on {service} is not in this release's support calendar"
        yield Finding(WHERE, what, fix, (CLOUD,))
    elif day < row.offered:
        yield Finding(WHERE, f"{service} offers Kubernetes {version} from {row.offered}", fix, (CLOUD,))
    elif day >= row.ends:
        what = f"{service}'s standard support of Kubernetes {version} ended on {row.end}"
        yield Finding(WHERE, what, fix, (CLOUD,))


def ends_of_support(spec: PlatformSpec) -> Iterator[Finding]:
    """Yield a warning from 90 days before the end of standard support. Nothing is rejected yet."""
    day = today()
    for row in supported_versions(spec.cloud, day):
        if row.version == spec.kubernetes.version and row.ends_soon(day):
            newer = [each.version for each in supported_versions(spec.cloud, day) if each.minor > row.minor]
            what = (
                f"{SERVICES[spec.cloud]}'s standard support of Kubernetes {row.version} ends on {row.end}; "
                f"{AFTERWARDS[spec.cloud]}"
            )
            fix = f"upgrade to {newer[0]}, one minor version at a time" if newer else "plan the upgrade"
            yield Finding(WHERE, what, fix, (CLOUD,))


def pool_versions_are_in_skew(spec: PlatformSpec) -> Iterator[Finding]:
    """The kubelet may be older than the API server, within a limit of the cloud, and never newer (Kubernetes
    version skew policy).
    """
    most, control = support(spec.cloud).pool_skew, _minor(spec.kubernetes.version)
    for path, pool in pools(spec):
        where, reads = (*path, "version"), (CLOUD, WHERE, (*path, "kind"))
        if not pool.version:
            continue
        if not most or pool.kind == "hyperpod":
            owner = "HyperPod" if pool.kind == "hyperpod" else str(spec.cloud)
            what = f"{owner} gives a pool's nodes the version of the control plane"
            yield Finding(where, what, "leave it out", reads)
        elif not control - most <= _minor(pool.version) <= control:
            oldest = max(control - most, 0)
            what = f"nodes of {pool.version} do not work with a control plane of {spec.kubernetes.version}"
            yield Finding(where, what, f"1.{oldest} to {spec.kubernetes.version}", reads)


def image_releases_match(spec: PlatformSpec) -> Iterator[Finding]:
    """A release of a node image belongs to one Kubernetes version (EKS API, UpdateNodegroupVersion)."""
    pattern = support(spec.cloud).image_release
    named: list[tuple[Path, str, str, str]] = [
        (("system_pool",), spec.system_pool.image_release, spec.kubernetes.version, "nodes")
    ]
    named += [
        (path, pool.image_release, pool.version or spec.kubernetes.version, pool.kind)
        for path, pool in pools(spec)
    ]
    for path, release, version, kind in named:
        where, reads = (*path, "image_release"), (CLOUD, WHERE, (*path, "version"), (*path, "kind"))
        if not release:
            continue
        if not pattern or kind == "hyperpod":
            owner = "HyperPod" if kind == "hyperpod" else str(spec.cloud)
            what = f"{owner} chooses the image of a pool's nodes by itself"
            yield Finding(where, what, "leave it out", reads)
        elif (found := re.fullmatch(pattern, release)) is None:
            yield Finding(where, f"`{release}` is not a release", f"for example {version}.2-20261112", reads)
        elif found[1] != version:
            what = f"`{release}` is an image of Kubernetes {found[1]}, and the pool has {version}"
            yield Finding(where, what, f"a release of {version}", reads)


def _minor(version: str) -> int:
    return int(version.partition(".")[2])
