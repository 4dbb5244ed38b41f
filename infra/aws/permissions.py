"""The IAM policies of the platform's roles, as pure functions with least privilege.

A resource is `*` only where AWS supports no narrower one (Describe and List calls); each such statement says
so.
"""

from __future__ import annotations

from collections.abc import Sequence

import pulumi

from trainfleet.infra.aws.iam_documents import Document, arn, document, statement

RUNS_PREFIX = "runs/"
"""The prefix that training may write. It may read the whole bucket."""


LIFECYCLE_PREFIX = "hyperpod/"
"""The prefix of HyperPod's lifecycle script. NOTE: training must not be able to write it, or it could run
code on new nodes.
"""


def cluster_secrets(key_arn: pulumi.Input[str]) -> Document:
    """The control plane wraps Kubernetes secrets with its own key."""
    return document(
        statement(
            "WrapSecrets", ["kms:Encrypt", "kms:Decrypt", "kms:ListGrants", "kms:DescribeKey"], [key_arn]
        )
    )


def training(bucket_arn: pulumi.Input[str], key_arn: pulumi.Input[str], region: str) -> Document:
    """Training pods: read the bucket, write runs. No DeleteObjectVersion: what a run deletes can be brought
    back.
    """
    return document(
        statement(
            "List", ["s3:ListBucket", "s3:ListBucketMultipartUploads", "s3:GetBucketLocation"], [bucket_arn]
        ),
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
    """The cluster autoscaler: describe all groups, scale those that EKS tagged as this cluster's."""
    return document(
        # Describe calls of Auto Scaling and EC2 support no resources.
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
        # NOTE: labels and taints of a group without nodes. Without this, a pool never scales up from zero.
        statement(
            "SeeNodeGroups",
            ["eks:DescribeNodegroup"],
            [arn("arn:", partition, ":eks:", region, ":", account, f":nodegroup/{cluster}/*")],
        ),
        statement(
            "Scale",
            ["autoscaling:SetDesiredCapacity", "autoscaling:TerminateInstanceInAutoScalingGroup"],
            [
                arn(
                    "arn:",
                    partition,
                    ":autoscaling:",
                    region,
                    ":",
                    account,
                    ":autoScalingGroup:*:autoScalingGroupName/*",
                )
            ],
            when={"StringEquals": {f"aws:ResourceTag/k8s.io/cluster-autoscaler/{cluster}": "owned"}},
        ),
    )


def read_secrets(
    secret_arns: Sequence[pulumi.Input[str]], key_arn: pulumi.Input[str], region: str
) -> Document:
    """External Secrets: the named secrets and no other."""
    return document(
        statement("Read", ["secretsmanager:GetSecretValue", "secretsmanager:DescribeSecret"], secret_arns),
        statement(
            "SecretsKey",
            ["kms:Decrypt"],
            [key_arn],
            when={"StringEquals": {"kms:ViaService": f"secretsmanager.{region}.amazonaws.com"}},
        ),
    )


def encrypted_volumes(key_arn: pulumi.Input[str]) -> Document:
    """The EBS driver encrypts volumes with the platform's key. AWS's own policy covers the rest."""
    return document(
        statement(
            "VolumeKey",
            ["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey"],
            [key_arn],
        ),
        statement(
            "VolumeGrant",
            ["kms:CreateGrant"],
            [key_arn],
            when={"Bool": {"kms:GrantIsForAWSResource": "true"}},
        ),
    )


def shared_volume() -> Document:
    """The Lustre driver only mounts filesystems. DescribeFileSystems supports no resources."""
    return document(statement("See", ["fsx:DescribeFileSystems"], ["*"]))


def write_logs(group_arn: pulumi.Input[str]) -> Document:
    """The log shipper may write streams into the platform's group only."""
    actions = ["logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"]
    return document(statement("Write", actions, [group_arn, arn(group_arn, ":*")]))


INTERFACE_ACTIONS = [
    "ec2:AssignPrivateIpAddresses",
    "ec2:AttachNetworkInterface",
    "ec2:CreateNetworkInterface",
    "ec2:CreateNetworkInterfacePermission",
    "ec2:DeleteNetworkInterface",
    "ec2:DeleteNetworkInterfacePermission",
    "ec2:DetachNetworkInterface",
    "ec2:ModifyNetworkInterfaceAttribute",
    "ec2:UnassignPrivateIpAddresses",
]


DESCRIBE_ACTIONS = [
    "ec2:DescribeDhcpOptions",
    "ec2:DescribeInstances",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSubnets",
    "ec2:DescribeTags",
    "ec2:DescribeVpcs",
]
"""What HyperPod's nodes read of EC2. These calls support no resources."""


def hyperpod_node(
    partition: str,
    region: str,
    account: pulumi.Input[str],
    cluster_arn: pulumi.Input[str],
    *,
    bucket_arn: pulumi.Input[str],
    keys: Sequence[pulumi.Input[str]],
) -> Document:
    """HyperPod's nodes, in addition to AWS's own policy (SageMaker developer guide, IAM role for SageMaker
    HyperPod, with EKS).

    The node's role creates and deletes network interfaces; pods take their own roles through the agent.

    Args:
        partition: `aws`, `aws-us-gov` or `aws-cn`.
        region: the platform's region.
        account: ID of the account.
        cluster_arn: ARN of the HyperPod cluster.
        bucket_arn: ARN of the bucket with the life-cycle scripts.
        keys: ARNs of the bucket's key, then of the disks' key.
    """
    ec2 = f"arn:{partition}:ec2:{region}:"
    interfaces = [
        arn(ec2, account, f":{kind}/*") for kind in ("network-interface", "subnet", "security-group")
    ]
    through = {"StringEquals": {"kms:ViaService": f"s3.{region}.amazonaws.com"}}
    return document(
        statement("See", DESCRIBE_ACTIONS, ["*"]),
        statement(
            "Interfaces",
            INTERFACE_ACTIONS,
            [*interfaces, arn(ec2, account, ":instance/*")],
        ),
        statement("NameInterfaces", ["ec2:CreateTags"], interfaces[:1]),
        statement("PodRoles", ["eks-auth:AssumeRoleForPodIdentity", "eks:DescribeCluster"], [cluster_arn]),
        statement(
            "ListLifecycle",
            ["s3:ListBucket"],
            [bucket_arn],
            when={"StringLike": {"s3:prefix": f"{LIFECYCLE_PREFIX}*"}},
        ),
        statement("ReadLifecycle", ["s3:GetObject"], [arn(bucket_arn, f"/{LIFECYCLE_PREFIX}*")]),
        statement("LifecycleKey", ["kms:Decrypt"], keys[:1], when=through),
        statement("DiskKey", ["kms:DescribeKey"], keys[1:]),
        statement(
            "DiskGrant", ["kms:CreateGrant"], keys[1:], when={"Bool": {"kms:GrantIsForAWSResource": "true"}}
        ),
    )


def flow_logs(group_arn: pulumi.Input[str]) -> Document:
    """The VPC writes its flow log, to its own log group."""
    actions = ["logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"]
    return document(statement("Write", actions, [group_arn, arn(group_arn, ":*")]))
