"""The IAM documents of the bootstrap, as pure functions: who may assume each role, and what it may do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pulumi

from trainfleet.infra.aws.iam_documents import Document, Statement, arn, document, statement
from trainfleet.infra.bootstrap.permissions import READ, WRITE, needed
from trainfleet.infra.bootstrap.schema import BootstrapSpec
from trainfleet.infra.bootstrap.trust import Claims, Trust

AUDIENCE = "sts.amazonaws.com"
COMPARED = {"github": ("sub", "ref", "environment", "repository_id"), "gitlab": ("sub",)}
"""Claims that IAM can compare, by CI system (IAM user guide, available keys for AWS OIDC federation). STS
compares those of GitHub beyond the subject since January 2026.
"""
MFA_AGE_S = 3600
MANAGED = (
    "AmazonEC2ContainerRegistryPullOnly",
    "AmazonEKSClusterPolicy",
    "AmazonEKSWorkerNodePolicy",
    "AmazonEKS_CNI_Policy",
    "AmazonSSMManagedInstanceCore",
    "AmazonSageMakerClusterInstanceRolePolicy",
    "service-role/AmazonEBSCSIDriverPolicy",
)
"""AWS's own policies that platforms attach to their roles; CI can attach no others."""
PASSED_TO = (
    "ec2.amazonaws.com",
    "eks.amazonaws.com",
    "pods.eks.amazonaws.com",
    "sagemaker.amazonaws.com",
    "vpc-flow-logs.amazonaws.com",
)
SERVICE_ROLES = (
    "autoscaling.amazonaws.com",
    "eks.amazonaws.com",
    "eks-nodegroup.amazonaws.com",
    "fsx.amazonaws.com",
    "s3.data-source.lustre.fsx.amazonaws.com",
    "spot.amazonaws.com",
)
LUSTRE_ROLE = "role/aws-service-role/s3.data-source.lustre.fsx.amazonaws.com/*"
BOUNDED = ("iam:CreateRole", "iam:PutRolePolicy", "iam:AttachRolePolicy", "iam:PutRolePermissionsBoundary")
"""Actions that a permission boundary limits."""
GROUPS: Mapping[str, tuple[str, ...]] = {
    "network": ("autoscaling", "ec2", "route53"),
    "cluster": ("budgets", "cloudformation", "ecr", "eks", "fsx", "logs", "sagemaker"),
    "data": ("kms", "s3", "secretsmanager"),
    "identity": ("iam",),
}
"""Services by policy: a policy has at most 6,144 characters."""
PLATFORM_TAG = "aws:ResourceTag/trainfleet:platform"


def trust(trusts: Sequence[tuple[Trust, pulumi.Input[str]]], identity: str) -> Document:
    """Who may assume the role of `plan` or `apply`: tokens of these CI systems.

    Args:
        trusts: each CI system with the ARN of its OIDC provider.
        identity: `plan` or `apply`.
    """
    statements = []
    for each, provider in trusts:
        rules = each.plan if identity == "plan" else _distinct(each.apply, COMPARED[each.system])
        for index, claims in enumerate(rules):
            statements.append(
                statement(
                    f"{each.system.capitalize()}{identity.capitalize()}{index}",
                    ["sts:AssumeRoleWithWebIdentity"],
                    principal={"Federated": provider},
                    when=_conditions(each, claims),
                )
            )
    return document(*statements)


def _distinct(rules: Sequence[Claims], compared: Sequence[str]) -> list[Claims]:
    """The rules that differ in a claim that AWS compares."""
    return list({tuple(each.get(claim, "") for claim in compared): each for each in rules}.values())


def _conditions(trusted: Trust, claims: Claims) -> Mapping[str, Mapping[str, Any]]:
    exact = {f"{trusted.host}:aud": AUDIENCE}
    prefixes = {}
    for claim in COMPARED[trusted.system]:
        value = claims.get(claim, "")
        if value.endswith("*"):
            prefixes[f"{trusted.host}:{claim}"] = value
        elif value:
            exact[f"{trusted.host}:{claim}"] = value
    return {"StringEquals": exact, **({"StringLike": prefixes} if prefixes else {})}


def trust_people(people: Sequence[str]) -> Document:
    """Named people may assume the role if they logged in with a second factor within the last hour."""
    return document(
        statement(
            "People",
            ["sts:AssumeRole"],
            principal={"AWS": list(people)},
            when={
                "Bool": {"aws:MultiFactorAuthPresent": "true"},
                "NumericLessThan": {"aws:MultiFactorAuthAge": str(MFA_AGE_S)},
            },
        )
    )


def read(spec: BootstrapSpec) -> Document:
    """Read every resource type of the stacks. The only data among them are HyperPod's start scripts."""
    actions = needed("aws", READ, spec.options)
    data = [each for each in actions if each.startswith("s3:GetObject")]
    statements = [statement("Read", [each for each in actions if each not in data], ["*"])]
    if data:
        statements.append(statement("ReadScripts", data, _resources(spec, "s3")))
    return document(*statements)


def write(spec: BootstrapSpec) -> Mapping[str, Document]:
    """Create, change and delete the resource types of the stacks, by group of services."""
    actions = needed("aws", WRITE, spec.options)
    return {
        group: document(
            *(
                each
                for service in services
                if (own := [action for action in actions if action.startswith(f"{service}:")])
                for each in _statements(spec, service, own)
            )
        )
        for group, services in GROUPS.items()
    }


def _statements(spec: BootstrapSpec, service: str, actions: list[str]) -> list[Statement]:
    if service == "iam":
        return _identity_statements(spec, actions)
    if service == "kms":
        return _key_statements(spec, actions)
    in_region = {"StringEquals": {"aws:RequestedRegion": spec.region}}
    resources = _resources(spec, service)
    return [statement(_sid(service), actions, resources, when=None if resources != ["*"] else in_region)]


def _resources(spec: BootstrapSpec, service: str) -> list[pulumi.Input[str]]:
    """The ARNs of a service's resources, by the names that platforms give them; `*` where IDs are random."""
    patterns: dict[str, tuple[str, ...]] = {
        "budgets": ("arn:{p}:budgets::{a}:budget/{n}-*",),
        "ecr": ("arn:{p}:ecr:{r}:{a}:repository/{n}-*",),
        "eks": (
            "arn:{p}:eks:{r}:{a}:cluster/trainfleet-{n}",
            "arn:{p}:eks:{r}:{a}:*/trainfleet-{n}/*",
        ),
        "logs": (
            "arn:{p}:logs:{r}:{a}:log-group:/aws/eks/trainfleet-{n}/*",
            "arn:{p}:logs:{r}:{a}:log-group:/aws/fsx/{n}-*",
            "arn:{p}:logs:{r}:{a}:log-group:{n}-*",
        ),
        "s3": ("arn:{p}:s3:::{n}-*",),
        "secretsmanager": ("arn:{p}:secretsmanager:{r}:{a}:secret:trainfleet/{n}/*",),
    }
    if service not in patterns:
        return ["*"]
    facts = {"p": _partition(spec), "r": spec.region, "a": spec.account}
    return [
        pattern.format(n=platform, **facts) for platform in spec.platforms for pattern in patterns[service]
    ]


def _key_statements(spec: BootstrapSpec, actions: list[str]) -> list[Statement]:
    """Keys of the platforms, which only their tag tells apart. Aliases have names."""
    tag = {"StringEquals": {PLATFORM_TAG: list(spec.platforms)}}
    aliases = [each for each in actions if each.endswith("Alias")]
    create, tagging = "kms:CreateKey", "kms:TagResource"
    grant = ["kms:CreateGrant"]
    facts = f"arn:{_partition(spec)}:kms:{spec.region}:{spec.account}"
    request = {
        "StringEquals": {
            "aws:RequestedRegion": spec.region,
            "aws:RequestTag/trainfleet:platform": list(spec.platforms),
        }
    }
    rest = [each for each in actions if each not in {*aliases, create, *grant}]
    names = [f"{facts}:alias/trainfleet/{platform}/*" for platform in spec.platforms]
    return [
        statement("KmsNew", [create], ["*"], when=request),
        # A new key gets its tags from this. NOTE: without the second condition, CI could tag the key of the
        # state as a platform's, and then change who uses it.
        statement("KmsTags", [tagging], ["*"], when={**request, "Null": {PLATFORM_TAG: "true"}}),
        statement("KmsKeys", [*rest, *aliases], [f"{facts}:key/*"], when=tag),
        statement("KmsAliases", aliases, names),
        statement(
            "KmsGrants",
            grant,
            [f"{facts}:key/*"],
            when={**tag, "Bool": {"kms:GrantIsForAWSResource": "true"}},
        ),
    ]


def _identity_statements(spec: BootstrapSpec, actions: list[str]) -> list[Statement]:
    """Roles of the platforms only. NOTE: without a permission boundary, CI can give such a role any right
    with an inline policy, and have a service use it.
    """
    iam = f"arn:{_partition(spec)}:iam::{spec.account}"
    roles = [f"{iam}:role/{platform}-*" for platform in spec.platforms]
    boundary = (
        {"StringEquals": {"iam:PermissionsBoundary": spec.permission_boundary}}
        if spec.permission_boundary
        else {}
    )
    attach, linked, passed = "iam:AttachRolePolicy", "iam:CreateServiceLinkedRole", "iam:PassRole"
    bounded = [each for each in actions if each in BOUNDED and each != attach]
    rest = [each for each in actions if each not in {*BOUNDED, linked, passed}]
    managed = [f"arn:{_partition(spec)}:iam::aws:policy/{name}" for name in MANAGED]
    return [
        statement("Roles", rest, roles),
        statement("BoundedRoles", bounded, roles, when=boundary or None),
        statement("Attach", [attach], roles, when={**boundary, "ArnEquals": {"iam:PolicyARN": managed}}),
        statement("Pass", [passed], roles, when={"StringEquals": {"iam:PassedToService": list(PASSED_TO)}}),
        statement(
            "ServiceRoles",
            [linked],
            [f"{iam}:role/aws-service-role/*"],
            when={"StringEquals": {"iam:AWSServiceName": list(SERVICE_ROLES)}},
        ),
        # FSx writes the policy of its service-linked role as the caller.
        statement("LustreRole", [attach, "iam:PutRolePolicy"], [f"{iam}:{LUSTRE_ROLE}"]),
    ]


def state(
    bucket_arn: pulumi.Input[str], state_key: pulumi.Input[str], secrets_key: pulumi.Input[str], objects: str
) -> Document:
    """Read the state and decrypt its secrets; write and delete the objects below a prefix.

    Args:
        bucket_arn: the state bucket.
        state_key: the key of the bucket.
        secrets_key: the key of secrets in stacks.
        objects: the prefix, for example that of locks; empty = all.
    """
    return document(
        statement("ListState", ["s3:ListBucket", "s3:GetBucketLocation"], [bucket_arn]),
        statement("ReadState", ["s3:GetObject"], [arn(bucket_arn, "/*")]),
        statement("WriteState", ["s3:PutObject", "s3:DeleteObject"], [arn(bucket_arn, f"/{objects}*")]),
        statement("StateKey", ["kms:Decrypt", "kms:GenerateDataKey"], [state_key]),
        statement("SecretsKey", ["kms:Decrypt", "kms:DescribeKey"], [secrets_key]),
        *(() if objects else (statement("NewSecrets", ["kms:Encrypt"], [secrets_key]),)),
    )


def restore(bucket_arn: pulumi.Input[str]) -> Document:
    """Read and bring back earlier versions of the state."""
    return document(
        statement("Versions", ["s3:ListBucketVersions"], [bucket_arn]),
        statement("Restore", ["s3:GetObjectVersion", "s3:DeleteObjectVersion"], [arn(bucket_arn, "/*")]),
    )


def _partition(spec: BootstrapSpec) -> str:
    from trainfleet.infra.aws import layout

    return layout.partition(spec.region)


def _sid(service: str) -> str:
    return service.capitalize()
