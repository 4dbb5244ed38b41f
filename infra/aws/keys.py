"""Keys: the KMS keys of a platform, one per kind of reader, rotated every year and retained in production.

cluster: Kubernetes secrets. logs: CloudWatch. nodes: disks. data: bucket, images, shared files, secret
values.
"""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
import pulumi_aws as aws

from trainfleet.infra.aws import iam_documents, layout
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.spec.schema import PlatformSpec

USE = ("kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey")


def owned_by_account(partition: str, account: pulumi.Input[str]) -> iam_documents.Statement:
    """The account's IAM policies decide who uses the key. NOTE: without this, a key can become
    unmanageable.
    """
    root = iam_documents.arn("arn:", partition, ":iam::", account, ":root")
    return iam_documents.statement("Account", ["kms:*"], ["*"], principal={"AWS": root})


def used_by_logs(partition: str, region_name: str, account: pulumi.Input[str]) -> iam_documents.Statement:
    """CloudWatch Logs may encrypt the log groups of this account and region only."""
    groups = iam_documents.arn("arn:", partition, ":logs:", region_name, ":", account, ":log-group:*")
    return iam_documents.statement(
        "Logs",
        USE,
        ["*"],
        principal={"Service": f"logs.{region_name}.amazonaws.com"},
        when={"ArnLike": {"kms:EncryptionContext:aws:logs:arn": groups}},
    )


def used_by_service_roles(
    sid: str, partition: str, account: pulumi.Input[str], paths: Sequence[str]
) -> iam_documents.Statement:
    """Service-linked roles of this account. A condition names them, because a principal that does not exist
    yet is rejected.
    """
    roles = [
        iam_documents.arn("arn:", partition, ":iam::", account, ":role/aws-service-role/", path)
        for path in paths
    ]
    return iam_documents.statement(
        sid,
        USE,
        ["*"],
        principal={"AWS": "*"},
        when={"StringEquals": {"kms:CallerAccount": account}, "ArnLike": {"aws:PrincipalArn": roles}},
    )


def grants_by_service_roles(
    sid: str, partition: str, account: pulumi.Input[str], paths: Sequence[str]
) -> iam_documents.Statement:
    """The same roles may grant the key to an AWS resource (a disk being attached)."""
    grant = used_by_service_roles(sid, partition, account, paths)
    grant["Action"] = ["kms:CreateGrant"]
    grant["Condition"]["Bool"] = {"kms:GrantIsForAWSResource": "true"}
    return grant


NODE_STARTERS = (
    "autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling*",
    "spot.amazonaws.com/AWSServiceRoleForEC2Spot",
)
LUSTRE = ("s3.data-source.lustre.fsx.amazonaws.com/AWSServiceRoleForFSxS3Access_*",)


class Keys(PlatformComponent):
    """The four keys of a platform: `cluster`, `logs`, `nodes`, `data`."""

    TYPE = "trainfleet:aws:Keys"

    def __init__(
        self, spec: PlatformSpec, account: pulumi.Input[str], *, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__(spec, "keys", opts)
        partition = layout.partition(spec.region)
        owner = owned_by_account(partition, account)
        self.cluster = self._key("cluster", "Kubernetes secrets", iam_documents.document(owner))
        self.logs = self._key(
            "logs", "log groups", iam_documents.document(owner, used_by_logs(partition, spec.region, account))
        )
        self.nodes = self._key(
            "nodes",
            "disks of nodes and of persistent volumes",
            iam_documents.document(
                owner,
                used_by_service_roles("NodeStarters", partition, account, NODE_STARTERS),
                grants_by_service_roles("NodeStartersGrant", partition, account, NODE_STARTERS),
            ),
        )
        self.data = self._key(
            "data",
            "bucket, images, shared files and secret values",
            iam_documents.document(owner, used_by_service_roles("LustreImport", partition, account, LUSTRE)),
        )
        self.register_outputs({})

    def _key(self, what: str, purpose: str, document: iam_documents.Document) -> aws.kms.Key:
        key = aws.kms.Key(
            self.name(f"{what}-key"),
            description=f"Trainfleet {self.spec.name}: {purpose}",
            enable_key_rotation=True,
            # The longest possible window: data is unreadable without its key.
            deletion_window_in_days=30,
            policy=iam_documents.to_json(document),
            tags=self.tags(f"{what}-key"),
            opts=self.options(retain=True),
        )
        aws.kms.Alias(
            self.name(f"{what}-key-alias"),
            name=layout.key_alias(self.spec, what),
            target_key_id=key.key_id,
            opts=self.options(delete_before_replace=True),
        )
        return key
