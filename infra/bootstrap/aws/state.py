"""State: the bucket of Pulumi's state with its access log, and the keys of the bucket and of secrets.

Pulumi locks a stack with an object below `.pulumi/locks/`, so the bucket needs no other lock (Pulumi
documentation, using a DIY backend).
"""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from trainfleet.infra.aws import iam_documents, layout
from trainfleet.infra.aws.buckets import ACCESS_LOG_PREFIX, Buckets, log_delivery, tls_only
from trainfleet.infra.aws.keys import owned_by_account
from trainfleet.infra.bootstrap.schema import BootstrapSpec

LOCKS_PREFIX = ".pulumi/locks/"
LOG_DAYS = 365


class State(Buckets[BootstrapSpec]):
    """The bucket `bucket`, its key `state_key`, and the key `secrets_key` of the secrets in stacks."""

    TYPE = "trainfleet:bootstrap:aws:State"

    def __init__(
        self,
        spec: BootstrapSpec,
        account: pulumi.Input[str],
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "state", opts)
        owner = owned_by_account(layout.partition(spec.region), account)
        self.state_key = self._key("state", "Pulumi state", iam_documents.document(owner))
        self.secrets_key = self._key("secrets", "secrets in stacks", iam_documents.document(owner))
        self.bucket = self.private_bucket("state")
        self.logs = self.private_bucket("state-access-logs")
        settings = [
            *self.bucket_settings("state", self.bucket, self.state_key.arn, versioned=True),
            *self.bucket_settings("state-access-logs", self.logs, None, versioned=True),
        ]
        self.bucket_policy("state", self.bucket, iam_documents.document(tls_only(self.bucket.arn)), settings)
        logged = log_delivery(self.logs.arn, self.bucket.arn, account)
        delivery = self.bucket_policy(
            "state-access-logs",
            self.logs,
            iam_documents.document(tls_only(self.logs.arn), logged),
            settings,
        )
        days = spec.retention_days
        self.bucket_lifecycle("state", self.bucket, noncurrent_days=days, expire_days=None, after=settings)
        self.bucket_lifecycle(
            "state-access-logs", self.logs, noncurrent_days=days, expire_days=LOG_DAYS, after=settings
        )
        aws.s3.BucketLogging(
            self.name("state-logging"),
            bucket=self.bucket.bucket,
            target_bucket=self.logs.bucket,
            target_prefix=ACCESS_LOG_PREFIX,
            opts=self.options(retain=True, depends_on=[delivery]),
        )
        self.register_outputs({"bucket": self.bucket.bucket})

    def _key(self, what: str, purpose: str, document: iam_documents.Document) -> aws.kms.Key:
        return aws.kms.Key(
            self.name(f"{what}-key"),
            description=f"Trainfleet {self.spec.name}: {purpose}",
            enable_key_rotation=True,
            # The longest possible window: state and secrets are unreadable without their key.
            deletion_window_in_days=30,
            policy=iam_documents.to_json(document),
            tags=self.tags(f"{what}-key"),
            opts=self.options(retain=True),
        )
