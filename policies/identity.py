"""Identity: nobody may do everything, nobody is everybody, and nothing logs in with a key that never ends."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from trainfleet.policies.engine.accessors import (
    all_of,
    at,
    false,
    forbidden,
    listed,
    missing_companion,
    not_false,
    not_true,
    numbered,
    one_of,
    present,
    statements,
    true,
)
from trainfleet.policies.engine.rule import UNKNOWN, Json, Resource, Rule, StillUnknown, Violation
from trainfleet.policies.resource_types import (
    ACR,
    AKS,
    AWS_ROLE,
    AZURE_STORAGE,
    BINDINGS,
    EC2,
    EKS,
    EKS_ADDON,
    EKS_NODES,
    GKE,
    GKE_NODES,
    KMS_KEY,
    LAUNCH_TEMPLATE,
    ROLES,
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
"""Azure's built-in roles that can do everything, or give themselves everything (Azure built-in roles)."""
ONE_RESOURCE = re.compile(r"(?i)/resourceGroups/[^/]+/providers/[^/]+/[^/]+/[^/]+")
EVERYBODY = {"allUsers", "allAuthenticatedUsers"}
STRANGERS = {"system:anonymous", "system:unauthenticated"}
GCP_MEMBERS = (
    "gcp:artifactregistry/repositoryIamMember:RepositoryIamMember",
    "gcp:kms/cryptoKeyIAMMember:CryptoKeyIAMMember",
    "gcp:projects/iAMMember:IAMMember",
    "gcp:pubsub/topicIAMMember:TopicIAMMember",
    "gcp:secretmanager/secretIamMember:SecretIamMember",
    "gcp:serviceaccount/iAMMember:IAMMember",
    "gcp:storage/bucketIAMMember:BucketIAMMember",
)
GCP_BINDINGS = tuple(kind.replace("Member", "Binding") for kind in GCP_MEMBERS)
PROJECT_GRANTS = ("gcp:projects/iAMMember:IAMMember", "gcp:projects/iAMBinding:IAMBinding")
ACCOUNT_GRANTS = ("gcp:serviceaccount/iAMMember:IAMMember", "gcp:serviceaccount/iAMBinding:IAMBinding")
RESOURCE_POLICIES = {
    S3_POLICY: "policy",
    KMS_KEY: "policy",
    "aws:ecr/repositoryPolicy:RepositoryPolicy": "policy",
    "aws:secretsmanager/secretPolicy:SecretPolicy": "policy",
    "aws:sns/topicPolicy:TopicPolicy": "policy",
    "aws:sqs/queuePolicy:QueuePolicy": "policy",
}
DEFAULT_ACCOUNT = "-compute@developer.gserviceaccount.com"
ONE_ACCOUNT = re.compile(
    r"^(serviceAccount:[^\[\]]+\[[^/*\[\]]+/[^/*\[\]]+\]|principal://.+/subject/.+|serviceAccount:[^\[\]*]+)$"
)
"""A member of Google's workload identity that is one service account of one namespace."""


def _everything(where: str, policy: Json) -> Iterator[Violation]:
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
    for where, inline in numbered("inlinePolicies", resource.props.get("inlinePolicies")):
        yield from _everything(f"{where}.policy", inline.get("policy"))


def attachment(resource: Resource) -> Iterable[Violation]:
    yield from _administrator("policyArn", resource.props.get("policyArn"))


def _administrator(where: str, arn: Json) -> Iterator[Violation]:
    if str(arn).endswith(ADMINISTRATOR):
        yield Violation(f"{where} is AdministratorAccess")


def basic_role(resource: Resource) -> Iterable[Violation]:
    if resource.props.get("role") in BASIC_ROLES:
        yield Violation(f"role is {resource.props['role']}, which may change everything in the project")


def azure_assignment(resource: Resource) -> Iterable[Violation]:
    """Who may give rights may take all of them. A Contributor of one resource is none of the platform, so
    there the scope counts.
    """
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


def cluster_rules(resource: Resource) -> Iterable[Violation]:
    for where, rule in numbered("rules", resource.props.get("rules")):
        if all("*" in listed(rule.get(part)) for part in ("apiGroups", "resources", "verbs")):
            yield Violation(f"{where} allows every verb on every resource")


def cluster_binding(resource: Resource) -> Iterable[Violation]:
    if (resource.props.get("roleRef") or {}).get("name") == "cluster-admin":
        yield Violation("roleRef is cluster-admin")


def anonymous_principal(resource: Resource) -> Iterable[Violation]:
    """Everybody is allowed nothing, unless a condition says which of everybody."""
    where = RESOURCE_POLICIES[resource.kind]
    for index, statement in enumerate(statements(resource.props.get(where))):
        principal = statement.get("Principal")
        anybody = principal == "*" or (isinstance(principal, dict) and "*" in listed(principal.get("AWS")))
        if statement.get("Effect") == "Allow" and anybody and not statement.get("Condition"):
            yield Violation(f"{where}.Statement[{index}] allows every principal without a condition")


def anonymous_member(resource: Resource) -> Iterable[Violation]:
    for name in ("member", "members"):
        for member in listed(resource.props.get(name)):
            if member is not UNKNOWN and member in EVERYBODY:
                yield Violation(f"{name} holds {member}")


def anonymous_subject(resource: Resource) -> Iterable[Violation]:
    for where, subject in numbered("subjects", resource.props.get("subjects")):
        if subject.get("name") in STRANGERS:
            yield Violation(f"{where} is {subject['name']}")


def session_tokens(resource: Resource) -> Iterable[Violation]:
    options = resource.props.get("metadataOptions") or {}
    if options.get("httpEndpoint") == "disabled":
        return
    if options.get("httpTokens") != "required":
        yield Violation("metadataOptions.httpTokens is not `required`")


def node_group_template(resource: Resource) -> Iterable[Violation]:
    if resource.props.get("launchTemplate") is None:
        yield Violation(
            "launchTemplate is missing, so metadata options are EKS's own and session tokens are not required"
        )


def hops(resource: Resource) -> Iterable[Violation]:
    limit = at(resource.props, "metadataOptions.httpPutResponseHopLimit")
    if (
        limit is not None
        and int(limit) > 1
        and at(resource.props, "metadataOptions.httpEndpoint") != "disabled"
    ):
        yield Violation(
            f"metadataOptions.httpPutResponseHopLimit is {int(limit)}: a pod reaches the node's role"
        )


def pod_trust(resource: Resource) -> Iterable[Violation]:
    """A role is taken by one service, one account or one service account, never by anyone who comes."""
    for index, statement in enumerate(statements(resource.props.get("assumeRolePolicy"))):
        if statement.get("Effect") != "Allow":
            continue
        where, condition = f"assumeRolePolicy.Statement[{index}]", statement.get("Condition") or {}
        principal = statement.get("Principal")
        if principal == "*" or (isinstance(principal, dict) and "*" in listed(principal.get("AWS"))):
            yield Violation(f"{where} lets everybody take the role")
        keys = {key for block in condition.values() if isinstance(block, dict) for key in block}
        if (
            isinstance(principal, dict)
            and principal.get("Federated") is not None
            and not any(str(key).endswith(":sub") for key in keys)
        ):
            yield Violation(
                f"{where} has no condition on the token's subject, so every pod of the cluster can take the role"
            )


def workload_member(resource: Resource) -> Iterable[Violation]:
    if resource.props.get("role") != "roles/iam.workloadIdentityUser":
        return
    for name in ("member", "members"):
        for member in listed(resource.props.get(name)):
            if member is UNKNOWN:
                raise StillUnknown
            if not ONE_ACCOUNT.match(str(member)):
                yield Violation(f"{name} is {member}, which is not one service account of one namespace")


def federated_subject(resource: Resource) -> Iterable[Violation]:
    audiences = [str(each) for each in listed(resource.props.get("audiences"))]
    if audiences != ["api://AzureADTokenExchange"]:
        yield Violation("audiences is not `api://AzureADTokenExchange` alone")
    subject = str(resource.props.get("subject") or "")
    if not re.fullmatch(r"system:serviceaccount:[^:*]+:[^:*]+", subject):
        yield Violation(f"subject is `{subject}`, which is not one service account of one namespace")


def node_account(resource: Resource) -> Iterable[Violation]:
    account = at(resource.props, "nodeConfig.serviceAccount")
    if account is None or (account is not UNKNOWN and str(account) in ("", "default")):
        yield Violation(
            "nodeConfig.serviceAccount is missing, so nodes take the project's default account, which may edit the project"
        )
    elif str(account).endswith(DEFAULT_ACCOUNT):
        yield Violation("nodeConfig.serviceAccount is the project's default account")


def aks_identity(resource: Resource) -> Iterable[Violation]:
    if at(resource.props, "servicePrincipalProfile.secret") is not None:
        yield Violation("servicePrincipalProfile.secret is set: the cluster logs in with a secret that ends")
    if at(resource.props, "identity.type") not in ("UserAssigned", "SystemAssigned"):
        yield Violation("identity.type is not `UserAssigned` or `SystemAssigned`")


def _pod_identity(resource: Resource) -> bool:
    return resource.kind != EKS_ADDON or resource.props.get("addonName") == "eks-pod-identity-agent"


NO_STAR_ROLE = Rule(
    name="no-star-role",
    statement="No role allows every action on every resource.",
    reason="Anyone who obtains such a role, by mistake or by theft, owns the account; a narrow one loses what it names and no more.",
    fix="name the actions and the resources that are needed",
    references=(
        "CIS AWS 1.16",
        "CIS Kubernetes 5.1.1, 5.1.3",
        "CKV_AWS_62",
        "CKV_AWS_355",
        "AWS-0057",
        "CIS GCP 1.5",
        "CKV_GCP_49",
        "CKV_AZURE_39",
    ),
    severity="critical",
    checks={
        "aws:iam/policy:Policy": policy_document,
        "aws:iam/rolePolicy:RolePolicy": policy_document,
        "aws:iam/userPolicy:UserPolicy": policy_document,
        "aws:iam/groupPolicy:GroupPolicy": policy_document,
        AWS_ROLE: role,
        "aws:iam/rolePolicyAttachment:RolePolicyAttachment": attachment,
        "aws:iam/policyAttachment:PolicyAttachment": attachment,
        **dict.fromkeys(PROJECT_GRANTS, basic_role),
        "azure-native:authorization:RoleAssignment": azure_assignment,
        "azure-native:authorization:RoleDefinition": azure_definition,
        **dict.fromkeys(ROLES, cluster_rules),
        **dict.fromkeys(BINDINGS, cluster_binding),
    },
)
NO_ANONYMOUS = Rule(
    name="no-anonymous-access",
    statement="Nothing is allowed to everybody: not a key, a secret, an image, a queue, an object or the cluster.",
    reason="`allUsers` and a principal of `*` mean the whole internet, also where it looks like the whole company.",
    fix="name who may, or add a condition that says which of everybody",
    references=("CIS GCP 1.9, 5.1", "CKV_GCP_28", "GCP-0001", "CKV_AWS_33", "CKV_AWS_70", "CKV_AZURE_138"),
    severity="critical",
    checks={
        **dict.fromkeys(RESOURCE_POLICIES, anonymous_principal),
        **dict.fromkeys((*GCP_MEMBERS, *GCP_BINDINGS), anonymous_member),
        ACR: not_true("anonymousPullEnabled"),
        **dict.fromkeys(BINDINGS, anonymous_subject),
    },
)
IMDSV2 = Rule(
    name="imdsv2",
    statement="A node's metadata service asks for a session token.",
    reason="Without it one forged request through a web service reads the node's credentials.",
    fix="set metadataOptions.httpTokens: required",
    references=("CIS AWS 5.6", "CKV_AWS_79", "AWS-0130"),
    severity="high",
    checks={LAUNCH_TEMPLATE: session_tokens, EC2: session_tokens, EKS_NODES: node_group_template},
)
PODS_NOT_AS_NODE = Rule(
    name="pods-not-as-node",
    statement="A pod cannot take the identity of the node it runs on.",
    reason="The node may pull images and join the cluster; a training that reads its token may do the same for every team.",
    fix="hop limit 1 on AWS, and the GKE metadata server on Google",
    references=(
        "CKV_AWS_341",
        "CKV_GCP_69",
        "GCP-0057",
        "EKS best practices: restrict access to the instance profile",
    ),
    severity="high",
    checks={
        LAUNCH_TEMPLATE: hops,
        GKE_NODES: one_of("nodeConfig.workloadMetadataConfig.mode", ("GKE_METADATA",)),
    },
)
WORKLOAD_IDENTITY = Rule(
    name="workload-identity",
    statement="Pods get their rights in the cloud through their own service account.",
    reason="The other ways are a key in a secret, which never ends, or the node's rights, which all pods share.",
    fix="turn on workload identity (GKE, AKS) or install the EKS Pod Identity agent",
    references=("CIS GKE 5.2.2", "AKS: workload identity", "EKS best practices: identities for pods"),
    severity="high",
    checks={
        GKE: present("workloadIdentityConfig.workloadPool"),
        AKS: all_of(true("oidcIssuerProfile.enabled"), true("securityProfile.workloadIdentity.enabled")),
    },
    stack={
        EKS: missing_companion(
            (EKS,),
            (EKS_ADDON, "aws:iam/openIdConnectProvider:OpenIdConnectProvider"),
            "clusterName",
            "the cluster has neither the add-on eks-pod-identity-agent nor an OpenID Connect provider",
            counts=_pod_identity,
            spared=lambda _, resources: any(
                one.kind == "aws:iam/openIdConnectProvider:OpenIdConnectProvider" for one in resources
            ),
        )
    },
)
TRUST_ONE = Rule(
    name="trust-names-its-subject",
    statement="A role says which one service, account or service account may take it.",
    reason="A trust in a whole cluster, pool or cloud gives the role to every pod that is ever started there.",
    fix="name namespace and service account in the trust",
    references=("CKV_AWS_60", "CKV_AWS_358", "CKV_GCP_125", "Azure workload identity: federated credential"),
    severity="high",
    checks={
        AWS_ROLE: pod_trust,
        **dict.fromkeys(ACCOUNT_GRANTS, workload_member),
        "azure-native:managedidentity:FederatedIdentityCredential": federated_subject,
    },
)
NO_LONG_LIVED_KEYS = Rule(
    name="no-long-lived-keys",
    statement="Nothing is opened with a key or password that does not end by itself.",
    reason="Such a key is copied into notebooks and images, and works until somebody remembers it.",
    fix="use a role, workload identity or a managed identity",
    references=("CIS AWS 1.13", "CKV_AWS_273", "CIS GCP 1.4", "CKV2_AZURE_40", "CKV_AZURE_137"),
    severity="high",
    checks={
        "aws:iam/accessKey:AccessKey": one_of("status", ("Inactive",), "an access key never ends"),
        "aws:iam/userLoginProfile:UserLoginProfile": forbidden("a user with a password"),
        "gcp:serviceaccount/key:Key": forbidden("a service account's key ends after years or never"),
        "gcp:storage/hmacKey:HmacKey": one_of("state", ("INACTIVE",), "an HMAC key never ends"),
        AZURE_STORAGE: false("allowSharedKeyAccess", "the account's key opens everything and never ends"),
        ACR: not_true("adminUserEnabled", "one password for everybody"),
    },
)
LOGIN_BY_IDENTITY = Rule(
    name="login-by-identity",
    statement="People and machines log in to the cluster as who they are in the cloud.",
    reason="A certificate or local account cannot be taken back, and a map inside the cluster locks everybody out with one bad edit.",
    fix="access entries only (EKS), no client certificates and no ABAC (GKE), Entra ID with RBAC and no local accounts (AKS)",
    references=(
        "CKV_GCP_13",
        "GCP-0064",
        "CKV_GCP_7",
        "CKV_AZURE_141",
        "CKV_AZURE_5",
        "AZU-0042",
        "EKS best practices: cluster access manager",
    ),
    severity="high",
    checks={
        EKS: one_of("accessConfig.authenticationMode", ("API",)),
        GKE: all_of(
            not_true("masterAuth.clientCertificateConfig.issueClientCertificate"),
            not_true("enableLegacyAbac"),
        ),
        AKS: all_of(
            true("disableLocalAccounts"),
            true("aadProfile.managed"),
            not_false("enableRBAC"),
        ),
    },
)
OWN_NODE_IDENTITY = Rule(
    name="own-node-identity",
    statement="Nodes and control planes act under an identity that was made for them.",
    reason="A cloud's default account may edit the whole project, and a secret given to a cluster ends in the middle of a run.",
    fix="give node pools a service account of their own (GKE), and the cluster a managed identity (AKS)",
    references=("GCP-0050", "CIS GKE 5.2.1", "AKS: use managed identities"),
    severity="high",
    checks={GKE_NODES: node_account, AKS: aks_identity},
)
RULES = (
    NO_STAR_ROLE,
    NO_ANONYMOUS,
    IMDSV2,
    PODS_NOT_AS_NODE,
    WORKLOAD_IDENTITY,
    TRUST_ONE,
    NO_LONG_LIVED_KEYS,
    LOGIN_BY_IDENTITY,
    OWN_NODE_IDENTITY,
)
