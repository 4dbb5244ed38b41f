"""IAM documents, broken and compliant: wildcards per service, conditions that restrict nothing, trust that is
not bound to one identity.
"""

from __future__ import annotations

from typing import Any

from tests.policies.cases.exposure import document
from tests.policies.cases.table import Case
from trainfleet.policies.iam_principals import RESOURCE_POLICIES
from trainfleet.policies.resource_types import AWS_ROLE, KMS_KEY

ROLE_POLICY = "aws:iam/rolePolicy:RolePolicy"
ATTACHMENT = "aws:iam/rolePolicyAttachment:RolePolicyAttachment"
KEY_POLICY = "aws:kms/keyPolicy:KeyPolicy"
QUEUE = "aws:sqs/queuePolicy:QueuePolicy"
BY_TAG = {"StringEquals": {"aws:ResourceTag/team": "ml"}}
POD = "pods.eks.amazonaws.com"
CLUSTER = "arn:aws:eks:us-east-2:111122223333:cluster/prod"
ROOT = "arn:aws:iam::444455556666:root"
POD_TAGS = {
    "aws:RequestTag/eks-cluster-arn": CLUSTER,
    "aws:RequestTag/kubernetes-namespace": "training",
    "aws:RequestTag/kubernetes-service-account": "trainer",
}


def allow(action: str | list[str], resource: str = "*", **more: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": action, "Resource": resource, **more}


def everyone(condition: dict[str, Any], action: str = "kms:Decrypt") -> dict[str, Any]:
    return {**allow(action), "Principal": "*", "Condition": condition}


def trust(principal: dict[str, Any], **condition: Any) -> dict[str, Any]:
    statement = {"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"}
    return {**statement, "Condition": condition} if condition else statement


WILDCARDS = [
    ("every action of iam", allow("iam:*")),
    ("every action of s3", allow(["s3:*", "ec2:DescribeVpcs"])),
    ("every action of s3", allow("S3:*", "arn:aws:s3:::*")),
    ("every action of s3", {"Effect": "Allow", "Action": "s3:*", "NotResource": "arn:aws:s3:::b/*"}),
    ("can pass any role", allow("iam:PassRole")),
    ("can pass any role", allow("iam:Pass*")),
    (
        "can pass any role",
        allow("iam:PassRole", Condition={"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}),
    ),
    ("can assume any role", allow("sts:AssumeRole")),
    ("can grant itself every permission", allow(["iam:PutRolePolicy", "iam:GetRole"])),
    ("can grant itself every permission", allow("iam:*Policy")),
    ("can read every object", allow("s3:Get*")),
    ("can read every object", allow("secretsmanager:GetSecretValue")),
    (
        "can read every object",
        allow("s3:GetObject", Condition={"StringNotEquals": {"aws:ResourceTag/team": "ml"}}),
    ),
]
NO_LIMIT: list[dict[str, Any]] = [
    {"Bool": {"aws:SecureTransport": "true"}},
    {"StringEquals": {"kms:ViaService": "s3.us-east-2.amazonaws.com"}},
    {"StringEqualsIfExists": {"aws:PrincipalAccount": "111122223333"}},
    {"StringNotEquals": {"aws:PrincipalAccount": "111122223333"}},
    {"ForAllValues:StringEquals": {"aws:PrincipalOrgPaths": "o-1/*"}},
    {"StringLike": {"aws:PrincipalArn": "*"}},
    {"StringEquals": {"aws:PrincipalOrgID": "${aws:PrincipalTag/org}"}},
    {"IpAddress": {"aws:SourceIp": ["0.0.0.0/1", "128.0.0.0/1"]}},
]
LIMITS: list[dict[str, Any]] = [
    {"StringEquals": {"kms:CallerAccount": "111122223333"}},
    {"StringEquals": {"aws:PrincipalOrgID": "o-1234567890"}},
    {"ArnLike": {"aws:PrincipalArn": "arn:aws:iam::111122223333:role/aws-service-role/*"}},
    {"ForAnyValue:StringLike": {"aws:PrincipalOrgPaths": "o-1234567890/r-ab12/*"}},
    {"IpAddress": {"aws:SourceIp": "203.0.113.0/24"}},
    {"Bool": {"aws:SecureTransport": "true"}, "StringEquals": {"aws:SourceVpce": "vpce-1"}},
]
UNBOUND = [
    ("on the cluster and the namespace and the service account", trust({"Service": POD})),
    (
        "on the cluster and the service account",
        trust({"Service": POD}, StringEquals={"aws:RequestTag/kubernetes-namespace": "training"}),
    ),
    (
        "on the service account",
        trust(
            {"Service": [POD]},
            StringLike={**POD_TAGS, "aws:RequestTag/kubernetes-service-account": "*"},
        ),
    ),
    (
        "on the cluster",
        trust(
            {"Service": POD},
            StringEqualsIfExists={"a": "b"},
            StringLike=POD_TAGS
            | {
                "aws:RequestTag/eks-cluster-arn": "*",
            },
        ),
    ),
    ("every identity of the account", trust({"AWS": ROOT})),
    ("every identity of the account", trust({"AWS": ["444455556666"]})),
    ("every identity of the account", trust({"AWS": ROOT}, Bool={"aws:SecureTransport": "true"})),
    ("every identity of the account", trust({"AWS": ROOT}, StringNotEquals={"sts:ExternalId": "x"})),
    (
        "not a single one",
        trust({"Federated": "arn:oidc"}, StringLike={"oidc:sub": "system:serviceaccount:training:*"}),
    ),
    ("not a single one", trust({"Federated": "arn:oidc"}, StringLike={"oidc:sub": "*"})),
    (
        "no condition on the token's subject",
        trust(
            {"Federated": "arn:oidc"},
            StringEqualsIfExists={
                "oidc:sub": "system:serviceaccount:training:trainer",
            },
        ),
    ),
]
BOUND = [
    trust({"Service": POD}, StringEquals=POD_TAGS),
    trust({"Service": "ec2.amazonaws.com"}),
    trust({"AWS": "arn:aws:iam::444455556666:role/ci"}),
    trust({"AWS": ROOT}, StringEquals={"sts:ExternalId": "9f2c"}),
    trust({"AWS": ROOT}, ArnLike={"aws:PrincipalArn": "arn:aws:iam::444455556666:role/ci-*"}),
    trust({"Federated": "arn:oidc"}, StringEquals={"oidc:sub": "system:serviceaccount:training:trainer"}),
    trust({"Federated": "arn:oidc"}, StringLike={"token.actions.githubusercontent.com:sub": "repo:o/r:*"}),
]
CASES = [
    *(Case("no-star-role", ROLE_POLICY, {"policy": document(each)}, says) for says, each in WILDCARDS),
    Case(
        "no-star-role",
        AWS_ROLE,
        {"inlinePolicies": [{"policy": document(allow("iam:PassRole"))}]},
        "inlinePolicies[0].policy.Statement[0] allows iam:PassRole",
    ),
    *(
        Case("no-star-role", ATTACHMENT, {"policyArn": f"arn:aws:iam::aws:policy/{name}"}, name)
        for name in ("AmazonS3FullAccess", "IAMFullAccess", "PowerUserAccess", "AmazonSSMFullAccess")
    ),
    *(
        Case("no-star-role", "gcp:projects/iAMMember:IAMMember", {"role": role}, says)
        for role, says in (
            ("roles/iam.serviceAccountTokenCreator", "can act as every service account in the project"),
            ("roles/resourcemanager.projectIamAdmin", "can grant itself every role in the project"),
        )
    ),
    *(
        Case("no-anonymous-access", kind, {"policy": document(everyone(each))}, "restricts no caller")
        for kind in (KMS_KEY, KEY_POLICY, "aws:ecr/repositoryPolicy:RepositoryPolicy", QUEUE)
        for each in NO_LIMIT
    ),
    Case(
        "no-anonymous-access",
        QUEUE,
        {
            "policy": document(
                {**allow("sqs:*"), "NotPrincipal": {"AWS": "arn:aws:iam::111122223333:user/guest"}}
            )
        },
        "allows every principal",
    ),
    *(
        Case(
            "services-act-for-a-named-account",
            kind,
            {
                "policy": document(
                    {**allow("kms:*"), "Principal": {"Service": "logs.us-east-2.amazonaws.com"}}
                )
            },
            "admits logs.us-east-2.amazonaws.com without",
        )
        for kind in RESOURCE_POLICIES
    ),
    *(
        Case("trust-names-its-subject", AWS_ROLE, {"assumeRolePolicy": document(each)}, says)
        for says, each in UNBOUND
    ),
]
COMPLIANT: list[tuple[str, str, dict[str, Any]]] = [
    *(
        ("no-star-role", ROLE_POLICY, {"policy": document(each)})
        for each in (
            allow("s3:*", "arn:aws:s3:::data/*"),
            allow(["ec2:Describe*", "autoscaling:DescribeTags"]),
            allow("iam:PassRole", "arn:aws:iam::111122223333:role/training-*"),
            allow("secretsmanager:GetSecretValue", Condition=BY_TAG),
            {"Effect": "Deny", "Action": "iam:*", "Resource": "*"},
        )
    ),
    ("no-star-role", ATTACHMENT, {"policyArn": "arn:aws:iam::aws:policy/AmazonEKS_CNI_Policy"}),
    ("no-star-role", ATTACHMENT, {"policyArn": "arn:aws:iam::111122223333:policy/OurFullAccess"}),
    *(
        ("no-anonymous-access", kind, {"policy": document(everyone(each))})
        for kind in (KMS_KEY, QUEUE)
        for each in LIMITS
    ),
    *(
        (
            "services-act-for-a-named-account",
            KMS_KEY,
            {
                "policy": document(
                    {**allow("kms:*"), "Principal": {"Service": "s.amazonaws.com"}, "Condition": each}
                )
            },
        )
        for each in (
            {"StringEquals": {"aws:SourceAccount": "111122223333"}},
            {"ArnLike": {"aws:SourceArn": "arn:aws:s3:::data"}},
            {"ArnLike": {"kms:EncryptionContext:aws:logs:arn": "arn:aws:logs:us-east-2:111122223333:*"}},
        )
    ),
    *(("trust-names-its-subject", AWS_ROLE, {"assumeRolePolicy": document(each)}) for each in BOUND),
]
