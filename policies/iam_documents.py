"""Checks on IAM policy documents, role grants and trust policies, for the identity rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from trainfleet.policies.engine.accessors import (
    listed,
    numbered,
    statements,
)
from trainfleet.policies.engine.rule import UNKNOWN, Json, Resource, StillUnknown, Violation
from trainfleet.policies.resource_types import (
    KMS_KEY,
    S3_POLICY,
)

ADMINISTRATOR = ":policy/AdministratorAccess"


EVERYTHING = {"*", "*:*"}


BASIC_ROLES = {"roles/owner", "roles/editor"}


AZURE_ADMINISTRATORS = {
    "8e3af657-a8ff-443c-a75c-2fe8c4bcb635": "Owner",
    "b24988ac-6180-42a0-ab88-20f7382dd24c": "Contributor",
    "18d7d88d-d35e-4fb5-a5c3-7773c20a72d9": "User Access Administrator",
    "f58310d9-a9f6-439a-9e8d-f62e7b41a168": "Role Based Access Control Administrator",
}
"""Azure built-in roles that can do everything or grant themselves any permission."""


ONE_RESOURCE = re.compile(r"(?i)/resourceGroups/[^/]+/providers/[^/]+/[^/]+/[^/]+")


PUBLIC_MEMBERS = {"allUsers", "allAuthenticatedUsers"}


RESOURCE_POLICIES = {
    S3_POLICY: "policy",
    KMS_KEY: "policy",
    "aws:ecr/repositoryPolicy:RepositoryPolicy": "policy",
    "aws:secretsmanager/secretPolicy:SecretPolicy": "policy",
    "aws:sns/topicPolicy:TopicPolicy": "policy",
    "aws:sqs/queuePolicy:QueuePolicy": "policy",
}


ONE_ACCOUNT = re.compile(
    r"^(serviceAccount:[^\[\]]+\[[^/*\[\]]+/[^/*\[\]]+\]|principal://.+/subject/.+|serviceAccount:[^\[\]*]+)$"
)
"""A Google workload identity member that is a single service account in a namespace."""


def _unrestricted_statements(where: str, policy: Json) -> Iterator[Violation]:
    for index, statement in enumerate(statements(policy)):
        anywhere = "*" in listed(statement.get("Resource"))
        everything = bool(EVERYTHING & set(listed(statement.get("Action")))) or "NotAction" in statement
        if statement.get("Effect") == "Allow" and anywhere and everything:
            yield Violation(f"{where}.Statement[{index}] allows every action on every resource")


def policy_document(resource: Resource) -> Iterable[Violation]:
    yield from _unrestricted_statements("policy", resource.props.get("policy"))


def role(resource: Resource) -> Iterable[Violation]:
    for arn in listed(resource.props.get("managedPolicyArns")):
        yield from _administrator("managedPolicyArns", arn)
    for where, inline in numbered("inlinePolicies", resource.props.get("inlinePolicies")):
        yield from _unrestricted_statements(f"{where}.policy", inline.get("policy"))


def attachment(resource: Resource) -> Iterable[Violation]:
    yield from _administrator("policyArn", resource.props.get("policyArn"))


def _administrator(where: str, arn: Json) -> Iterator[Violation]:
    if str(arn).endswith(ADMINISTRATOR):
        yield Violation(f"{where} is AdministratorAccess")


def basic_role(resource: Resource) -> Iterable[Violation]:
    if resource.props.get("role") in BASIC_ROLES:
        yield Violation(f"role is {resource.props['role']}, which can change everything in the project")


def azure_assignment(resource: Resource) -> Iterable[Violation]:
    """A role that can grant permissions can obtain all of them. A Contributor of one resource is allowed."""
    definition = AZURE_ADMINISTRATORS.get(
        str(resource.props.get("roleDefinitionId") or "").rpartition("/")[2].lower()
    )
    if definition and (
        definition != "Contributor" or not ONE_RESOURCE.search(str(resource.props.get("scope") or ""))
    ):
        yield Violation(f"roleDefinitionId is {definition}")


def azure_definition(resource: Resource) -> Iterable[Violation]:
    for where, permission in numbered("permissions", resource.props.get("permissions")):
        if "*" in listed(permission.get("actions")):
            yield Violation(f"{where}.actions allows every action")


def anonymous_principal(resource: Resource) -> Iterable[Violation]:
    """A public principal needs a condition that restricts it."""
    where = RESOURCE_POLICIES[resource.kind]
    for index, statement in enumerate(statements(resource.props.get(where))):
        principal = statement.get("Principal")
        anybody = principal == "*" or (isinstance(principal, dict) and "*" in listed(principal.get("AWS")))
        if statement.get("Effect") == "Allow" and anybody and not statement.get("Condition"):
            yield Violation(f"{where}.Statement[{index}] allows every principal without a condition")


def anonymous_member(resource: Resource) -> Iterable[Violation]:
    for name in ("member", "members"):
        for member in listed(resource.props.get(name)):
            if member is not UNKNOWN and member in PUBLIC_MEMBERS:
                yield Violation(f"{name} includes {member}")


def pod_trust(resource: Resource) -> Iterable[Violation]:
    """A trust policy must name one service, account or service account."""
    for index, statement in enumerate(statements(resource.props.get("assumeRolePolicy"))):
        if statement.get("Effect") != "Allow":
            continue
        where, condition = f"assumeRolePolicy.Statement[{index}]", statement.get("Condition") or {}
        principal = statement.get("Principal")
        if principal == "*" or (isinstance(principal, dict) and "*" in listed(principal.get("AWS"))):
            yield Violation(f"{where} lets everyone assume the role")
        keys = {key for block in condition.values() if isinstance(block, dict) for key in block}
        if (
            isinstance(principal, dict)
            and principal.get("Federated") is not None
            and not any(str(key).endswith(":sub") for key in keys)
        ):
            yield Violation(
                f"{where} has no condition on the token's subject, "
                "so every pod of the cluster can assume the role"
            )


def workload_member(resource: Resource) -> Iterable[Violation]:
    if resource.props.get("role") != "roles/iam.workloadIdentityUser":
        return
    for name in ("member", "members"):
        for member in listed(resource.props.get(name)):
            if member is UNKNOWN:
                raise StillUnknown
            if not ONE_ACCOUNT.match(str(member)):
                yield Violation(f"{name} is {member}, which is not a single service account in a namespace")


def federated_subject(resource: Resource) -> Iterable[Violation]:
    audiences = [str(each) for each in listed(resource.props.get("audiences"))]
    if audiences != ["api://AzureADTokenExchange"]:
        yield Violation("audiences is not `api://AzureADTokenExchange` alone")
    subject = str(resource.props.get("subject") or "")
    if not re.fullmatch(r"system:serviceaccount:[^:*]+:[^:*]+", subject):
        yield Violation(f"subject is `{subject}`, which is not a single service account in a namespace")
