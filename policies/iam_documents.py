"""Checks on IAM policy documents and role grants, for the identity rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from trainfleet.policies.engine.accessors import listed, numbered, statements
from trainfleet.policies.engine.rule import UNKNOWN, Json, Resource, StillUnknown, Violation
from trainfleet.policies.iam_conditions import limits_resources

ADMINISTRATORS = ("AdministratorAccess", "PowerUserAccess")
FULL_ACCESS = re.compile(r":policy/(?:[\w+=,.@-]+/)*[\w+=,.@-]*FullAccess(?:V\d+)?$")
"""Managed policies of AWS that allow every action of a service, such as AmazonS3FullAccess."""


EVERYTHING = {"*", "*:*"}
ONE_SERVICE = re.compile(r"^([a-z0-9-]+):\*+$", re.IGNORECASE)
ANY_RESOURCE = re.compile(r"^(\*+|arn:[^:]*:[^:]*:[^:]*:[^:]*:\*+)$")
"""A resource pattern that matches everything, or everything of a service."""


HARMFUL: dict[str, tuple[str, ...]] = {
    "can pass any role to a service": ("iam:passrole",),
    "can assume any role": ("sts:assumerole",),
    "can grant itself every permission": (
        "iam:addusertogroup",
        "iam:attachgrouppolicy",
        "iam:attachrolepolicy",
        "iam:attachuserpolicy",
        "iam:createaccesskey",
        "iam:createloginprofile",
        "iam:createpolicyversion",
        "iam:putgrouppolicy",
        "iam:putrolepolicy",
        "iam:putuserpolicy",
        "iam:setdefaultpolicyversion",
        "iam:updateassumerolepolicy",
        "iam:updateloginprofile",
    ),
    "can read every object, secret or parameter": (
        "s3:getobject",
        "secretsmanager:getsecretvalue",
        "ssm:getparameter",
        "ssm:getparameters",
        "ssm:getparametersbypath",
    ),
}
"""What an action on every resource amounts to: the lists of Cloudsplaining (privilege escalation, data
exfiltration), which Checkov's CKV_AWS_286 and CKV_AWS_288 use.
"""


BASIC_ROLES = {"roles/owner": "can change everything", "roles/editor": "can change everything"}
IMPERSONATING_ROLES = dict.fromkeys(
    (
        "roles/iam.serviceAccountUser",
        "roles/iam.serviceAccountTokenCreator",
        "roles/iam.serviceAccountAdmin",
        "roles/iam.serviceAccountKeyAdmin",
        "roles/iam.workloadIdentityUser",
    ),
    "can act as every service account",
) | dict.fromkeys(
    ("roles/iam.securityAdmin", "roles/resourcemanager.projectIamAdmin"), "can grant itself every role"
)
"""Roles that, granted on a project, lead to all of its permissions (CKV_GCP_41, CKV_GCP_49)."""


AZURE_ADMINISTRATORS = {
    "8e3af657-a8ff-443c-a75c-2fe8c4bcb635": "Owner",
    "b24988ac-6180-42a0-ab88-20f7382dd24c": "Contributor",
    "18d7d88d-d35e-4fb5-a5c3-7773c20a72d9": "User Access Administrator",
    "f58310d9-a9f6-439a-9e8d-f62e7b41a168": "Role Based Access Control Administrator",
}
"""Azure built-in roles that can do everything or grant themselves any permission."""


ONE_RESOURCE = re.compile(r"(?i)/resourceGroups/[^/]+/providers/[^/]+/[^/]+/[^/]+")


ONE_FEDERATED_SUBJECT = (
    re.compile(r"system:serviceaccount:[^:*]+:[^:*]+"),
    re.compile(r"repo:[^:*/]+/[^:*/]+:(pull_request|(environment|ref):[^:*]+)(:\w+:[^:*]*)*"),
    re.compile(r"project_path:[^:*/]+(/[^:*/]+)+:ref_type:(branch|tag):ref:[^:*]+(:\w+:[^:*]*)*"),
)
"""Subjects of Kubernetes, GitHub Actions and GitLab CI that are one workload (GitHub: OpenID Connect
reference; GitLab: ID token authentication). Further claims may follow.
"""


PUBLIC_MEMBERS = {"allUsers", "allAuthenticatedUsers"}


ONE_ACCOUNT = re.compile(
    r"^(serviceAccount:[^\[\]]+\[[^/*\[\]]+/[^/*\[\]]+\]|principal://.+/subject/.+|serviceAccount:[^\[\]*]+)$"
)
"""A Google workload identity member that is a single service account in a namespace."""


def _unrestricted_statements(where: str, policy: Json) -> Iterator[Violation]:
    for index, statement in enumerate(statements(policy)):
        if statement.get("Effect") != "Allow" or not _any_resource(statement):
            continue
        actions = [str(action) for action in listed(statement.get("Action"))]
        place = f"{where}.Statement[{index}]"
        if EVERYTHING & set(actions) or "NotAction" in statement:
            yield Violation(f"{place} allows every action on every resource")
            continue
        if services := sorted({found[1].lower() for each in actions if (found := ONE_SERVICE.match(each))}):
            yield Violation(f"{place} allows every action of {', '.join(services)} on every resource")
        if not limits_resources(statement):
            yield from _harmful_actions(place, [each for each in actions if not ONE_SERVICE.match(each)])


def _any_resource(statement: dict[str, Json]) -> bool:
    return "NotResource" in statement or any(
        ANY_RESOURCE.match(str(each)) for each in listed(statement.get("Resource"))
    )


def _harmful_actions(where: str, actions: list[str]) -> Iterator[Violation]:
    for consequence, harmful in HARMFUL.items():
        named = sorted(
            {each for each in actions if any(fnmatchcase(action, each.lower()) for action in harmful)}
        )
        if named:
            yield Violation(f"{where} allows {', '.join(named)} on every resource, so it {consequence}")


def policy_document(resource: Resource) -> Iterable[Violation]:
    """The actions on every resource must not be everything, a whole service, or harmful ones."""
    yield from _unrestricted_statements("policy", resource.props.get("policy"))


def role(resource: Resource) -> Iterable[Violation]:
    """The same for a role's own policies."""
    for arn in listed(resource.props.get("managedPolicyArns")):
        yield from _managed_policy("managedPolicyArns", arn)
    for where, inline in numbered("inlinePolicies", resource.props.get("inlinePolicies")):
        yield from _unrestricted_statements(f"{where}.policy", inline.get("policy"))


def attachment(resource: Resource) -> Iterable[Violation]:
    """A managed policy of AWS must not allow everything or a whole service."""
    yield from _managed_policy("policyArn", resource.props.get("policyArn"))


def _managed_policy(where: str, arn: Json) -> Iterator[Violation]:
    name = str(arn).rpartition("/")[2]
    if ":aws:policy/" in str(arn) and name in ADMINISTRATORS:
        yield Violation(f"{where} is {name}")
    elif ":aws:policy/" in str(arn) and FULL_ACCESS.search(str(arn)):
        yield Violation(f"{where} is {name}, which allows every action of a service")


def basic_role(resource: Resource) -> Iterable[Violation]:
    """A role on a Google project must not be basic, and must not lead to every service account."""
    granted = resource.props.get("role")
    if granted is not None and (means := (BASIC_ROLES | IMPERSONATING_ROLES).get(str(granted))):
        yield Violation(f"role is {granted}, which {means} in the project")


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


def anonymous_member(resource: Resource) -> Iterable[Violation]:
    for name in ("member", "members"):
        for member in listed(resource.props.get(name)):
            if member is not UNKNOWN and member in PUBLIC_MEMBERS:
                yield Violation(f"{name} includes {member}")


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
    if not any(form.fullmatch(subject) for form in ONE_FEDERATED_SUBJECT):
        yield Violation(
            f"subject is `{subject}`, which is not a single service account in a namespace, nor an "
            "environment, a branch or the pull requests of one repository"
        )
