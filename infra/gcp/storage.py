"""Storage: the bucket of runs and data sets, and the bucket of its access logs. Private, retained in
production.
"""

from __future__ import annotations

import pulumi
import pulumi_gcp as gcp

from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.gcp.keys import Keys
from trainfleet.infra.gcp.layout import LOG_WRITER
from trainfleet.infra.spec.schema import PlatformSpec

RUNS_PREFIX = "runs/"
"""The prefix that training may write. It may read the whole bucket."""
ACCESS_LOG_PREFIX = "access"
SOFT_DELETE_DAYS = (7, 90)
UNFINISHED_DAYS = 7


def soft_delete_seconds(days: int) -> int:
    """How long a deleted object can be restored, within the limits of Cloud Storage."""
    low, high = SOFT_DELETE_DAYS
    return min(max(days, low), high) * 24 * 3600


def lifecycle(noncurrent_days: int, expire_days: int | None) -> list[gcp.storage.BucketLifecycleRuleArgsDict]:
    """Delete old versions and unfinished uploads, and logs after their retention."""
    rules: list[gcp.storage.BucketLifecycleRuleArgsDict] = [
        {
            "action": {"type": "Delete"},
            "condition": {"days_since_noncurrent_time": noncurrent_days, "with_state": "ARCHIVED"},
        },
        {"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": UNFINISHED_DAYS}},
    ]
    if expire_days is not None:
        rules.append({"action": {"type": "Delete"}, "condition": {"age": expire_days, "with_state": "LIVE"}})
    return rules


class Storage(PlatformComponent):
    """The buckets of a platform: `bucket` and `logs`."""

    TYPE = "trainfleet:gcp:Storage"

    def __init__(self, spec: PlatformSpec, keys: Keys, *, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(spec, "storage", opts)
        self.keys = keys
        self.logs = self._bucket(
            "access-logs", versioned=True, expire_days=spec.kubernetes.log_retention_days
        )
        writer = gcp.storage.BucketIAMMember(
            self.name("access-logs-writer"),
            bucket=self.logs.name,
            role="roles/storage.objectCreator",
            member=LOG_WRITER,
            opts=self.options(retain=True),
        )
        self.bucket = self._bucket(
            "bucket", versioned=spec.storage.versioning, logs=self.logs, after=[writer]
        )
        self.url = pulumi.Output.concat("gs://", self.bucket.name, "/", RUNS_PREFIX.rstrip("/"))
        """Where runs are stored: the only prefix that training may write."""
        self.register_outputs({"bucket": self.bucket.name})

    def _bucket(
        self,
        what: str,
        *,
        versioned: bool,
        expire_days: int | None = None,
        logs: gcp.storage.Bucket | None = None,
        after: list[gcp.storage.BucketIAMMember] | None = None,
    ) -> gcp.storage.Bucket:
        keep_days = self.spec.storage.retention_days
        return gcp.storage.Bucket(
            self.name(what),
            location=self.spec.region.upper(),
            storage_class="STANDARD",
            uniform_bucket_level_access=True,
            public_access_prevention="enforced",
            encryption={"default_kms_key_name": self.keys.data.id},
            versioning={"enabled": versioned},
            soft_delete_policy={"retention_duration_seconds": soft_delete_seconds(keep_days)},
            lifecycle_rules=lifecycle(keep_days, expire_days),
            logging={"log_bucket": logs.name, "log_object_prefix": ACCESS_LOG_PREFIX} if logs else None,
            # Outside production, destroy deletes the content as well.
            force_destroy=not self.spec.production,
            labels=self.labels(what),
            opts=self.options(retain=True, depends_on=[*self.keys.ready, *(after or [])]),
        )
