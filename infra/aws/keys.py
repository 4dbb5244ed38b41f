"""Keys: the platform's own KMS keys, one per kind of reader, each rotated every year and kept in production.

cluster: Kubernetes secrets. logs: CloudWatch. nodes: disks. data: bucket, images, shared files, secret values.
Easy to get wrong: an Auto Scaling group cannot start a node with an encrypted disk unless its service-linked role may
use the key; naming that role as principal fails in an account where it does not exist yet, so it is named by condition.
"""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
import pulumi_aws as aws

from infra.aws import policy, region
from infra.room import Room
from infra.spec import PlatformSpec

USE = ("kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey")


def owned_by_account(partition: str, account: pulumi.Input[str]) -> policy.Statement:
    """The account's IAM policies decide who uses the key; without this a key can be lost for good."""
    root = policy.arn("arn:", partition, ":iam::", account, ":root")
    return policy.statement("Account", ["kms:*"], ["*"], principal={"AWS": root})


def used_by_logs(partition: str, region_name: str, account: pulumi.Input[str]) -> policy.Statement:
    """CloudWatch Logs encrypts the log groups of this account and region, and nothing else."""
    groups = policy.arn("arn:", partition, ":logs:", region_name, ":", account, ":log-group:*")
    return policy.statement(
        "Logs",
        USE,
        ["*"],
        principal={"Service": f"logs.{region_name}.amazonaws.com"},
        when={"ArnLike": {"kms:EncryptionContext:aws:logs:arn": groups}},
    )


def used_by_service_roles(sid: str, partition: str, account: pulumi.Input[str], paths: Sequence[str]) -> policy.Statement:
    """Service-linked roles of this account, also those that do not exist yet."""
    roles = [policy.arn("arn:", partition, ":iam::", account, ":role/aws-service-role/", path) for path in paths]
    return policy.statement(
        sid, USE, ["*"], principal={"AWS": "*"}, when={"StringEquals": {"kms:CallerAccount": account}, "ArnLike": {"aws:PrincipalArn": roles}}
    )


def grants_by_service_roles(sid: str, partition: str, account: pulumi.Input[str], paths: Sequence[str]) -> policy.Statement:
    """The same roles may hand the key to an AWS resource (a disk being attached)."""
    grant = used_by_service_roles(sid, partition, account, paths)
    grant["Action"] = ["kms:CreateGrant"]
    grant["Condition"]["Bool"] = {"kms:GrantIsForAWSResource": "true"}
    return grant


NODE_STARTERS = ("autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling*", "spot.amazonaws.com/AWSServiceRoleForEC2Spot")
LUSTRE = ("s3.data-source.lustre.fsx.amazonaws.com/AWSServiceRoleForFSxS3Access_*",)


class Keys(Room):
    """The four keys of a platform: `cluster`, `logs`, `nodes`, `data`."""

    TYPE = "trainfleet:aws:Keys"

    def __init__(self, spec: PlatformSpec, account: pulumi.Input[str], *, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(spec, "keys", opts)
        partition = region.partition(spec.region)
        owner = owned_by_account(partition, account)
        self.cluster = self._key("cluster", "Kubernetes secrets", policy.document(owner))
        self.logs = self._key("logs", "log groups", policy.document(owner, used_by_logs(partition, spec.region, account)))
        self.nodes = self._key(
            "nodes",
            "disks of nodes and of persistent volumes",
            policy.document(
                owner,
                used_by_service_roles("NodeStarters", partition, account, NODE_STARTERS),
                grants_by_service_roles("NodeStartersGrant", partition, account, NODE_STARTERS),
            ),
        )
        self.data = self._key(
            "data",
            "bucket, images, shared files and secret values",
            policy.document(owner, used_by_service_roles("LustreImport", partition, account, LUSTRE)),
        )
        self.register_outputs({})

    def _key(self, what: str, purpose: str, document: policy.Document) -> aws.kms.Key:
        key = aws.kms.Key(
            self.name(f"{what}-key"),
            description=f"Trainfleet {self.spec.name}: {purpose}",
            enable_key_rotation=True,
            # The longest time to notice that a key was needed: what it encrypted cannot be read without it.
            deletion_window_in_days=30,
            policy=policy.to_json(document),
            tags=self.tags(f"{what}-key"),
            opts=self.options(f"{what}-key", keep=True),
        )
        aws.kms.Alias(
            self.name(f"{what}-key-alias"),
            # Fixed: an alias exists to be typed by people. Trying again after a failure replaces it before anything uses it.
            name=f"alias/trainfleet/{self.spec.name}/{what}",
            target_key_id=key.key_id,
            opts=self.options(f"{what}-key-alias", delete_before_replace=True),
        )
        return key
