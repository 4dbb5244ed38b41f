"""Storage: the bucket of runs and data sets, and the bucket of its access logs. Private, retained in
production.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pulumi
import pulumi_gcp as gcp

from trainfleet.infra.component import PlatformComponent, SpecComponent
from trainfleet.infra.gcp.keys import Keys
from trainfleet.infra.gcp.layout import LOG_WRITER
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.spec.storage import Storage as StorageSpec

RUNS_PREFIX = "runs/"
"""The prefix that training may write. It may read the whole bucket."""
ACCESS_LOG_PREFIX = "access"
SOFT_DELETE_DAYS = (7, 90)
UNFINISHED_DAYS = 7


def soft_delete_days(days: int) -> int:
    """How long a deleted object can be restored, within the limits of Cloud Storage."""
    low, high = SOFT_DELETE_DAYS
    return min(max(days, low), high)


def soft_delete_days_of_runs(kept: StorageSpec) -> int:
    """How long the bucket of runs keeps what was deleted for good; 0 = not at all.

    Soft delete has one period for the whole bucket, and comes after the rules: it also keeps each old version
    that a rule deletes (Cloud Storage guide, soft delete). With versions it is therefore as short as it can
    be, and off if even that is longer than what training replaced is kept.
    """
    if not kept.versioning:
        return soft_delete_days(kept.retention_days)
    shortest = SOFT_DELETE_DAYS[0]
    return shortest if kept.runs_days >= shortest else 0


def lifecycle(
    noncurrent_days: int, expire_days: int | None, noncurrent_days_below: Mapping[str, int] | None = None
) -> list[gcp.storage.BucketLifecycleRuleArgsDict]:
    """Delete old versions and unfinished uploads, and logs after their retention.

    `noncurrent_days_below` has fewer days for old versions below a prefix. An object is deleted when any rule
    says so.
    """
    rules: list[gcp.storage.BucketLifecycleRuleArgsDict] = [
        {
            "action": {"type": "Delete"},
            "condition": {"days_since_noncurrent_time": noncurrent_days, "with_state": "ARCHIVED"},
        },
        {"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": UNFINISHED_DAYS}},
    ]
    for prefix, days in (noncurrent_days_below or {}).items():
        if days < noncurrent_days:
            old: gcp.storage.BucketLifecycleRuleConditionArgsDict = {
                "days_since_noncurrent_time": days,
                "matches_prefixes": [prefix],
                "with_state": "ARCHIVED",
            }
            rules.append({"action": {"type": "Delete"}, "condition": old})
    if expire_days is not None:
        rules.append({"action": {"type": "Delete"}, "condition": {"age": expire_days, "with_state": "LIVE"}})
    return rules


def private_bucket(
    component: SpecComponent[Any],
    what: str,
    key: pulumi.Input[str],
    *,
    keep_days: int,
    versioned: bool,
    keep_days_below: Mapping[str, int] | None = None,
    deleted_days: int | None = None,
    expire_days: int | None = None,
    logs: gcp.storage.Bucket | None = None,
    after: Iterable[pulumi.Resource] = (),
) -> gcp.storage.Bucket:
    """Create a bucket: private, encrypted, retained in production.

    Args:
        component: the component that owns the bucket.
        what: the bucket's purpose, which is part of its name.
        key: ID of the key that encrypts it.
        keep_days: how long deleted and overwritten objects can be restored.
        versioned: whether overwritten objects are kept.
        keep_days_below: fewer days for old versions below a prefix.
        deleted_days: days of soft delete, 0 = off; None = `keep_days`, within the limits.
        expire_days: delete objects after these days; None = never.
        logs: the bucket that gets its access log.
        after: what must exist first, such as the permission to use the key.
    """
    if deleted_days is None:
        deleted_days = soft_delete_days(keep_days)
    return gcp.storage.Bucket(
        component.name(what),
        location=component.spec.region.upper(),
        storage_class="STANDARD",
        uniform_bucket_level_access=True,
        public_access_prevention="enforced",
        encryption={"default_kms_key_name": key},
        versioning={"enabled": versioned},
        soft_delete_policy={"retention_duration_seconds": deleted_days * 24 * 3600},
        lifecycle_rules=lifecycle(keep_days, expire_days, keep_days_below),
        logging={"log_bucket": logs.name, "log_object_prefix": ACCESS_LOG_PREFIX} if logs else None,
        # Outside production, destroy deletes the content as well.
        force_destroy=not component.spec.production,
        labels=component.labels(what),
        opts=component.options(retain=True, depends_on=after),
    )


class Storage(PlatformComponent):
    """The buckets of a platform: `bucket` and `logs`."""

    TYPE = "trainfleet:gcp:Storage"

    def __init__(self, spec: PlatformSpec, keys: Keys, *, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(spec, "storage", opts)
        keep_days = spec.storage.retention_days
        self.logs = private_bucket(
            self,
            "access-logs",
            keys.data.id,
            keep_days=keep_days,
            versioned=True,
            expire_days=spec.kubernetes.log_retention_days,
            after=keys.ready,
        )
        writer = gcp.storage.BucketIAMMember(
            self.name("access-logs-writer"),
            bucket=self.logs.name,
            role="roles/storage.objectCreator",
            member=LOG_WRITER,
            opts=self.options(retain=True),
        )
        self.bucket = private_bucket(
            self,
            "bucket",
            keys.data.id,
            keep_days=keep_days,
            versioned=spec.storage.versioning,
            keep_days_below={RUNS_PREFIX: spec.storage.runs_days},
            deleted_days=soft_delete_days_of_runs(spec.storage),
            logs=self.logs,
            after=[*keys.ready, writer],
        )
        self.url = pulumi.Output.concat("gs://", self.bucket.name, "/", RUNS_PREFIX.rstrip("/"))
        """Where runs are stored: the only prefix that training may write."""
        self.register_outputs({"bucket": self.bucket.name})
