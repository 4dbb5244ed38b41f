"""Rules that only `cloud: local` has: what an existing cluster cannot provide, and what it needs instead."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainfleet.infra.spec.schema import (
    Capacity,
    GpuPool,
    Kubernetes,
    Network,
    PlatformSpec,
    SystemPool,
)
from trainfleet.infra.spec.storage import Storage
from trainfleet.infra.validation.finding import Finding, Rule
from trainfleet.infra.validation.pools import CLOUD, pools
from trainfleet.pydantic_messages import Path

_STORES = ("s3", "gs", "az", "file")


def local_has_no_cloud(spec: PlatformSpec) -> Iterator[Finding]:
    """The layer is installed on an existing cluster, so settings of a cluster that a cloud creates have no
    effect.
    """
    for where, changed in _cloud_settings(spec):
        if changed:
            what = "has no effect with cloud: local, which uses an existing cluster"
            yield Finding(where, what, "leave it out", (CLOUD,))


def local_has_a_store(spec: PlatformSpec) -> Iterator[Finding]:
    """No bucket is created, so the spec must name a store that every pod can reach."""
    where: Path = ("storage", "bucket_url")
    url = spec.storage.bucket_url
    if not url:
        what = "is missing: runs need a store"
        yield Finding(where, what, "an s3://, gs://, az:// or file:// URL", (CLOUD,))
    elif not re.fullmatch(rf"({'|'.join(_STORES)})://\S+", url):
        what = f"`{url}` is not the URL of a store"
        yield Finding(where, what, "an s3://, gs://, az:// or file:// URL", (CLOUD,))


def local_has_no_secret_store(spec: PlatformSpec) -> Iterator[Finding]:
    """Only a cloud has a secret store."""
    if spec.secrets.provider == "cloud" and spec.secrets.names:
        where: Path = ("secrets", "provider")
        reads: tuple[Path, ...] = (CLOUD, ("secrets", "names"))
        yield Finding(
            where, "there is no cloud to store secrets in", "none, and create them in the cluster", reads
        )


def local_launchers_are_groups(spec: PlatformSpec) -> Iterator[Finding]:
    """A cluster identifies groups by name, and reserves `system:`."""
    for index, launcher in enumerate(spec.kubernetes.launchers):
        if not launcher.strip() or launcher.startswith("system:"):
            where: Path = ("kubernetes", "launchers", index)
            fix = "a group's name, as the cluster's login reports it"
            yield Finding(where, f"`{launcher}` is not a group of yours", fix, (CLOUD,))


def _cloud_settings(spec: PlatformSpec) -> Iterator[tuple[Path, bool]]:
    """Settings of what only a cloud creates, and whether the spec changes them from the default."""
    yield ("region",), bool(spec.region)
    yield ("account",), bool(spec.account)
    yield ("network",), spec.network != Network()
    yield ("system_pool",), spec.system_pool != SystemPool()
    yield ("budget",), spec.budget is not None
    for name in ("version", "access", "log_retention_days", "admins"):
        yield ("kubernetes", name), getattr(spec.kubernetes, name) != getattr(Kubernetes(), name)
    for name in ("retention_days", "runs_retention_days", "versioning", "shared_filesystem"):
        yield ("storage", name), getattr(spec.storage, name) != getattr(Storage(), name)
    for path, pool in pools(spec):
        yield (*path, "capacity"), pool.capacity is not Capacity.ON_DEMAND
        for name in ("reservation", "interconnect", "compact", "instance_type", "zone", "disk_gib"):
            yield (*path, name), getattr(pool, name) != GpuPool.model_fields[name].default


RULES: tuple[Rule, ...] = (
    local_has_no_cloud,
    local_has_a_store,
    local_has_no_secret_store,
    local_launchers_are_groups,
)
