"""Checks on who a policy of AWS admits: resource policies, key policies and trust policies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from trainfleet.policies.engine.accessors import listed, statements
from trainfleet.policies.engine.rule import UNKNOWN, Json, Resource, Violation
from trainfleet.policies.iam_conditions import (
    Statement,
    fixed,
    names_the_assumer,
    names_the_owner,
    required_values,
    restricts_callers,
)
from trainfleet.policies.resource_types import KMS_KEY, S3_POLICY

RESOURCE_POLICIES = {
    S3_POLICY: "policy",
    KMS_KEY: "policy",
    "aws:kms/keyPolicy:KeyPolicy": "policy",
    "aws:kms/replicaKey:ReplicaKey": "policy",
    "aws:kms/externalKey:ExternalKey": "policy",
    "aws:ecr/repositoryPolicy:RepositoryPolicy": "policy",
    "aws:efs/fileSystemPolicy:FileSystemPolicy": "policy",
    "aws:secretsmanager/secretPolicy:SecretPolicy": "policy",
    "aws:sns/topicPolicy:TopicPolicy": "policy",
    "aws:sqs/queuePolicy:QueuePolicy": "policy",
}
"""Resource type to the property that holds its policy."""
ACCOUNT_ROOT = re.compile(r"^(\d{12}|arn:[^:]+:iam::\d{12}:root)$")
"""A whole account as a principal: each of its identities that its own policies allow."""
POD_IDENTITY = "pods.eks.amazonaws.com"
POD_TAGS = {
    "cluster": ("aws:requesttag/eks-cluster-arn", "aws:requesttag/eks-cluster-name", "aws:sourcearn"),
    "namespace": ("aws:requesttag/kubernetes-namespace",),
    "service account": ("aws:requesttag/kubernetes-service-account",),
}
"""What a trust in EKS Pod Identity must name, and the keys that name it (EKS user guide, "Create IAM role
with trust policy required by EKS Pod Identity", setting conditions).
"""
ONE_SERVICE_ACCOUNT = re.compile(r"^system:serviceaccount:[^:*?]+:[^:*?]+$")

ONE_REPOSITORY = re.compile(r"^(repo|project_path):[^:*?]+:")
"""A subject of GitHub Actions or GitLab CI that names its repository. A pattern may follow."""


def anonymous_principal(resource: Resource) -> Iterable[Violation]:
    """A public principal needs a condition that restricts who calls."""
    for where, statement in _allowed(resource):
        if not _everyone(statement) or restricts_callers(statement):
            continue
        if statement.get("Condition"):
            keys = sorted({str(key) for block in statement["Condition"].values() for key in block})
            yield Violation(
                f"{where} allows every principal, and its condition ({', '.join(keys)}) restricts no caller"
            )
        else:
            yield Violation(f"{where} allows every principal without a condition")


def unnamed_owner(resource: Resource) -> Iterable[Violation]:
    """A service in a resource policy must act for a named account or resource."""
    for where, statement in _allowed(resource):
        principal = statement.get("Principal")
        services = listed(principal.get("Service")) if isinstance(principal, Mapping) else []
        if services and not names_the_owner(statement):
            named = ", ".join(str(each) for each in services if each is not UNKNOWN)
            yield Violation(
                f"{where} admits {named or 'a service'} without aws:SourceAccount or aws:SourceArn, "
                "so it acts for any customer of that service"
            )


def role_trust(resource: Resource) -> Iterable[Violation]:
    """A trust policy must name one service, identity or service account."""
    for index, statement in enumerate(statements(resource.props.get("assumeRolePolicy"))):
        if statement.get("Effect") != "Allow":
            continue
        where, principal = f"assumeRolePolicy.Statement[{index}]", statement.get("Principal")
        if _everyone(statement):
            yield Violation(f"{where} lets everyone assume the role")
        if not isinstance(principal, Mapping):
            continue
        for account in listed(principal.get("AWS")):
            whole = account is not UNKNOWN and ACCOUNT_ROOT.match(str(account))
            if whole and not names_the_assumer(statement):
                yield Violation(
                    f"{where} lets every identity of the account {account} assume the role: "
                    "name the role, or require sts:ExternalId or aws:PrincipalArn"
                )
        if POD_IDENTITY in listed(principal.get("Service")):
            yield from _pod_identity(where, statement)
        if principal.get("Federated") is not None:
            yield from _federated(where, statement)


def _allowed(resource: Resource) -> Iterator[tuple[str, Statement]]:
    name = RESOURCE_POLICIES[resource.kind]
    for index, statement in enumerate(statements(resource.props.get(name))):
        if statement.get("Effect") == "Allow":
            yield f"{name}.Statement[{index}]", statement


def _everyone(statement: Statement) -> bool:
    """Whether a statement applies to everyone: `*`, or everyone but the named ones."""
    principal = statement.get("Principal")
    if statement.get("NotPrincipal") is not None:
        return True
    if isinstance(principal, Mapping):
        return any(_star(each) for each in listed(principal.get("AWS")))
    return any(_star(each) for each in listed(principal))


def _star(value: Json) -> bool:
    return value is not UNKNOWN and str(value) == "*"


def _pod_identity(where: str, statement: Statement) -> Iterator[Violation]:
    named = {
        key for key, values in required_values(statement) if values and all(fixed(each) for each in values)
    }
    missing = [what for what, keys in POD_TAGS.items() if not named & set(keys)]
    if missing:
        yield Violation(
            f"{where} trusts {POD_IDENTITY} without a condition on the {' and the '.join(missing)}, "
            "so other pods of the account can assume the role"
        )


def _federated(where: str, statement: Statement) -> Iterator[Violation]:
    subjects = [values for key, values in required_values(statement) if key.endswith(":sub")]
    if not subjects:
        yield Violation(
            f"{where} has no condition on the token's subject, "
            "so every pod of the cluster can assume the role"
        )
    for subject in (each for values in subjects for each in values if each is not UNKNOWN):
        pods = str(subject).startswith("system:serviceaccount:")
        pipeline = str(subject).startswith(("repo:", "project_path:"))
        if (
            not fixed(subject)
            or (pods and not ONE_SERVICE_ACCOUNT.match(str(subject)))
            or (pipeline and not ONE_REPOSITORY.match(str(subject)))
        ):
            yield Violation(f"{where} accepts the subject `{subject}`, which is not a single one")
