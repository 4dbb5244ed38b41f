"""Rights: nobody may do everything to everything, in the cloud or in the cluster."""

from __future__ import annotations

from collections.abc import Iterable

from policies.rule import Json, Resource, Rule, Violation, listed
from policies.storage import statements

ADMINISTRATOR = ":policy/AdministratorAccess"
EVERYTHING = {"*", "*:*"}


def _everything(where: str, policy: Json) -> Iterable[Violation]:
    for index, statement in enumerate(statements(policy)):
        anywhere = "*" in listed(statement.get("Resource"))
        everything = bool(EVERYTHING & set(listed(statement.get("Action")))) or "NotAction" in statement
        if statement.get("Effect") == "Allow" and anywhere and everything:
            yield Violation(f"{where}.Statement[{index}] allows every action on every resource")


def policy_document(resource: Resource) -> Iterable[Violation]:
    yield from _everything("policy", resource.props.get("policy"))


def role(resource: Resource) -> Iterable[Violation]:
    for arn in listed(resource.props.get("managedPolicyArns")):
        yield from _administrator("managedPolicyArns", arn)
    for index, inline in enumerate(listed(resource.props.get("inlinePolicies"))):
        yield from _everything(f"inlinePolicies[{index}].policy", inline.get("policy"))


def attachment(resource: Resource) -> Iterable[Violation]:
    yield from _administrator("policyArn", resource.props.get("policyArn"))


def _administrator(where: str, arn: Json) -> Iterable[Violation]:
    if str(arn).endswith(ADMINISTRATOR):
        yield Violation(f"{where} is AdministratorAccess")


def cluster_rules(resource: Resource) -> Iterable[Violation]:
    for index, rule in enumerate(listed(resource.props.get("rules"))):
        if all("*" in listed(rule.get(part)) for part in ("apiGroups", "resources", "verbs")):
            yield Violation(f"rules[{index}] allows every verb on every resource")


def cluster_binding(resource: Resource) -> Iterable[Violation]:
    if (resource.props.get("roleRef") or {}).get("name") == "cluster-admin":
        yield Violation("roleRef is cluster-admin")


NO_STAR_ROLE = Rule(
    name="no-star-role",
    statement="No role allows every action on every resource.",
    fix="name the actions and the resources that are needed",
    references=("CIS AWS 1.16", "CIS Kubernetes 5.1.1, 5.1.3", "CKV_AWS_62", "CKV_AWS_355", "AWS-0057"),
    checks={
        "aws:iam/policy:Policy": policy_document,
        "aws:iam/rolePolicy:RolePolicy": policy_document,
        "aws:iam/userPolicy:UserPolicy": policy_document,
        "aws:iam/groupPolicy:GroupPolicy": policy_document,
        "aws:iam/role:Role": role,
        "aws:iam/rolePolicyAttachment:RolePolicyAttachment": attachment,
        "aws:iam/policyAttachment:PolicyAttachment": attachment,
        "kubernetes:rbac.authorization.k8s.io/v1:ClusterRole": cluster_rules,
        "kubernetes:rbac.authorization.k8s.io/v1:Role": cluster_rules,
        "kubernetes:rbac.authorization.k8s.io/v1:ClusterRoleBinding": cluster_binding,
        "kubernetes:rbac.authorization.k8s.io/v1:RoleBinding": cluster_binding,
    },
)
RULES = (NO_STAR_ROLE,)
