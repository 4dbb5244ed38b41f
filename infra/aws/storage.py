"""Storage: the bucket of runs and data sets, and the bucket of its access logs. Private, retained in
production.
"""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from trainfleet.infra.aws import iam_documents
from trainfleet.infra.aws.keys import Keys
from trainfleet.infra.aws.permissions import RUNS_PREFIX
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.spec.schema import PlatformSpec

ACCESS_LOG_PREFIX = "access/"


def tls_only(bucket_arn: pulumi.Input[str]) -> iam_documents.Statement:
    """Deny access without TLS."""
    return iam_documents.statement(
        "TlsOnly",
        ["s3:*"],
        [bucket_arn, iam_documents.arn(bucket_arn, "/*")],
        effect="Deny",
        principal={"AWS": "*"},
        when={"Bool": {"aws:SecureTransport": "false"}},
    )


def log_delivery(
    log_bucket_arn: pulumi.Input[str], source_arn: pulumi.Input[str], account: pulumi.Input[str]
) -> iam_documents.Statement:
    """S3 may write the access log of the bucket."""
    return iam_documents.statement(
        "AccessLogs",
        ["s3:PutObject"],
        [iam_documents.arn(log_bucket_arn, f"/{ACCESS_LOG_PREFIX}*")],
        principal={"Service": "logging.s3.amazonaws.com"},
        when={"StringEquals": {"aws:SourceAccount": account}, "ArnLike": {"aws:SourceArn": source_arn}},
    )


class Storage(PlatformComponent):
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
        self.bucket = self._bucket("bucket")
        self.logs = self._bucket("access-logs")
        settings = [
            *self._settings("bucket", self.bucket, keys.data.arn, versioned=spec.storage.versioning),
            *self._settings("access-logs", self.logs, None, versioned=True),
        ]
        self._policy("bucket", self.bucket, iam_documents.document(tls_only(self.bucket.arn)), settings)
        delivery = self._policy(
            "access-logs",
            self.logs,
            iam_documents.document(
                tls_only(self.logs.arn), log_delivery(self.logs.arn, self.bucket.arn, account)
            ),
            settings,
        )
        self._lifecycle("bucket", self.bucket, noncurrent_days=keep_days, expire_days=None, after=settings)
        self._lifecycle(
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

    def _bucket(self, what: str) -> aws.s3.Bucket:
        return aws.s3.Bucket(
            self.name(what),
            # Outside production, destroy deletes the content as well.
            force_destroy=not self.spec.production,
            tags=self.tags(what),
            opts=self.options(retain=True),
        )

    def _settings(
        self, what: str, bucket: aws.s3.Bucket, key_arn: pulumi.Input[str] | None, *, versioned: bool
    ) -> list[pulumi.Resource]:
        private = aws.s3.BucketPublicAccessBlock(
            self.name(f"{what}-private"),
            bucket=bucket.bucket,
            block_public_acls=True,
            block_public_policy=True,
            ignore_public_acls=True,
            restrict_public_buckets=True,
            opts=self.options(retain=True),
        )
        ownership = aws.s3.BucketOwnershipControls(
            self.name(f"{what}-ownership"),
            bucket=bucket.bucket,
            rule={"object_ownership": "BucketOwnerEnforced"},
            opts=self.options(retain=True),
        )
        encryption = aws.s3.BucketServerSideEncryptionConfiguration(
            self.name(f"{what}-encryption"),
            bucket=bucket.bucket,
            rules=[
                {
                    "apply_server_side_encryption_by_default": (
                        {"sse_algorithm": "aws:kms", "kms_master_key_id": key_arn}
                        if key_arn is not None
                        else {"sse_algorithm": "AES256"}
                    ),
                    # Fewer calls to KMS: checkpoints have thousands of parts.
                    "bucket_key_enabled": key_arn is not None,
                }
            ],
            opts=self.options(retain=True),
        )
        versioning = aws.s3.BucketVersioning(
            self.name(f"{what}-versioning"),
            bucket=bucket.bucket,
            versioning_configuration={"status": "Enabled" if versioned else "Suspended"},
            opts=self.options(retain=True),
        )
        return [private, ownership, encryption, versioning]

    def _policy(
        self, what: str, bucket: aws.s3.Bucket, document: iam_documents.Document, after: list[pulumi.Resource]
    ) -> aws.s3.BucketPolicy:
        # After the access block: S3 rejects both changes at once.
        return aws.s3.BucketPolicy(
            self.name(f"{what}-policy"),
            bucket=bucket.bucket,
            policy=iam_documents.to_json(document),
            opts=self.options(retain=True, depends_on=after),
        )

    def _lifecycle(
        self,
        what: str,
        bucket: aws.s3.Bucket,
        *,
        noncurrent_days: int,
        expire_days: int | None,
        after: list[pulumi.Resource],
    ) -> None:
        everything: aws.s3.BucketLifecycleConfigurationRuleFilterArgsDict = {"prefix": ""}
        old: aws.s3.BucketLifecycleConfigurationRuleArgsDict = {
            "id": "forget-old-versions",
            "status": "Enabled",
            "filter": everything,
            "noncurrent_version_expiration": {"noncurrent_days": noncurrent_days},
        }
        unfinished: aws.s3.BucketLifecycleConfigurationRuleArgsDict = {
            "id": "drop-unfinished-uploads",
            "status": "Enabled",
            "filter": everything,
            "abort_incomplete_multipart_upload": {"days_after_initiation": 7},
        }
        # A rule either expires objects or clears delete markers; S3 rejects both at once.
        current: aws.s3.BucketLifecycleConfigurationRuleArgsDict = {
            "id": "expire" if expire_days else "clear-delete-markers",
            "status": "Enabled",
            "filter": everything,
            "expiration": {"days": expire_days} if expire_days else {"expired_object_delete_marker": True},
        }
        aws.s3.BucketLifecycleConfiguration(
            self.name(f"{what}-lifecycle"),
            bucket=bucket.bucket,
            rules=[old, unfinished, current],
            opts=self.options(retain=True, depends_on=after),
        )
