"""Storage: the bucket of runs and data sets, and the bucket of its access logs. Private, retained in
production.
"""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from trainfleet.infra.aws import iam_documents
from trainfleet.infra.aws.buckets import ACCESS_LOG_PREFIX, Buckets, log_delivery, tls_only
from trainfleet.infra.aws.keys import Keys
from trainfleet.infra.aws.permissions import RUNS_PREFIX
from trainfleet.infra.spec.schema import PlatformSpec


class Storage(Buckets[PlatformSpec]):
    """The buckets of a platform: `bucket` and `logs`."""

    TYPE = "trainfleet:aws:Storage"

    def __init__(
        self,
        spec: PlatformSpec,
        keys: Keys,
        account: pulumi.Input[str],
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "storage", opts)
        keep_days = spec.storage.retention_days
        self.bucket = self.private_bucket("bucket")
        self.logs = self.private_bucket("access-logs")
        settings = [
            *self.bucket_settings("bucket", self.bucket, keys.data.arn, versioned=spec.storage.versioning),
            *self.bucket_settings("access-logs", self.logs, None, versioned=True),
        ]
        self.bucket_policy("bucket", self.bucket, iam_documents.document(tls_only(self.bucket.arn)), settings)
        delivery = self.bucket_policy(
            "access-logs",
            self.logs,
            iam_documents.document(
                tls_only(self.logs.arn), log_delivery(self.logs.arn, self.bucket.arn, account)
            ),
            settings,
        )
        self.bucket_lifecycle(
            "bucket",
            self.bucket,
            noncurrent_days=keep_days,
            noncurrent_days_below={RUNS_PREFIX: spec.storage.runs_days},
            expire_days=None,
            after=settings,
        )
        self.bucket_lifecycle(
            "access-logs",
            self.logs,
            noncurrent_days=keep_days,
            expire_days=spec.kubernetes.log_retention_days,
            after=settings,
        )
        aws.s3.BucketLogging(
            self.name("bucket-logging"),
            bucket=self.bucket.bucket,
            target_bucket=self.logs.bucket,
            target_prefix=ACCESS_LOG_PREFIX,
            opts=self.options(retain=True, depends_on=[delivery]),
        )
        self.url = pulumi.Output.concat("s3://", self.bucket.bucket, "/", RUNS_PREFIX.rstrip("/"))
        """Where runs are stored: the only prefix that training may write."""
        self.register_outputs({"bucket": self.bucket.bucket})
