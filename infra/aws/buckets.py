"""Buckets: how every bucket is configured. Private, encrypted, versioned where asked, TLS only, retained in
production.
"""

from __future__ import annotations

from collections.abc import Mapping

import pulumi
import pulumi_aws as aws

from trainfleet.infra.aws import iam_documents
from trainfleet.infra.component import Spec, SpecComponent

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


class Buckets(SpecComponent[Spec]):
    """A component that creates buckets, each from `private_bucket` and its `bucket_` settings."""

    def private_bucket(self, what: str) -> aws.s3.Bucket:
        """Create a bucket, which needs the settings, a policy and a lifecycle as well."""
        return aws.s3.Bucket(
            self.name(what),
            # Outside production, destroy deletes the content as well.
            force_destroy=not self.spec.production,
            tags=self.tags(what),
            opts=self.options(retain=True),
        )

    def bucket_settings(
        self, what: str, bucket: aws.s3.Bucket, key_arn: pulumi.Input[str] | None, *, versioned: bool
    ) -> list[pulumi.Resource]:
        """Make a bucket private, encrypted (with the key of this ARN, or S3's own) and versioned."""
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

    def bucket_policy(
        self, what: str, bucket: aws.s3.Bucket, document: iam_documents.Document, after: list[pulumi.Resource]
    ) -> aws.s3.BucketPolicy:
        """Set a bucket's policy, after its settings."""
        # After the access block: S3 rejects both changes at once.
        return aws.s3.BucketPolicy(
            self.name(f"{what}-policy"),
            bucket=bucket.bucket,
            policy=iam_documents.to_json(document),
            opts=self.options(retain=True, depends_on=after),
        )

    def bucket_lifecycle(
        self,
        what: str,
        bucket: aws.s3.Bucket,
        *,
        noncurrent_days: int,
        expire_days: int | None,
        after: list[pulumi.Resource],
        noncurrent_days_below: Mapping[str, int] | None = None,
    ) -> None:
        """Delete unfinished uploads, old versions and, if asked, objects after these days.

        Args:
            what: part of the resource's name.
            bucket: whose objects.
            noncurrent_days: days until an old version is deleted.
            expire_days: days until an object is deleted; None: never.
            after: what must exist before.
            noncurrent_days_below: fewer days for old versions, by prefix. Where rules overlap, the shortest
                applies (S3 user guide, conflicts in lifecycle configurations).
        """
        everything: aws.s3.BucketLifecycleConfigurationRuleFilterArgsDict = {"prefix": ""}
        old: aws.s3.BucketLifecycleConfigurationRuleArgsDict = {
            "id": "forget-old-versions",
            "status": "Enabled",
            "filter": everything,
            "noncurrent_version_expiration": {"noncurrent_days": noncurrent_days},
        }
        old_below: list[aws.s3.BucketLifecycleConfigurationRuleArgsDict] = [
            {
                "id": f"forget-old-versions-{prefix.rstrip('/')}",
                "status": "Enabled",
                "filter": {"prefix": prefix},
                "noncurrent_version_expiration": {"noncurrent_days": days},
            }
            for prefix, days in (noncurrent_days_below or {}).items()
            if days < noncurrent_days
        ]
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
            rules=[old, unfinished, current, *old_below],
            opts=self.options(retain=True, depends_on=after),
        )
