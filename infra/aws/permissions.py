"""What each role of the platform may do: identity policies as pure functions, least privilege. Used by identity.py.

A resource is `*` only where AWS knows no narrower one for the action (Describe and List calls); each such statement says so.
"""

from __future__ import annotations

from collections.abc import Sequence

import pulumi

from infra.aws.policy import Document, arn, document, statement

RUNS_PREFIX = "runs/"
"""Where in the bucket training writes. It reads the whole bucket (data sets beside runs) and writes here only."""


def cluster_secrets(key_arn: pulumi.Input[str]) -> Document:
    """The control plane wraps Kubernetes secrets with its own key."""
    return document(statement("WrapSecrets", ["kms:Encrypt", "kms:Decrypt", "kms:ListGrants", "kms:DescribeKey"], [key_arn]))


def training(bucket_arn: pulumi.Input[str], key_arn: pulumi.Input[str], region: str) -> Document:
    """Training pods: read the bucket, write runs. No DeleteObjectVersion: what a run deletes can be brought back."""
    return document(
        statement("List", ["s3:ListBucket", "s3:ListBucketMultipartUploads", "s3:GetBucketLocation"], [bucket_arn]),
        statement("Read", ["s3:GetObject", "s3:GetObjectAttributes"], [arn(bucket_arn, "/*")]),
        statement(
            "WriteRuns",
            ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"],
            [arn(bucket_arn, f"/{RUNS_PREFIX}*")],
        ),
        statement(
            "BucketKey",
            ["kms:Decrypt", "kms:GenerateDataKey"],
            [key_arn],
            when={"StringEquals": {"kms:ViaService": f"s3.{region}.amazonaws.com"}},
        ),
    )


def autoscaler(partition: str, region: str, account: pulumi.Input[str], cluster: str) -> Document:
    """The cluster autoscaler: sees all groups, scales those that EKS tagged as this cluster's."""
    return document(
        # Describe calls of Auto Scaling and EC2 know no resources.
        statement(
            "See",
            [
                "autoscaling:DescribeAutoScalingGroups",
                "autoscaling:DescribeAutoScalingInstances",
                "autoscaling:DescribeLaunchConfigurations",
                "autoscaling:DescribeScalingActivities",
                "autoscaling:DescribeTags",
                "ec2:DescribeImages",
                "ec2:DescribeInstanceTypes",
                "ec2:DescribeLaunchTemplateVersions",
                "ec2:GetInstanceTypesFromInstanceRequirements",
            ],
            ["*"],
        ),
        # Labels and taints of a group without nodes: without this a pool never scales up from zero.
        statement(
            "SeeNodeGroups",
            ["eks:DescribeNodegroup"],
            [arn("arn:", partition, ":eks:", region, ":", account, f":nodegroup/{cluster}/*")],
        ),
        statement(
            "Scale",
            ["autoscaling:SetDesiredCapacity", "autoscaling:TerminateInstanceInAutoScalingGroup"],
            [arn("arn:", partition, ":autoscaling:", region, ":", account, ":autoScalingGroup:*:autoScalingGroupName/*")],
            when={"StringEquals": {f"aws:ResourceTag/k8s.io/cluster-autoscaler/{cluster}": "owned"}},
        ),
    )


def read_secrets(secret_arns: Sequence[pulumi.Input[str]], key_arn: pulumi.Input[str], region: str) -> Document:
    """External Secrets: the named secrets and no other."""
    return document(
        statement("Read", ["secretsmanager:GetSecretValue", "secretsmanager:DescribeSecret"], secret_arns),
        statement("SecretsKey", ["kms:Decrypt"], [key_arn], when={"StringEquals": {"kms:ViaService": f"secretsmanager.{region}.amazonaws.com"}}),
    )


def encrypted_volumes(key_arn: pulumi.Input[str]) -> Document:
    """The EBS driver makes and attaches volumes encrypted with the platform's key; the rest is AWS's own policy for it."""
    return document(
        statement("VolumeKey", ["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey"], [key_arn]),
        statement("VolumeGrant", ["kms:CreateGrant"], [key_arn], when={"Bool": {"kms:GrantIsForAWSResource": "true"}}),
    )


def shared_volume() -> Document:
    """The Lustre driver mounts a filesystem that exists; it makes and deletes none. DescribeFileSystems knows no resources."""
    return document(statement("See", ["fsx:DescribeFileSystems"], ["*"]))


def flow_logs(group_arn: pulumi.Input[str]) -> Document:
    """The VPC writes its flow log, to its own log group."""
    actions = ["logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"]
    return document(statement("Write", actions, [group_arn, arn(group_arn, ":*")]))
