"""Identity: permissions, and how people and workloads authenticate."""

from __future__ import annotations

from collections.abc import Iterable

from trainfleet.policies.engine.accessors import (
    Forbidden,
    all_of,
    at,
    false,
    listed,
    missing_companion,
    not_false,
    not_true,
    numbered,
    one_of,
    present,
    true,
)
from trainfleet.policies.engine.rule import UNKNOWN, Resource, Rule, Violation
from trainfleet.policies.iam_documents import (
    anonymous_member,
    attachment,
    azure_assignment,
    azure_definition,
    basic_role,
    federated_subject,
    policy_document,
    role,
    workload_member,
)
from trainfleet.policies.iam_principals import (
    RESOURCE_POLICIES,
    anonymous_principal,
    role_trust,
    unnamed_owner,
)
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
    LAUNCH_TEMPLATE,
    ROLES,
)

ANONYMOUS_SUBJECTS = {"system:anonymous", "system:unauthenticated"}


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


DEFAULT_ACCOUNT = "-compute@developer.gserviceaccount.com"


def cluster_rules(resource: Resource) -> Iterable[Violation]:
    for where, rule in numbered("rules", resource.props.get("rules")):
        if all("*" in listed(rule.get(part)) for part in ("apiGroups", "resources", "verbs")):
            yield Violation(f"{where} allows every verb on every resource")


def cluster_binding(resource: Resource) -> Iterable[Violation]:
    if (resource.props.get("roleRef") or {}).get("name") == "cluster-admin":
        yield Violation("roleRef is cluster-admin")


def anonymous_subject(resource: Resource) -> Iterable[Violation]:
    for where, subject in numbered("subjects", resource.props.get("subjects")):
        if subject.get("name") in ANONYMOUS_SUBJECTS:
            yield Violation(f"{where} is {subject['name']}")


def session_tokens(resource: Resource) -> Iterable[Violation]:
    options = resource.props.get("metadataOptions") or {}
    if options.get("httpEndpoint") == "disabled":
        return
    if options.get("httpTokens") != "required":
        yield Violation("metadataOptions.httpTokens is not `required`")


def node_group_template(resource: Resource) -> Iterable[Violation]:
    if resource.props.get("launchTemplate") is None:
        yield Violation("launchTemplate is missing, so EKS does not require session tokens")


def hop_limit(resource: Resource) -> Iterable[Violation]:
    limit = at(resource.props, "metadataOptions.httpPutResponseHopLimit")
    if (
        limit is not None
        and int(limit) > 1
        and at(resource.props, "metadataOptions.httpEndpoint") != "disabled"
    ):
        yield Violation(
            f"metadataOptions.httpPutResponseHopLimit is {int(limit)}: a pod can use the node's role"
        )


def node_account(resource: Resource) -> Iterable[Violation]:
    account = at(resource.props, "nodeConfig.serviceAccount")
    if account is None or (account is not UNKNOWN and str(account) in ("", "default")):
        yield Violation(
            "nodeConfig.serviceAccount is missing, so nodes use the project's default account, "
            "which may edit the project"
        )
    elif str(account).endswith(DEFAULT_ACCOUNT):
        yield Violation("nodeConfig.serviceAccount is the project's default account")


def aks_identity(resource: Resource) -> Iterable[Violation]:
    if at(resource.props, "servicePrincipalProfile.secret") is not None:
        yield Violation(
            "servicePrincipalProfile.secret is set: the cluster authenticates with a secret that expires"
        )
    if at(resource.props, "identity.type") not in ("UserAssigned", "SystemAssigned"):
        yield Violation("identity.type is not `UserAssigned` or `SystemAssigned`")


def _pod_identity(resource: Resource) -> bool:
    return resource.kind != EKS_ADDON or resource.props.get("addonName") == "eks-pod-identity-agent"


NO_STAR_ROLE = Rule(
    name="no-star-role",
    statement=(
        "No role may do everything, all of a service, grant permissions or read data on every resource."
    ),
    reason="Anyone who obtains such a role, by mistake or by theft, controls the account or its data.",
    fix="list the actions and resources that are needed, or limit the resources by a tag",
    references=(
        "CIS AWS 1.16",
        "CIS Kubernetes 5.1.1, 5.1.3",
        "CKV_AWS_62",
        "CKV_AWS_274",
        "CKV_AWS_286",
        "CKV_AWS_288",
        "CKV_AWS_355",
        "AWS-0057",
        "CIS GCP 1.5",
        "CKV_GCP_41",
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
    statement="Nothing is accessible to everyone: no key, secret, image, queue, object or cluster.",
    reason=(
        "`allUsers` and a principal of `*` mean the whole internet, even where they look like the whole "
        "company."
    ),
    fix=(
        "name the principals, or add a condition on the caller's account, organization, ARN, address or VPC"
    ),
    references=(
        "CIS GCP 1.9, 5.1",
        "CKV_GCP_28",
        "GCP-0001",
        "CKV_AWS_33",
        "CKV_AWS_70",
        "CKV_AWS_283",
        "CKV_AZURE_138",
        "S3: the meaning of public",
    ),
    severity="critical",
    checks={
        **dict.fromkeys(RESOURCE_POLICIES, anonymous_principal),
        **dict.fromkeys((*GCP_MEMBERS, *GCP_BINDINGS), anonymous_member),
        ACR: not_true("anonymousPullEnabled"),
        **dict.fromkeys(BINDINGS, anonymous_subject),
    },
)


NAMED_OWNER = Rule(
    name="services-act-for-a-named-account",
    statement="A policy that admits a cloud service names the account or resource that the service acts for.",
    reason=(
        "A service acts for all of its customers; without the name, another customer can make it use the "
        "platform's key, bucket or topic."
    ),
    fix="add a condition on aws:SourceAccount or aws:SourceArn; on a key, the encryption context also counts",
    references=("IAM: the confused deputy problem", "KMS: least-privilege permissions"),
    severity="medium",
    checks=dict.fromkeys(RESOURCE_POLICIES, unnamed_owner),
)


IMDSV2 = Rule(
    name="imdsv2",
    statement="A node's metadata service requires a session token.",
    reason="Without it, one forged request through a web service reads the node's credentials.",
    fix="set metadataOptions.httpTokens: required",
    references=("CIS AWS 5.6", "CKV_AWS_79", "AWS-0130"),
    severity="high",
    checks={LAUNCH_TEMPLATE: session_tokens, EC2: session_tokens, EKS_NODES: node_group_template},
)


PODS_NOT_AS_NODE = Rule(
    name="pods-not-as-node",
    statement="A pod cannot use the identity of its node.",
    reason=(
        "The node can pull images and join the cluster; a pod that reads its token can do the same for every "
        "team."
    ),
    fix="set hop limit 1 (AWS), or use the GKE metadata server (GCP)",
    references=(
        "CKV_AWS_341",
        "CKV_GCP_69",
        "GCP-0057",
        "EKS best practices: restrict access to the instance profile",
    ),
    severity="high",
    checks={
        LAUNCH_TEMPLATE: hop_limit,
        GKE_NODES: one_of("nodeConfig.workloadMetadataConfig.mode", ("GKE_METADATA",)),
    },
)


WORKLOAD_IDENTITY = Rule(
    name="workload-identity",
    statement="Pods get cloud permissions through their own service account.",
    reason=(
        "The alternatives are a key in a secret, which never expires, or the node's permissions, which all "
        "pods share."
    ),
    fix="enable workload identity (GKE, AKS) or install the EKS Pod Identity agent",
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
            exempt=lambda _, resources: any(
                one.kind == "aws:iam/openIdConnectProvider:OpenIdConnectProvider" for one in resources
            ),
        )
    },
)


TRUST_ONE = Rule(
    name="trust-names-its-subject",
    statement="A role names the one service, account or service account that may assume it.",
    reason="Trust in a whole cluster, pool or cloud gives the role to every pod that ever starts there.",
    fix=(
        "name the cluster, the namespace and the service account in the trust policy; for another account "
        "name the role, or require an external ID"
    ),
    references=(
        "CKV_AWS_60",
        "CKV_AWS_61",
        "CKV_AWS_358",
        "CKV_GCP_125",
        "EKS Pod Identity: trust policy",
        "Azure workload identity: federated credential",
    ),
    severity="high",
    checks={
        AWS_ROLE: role_trust,
        **dict.fromkeys(ACCOUNT_GRANTS, workload_member),
        "azure-native:managedidentity:FederatedIdentityCredential": federated_subject,
    },
)


NO_LONG_LIVED_KEYS = Rule(
    name="no-long-lived-keys",
    statement="Access does not depend on a key or password that never expires.",
    reason="Such a key is copied into notebooks and images, and works until someone revokes it.",
    fix="use a role, workload identity or a managed identity",
    references=("CIS AWS 1.13", "CKV_AWS_273", "CIS GCP 1.4", "CKV2_AZURE_40", "CKV_AZURE_137"),
    severity="high",
    checks={
        "aws:iam/accessKey:AccessKey": one_of("status", ("Inactive",), "an access key never expires"),
        "aws:iam/userLoginProfile:UserLoginProfile": Forbidden("a user with a password"),
        "gcp:serviceaccount/key:Key": Forbidden("a service account key lasts for years or never expires"),
        "gcp:storage/hmacKey:HmacKey": one_of("state", ("INACTIVE",), "an HMAC key never expires"),
        AZURE_STORAGE: false("allowSharedKeyAccess", "the account key grants full access and never expires"),
        ACR: not_true("adminUserEnabled", "everyone shares one password"),
    },
)


LOGIN_BY_IDENTITY = Rule(
    name="login-by-identity",
    statement="People and machines authenticate to the cluster with their cloud identity.",
    reason=(
        "A certificate or local account cannot be revoked, and one bad edit to an in-cluster user map locks "
        "everyone out."
    ),
    fix=(
        "use access entries only (EKS), no client certificates and no ABAC (GKE), Entra ID with RBAC and no "
        "local accounts (AKS)"
    ),
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
    statement="Nodes and control planes use a dedicated identity.",
    reason=(
        "A cloud's default account can often edit the whole project, and a cluster's client secret expires "
        "during a run."
    ),
    fix="give node pools their own service account (GKE), and the cluster a managed identity (AKS)",
    references=("GCP-0050", "CIS GKE 5.2.1", "AKS: use managed identities"),
    severity="high",
    checks={GKE_NODES: node_account, AKS: aks_identity},
)


RULES = (
    NO_STAR_ROLE,
    NO_ANONYMOUS,
    NAMED_OWNER,
    IMDSV2,
    PODS_NOT_AS_NODE,
    WORKLOAD_IDENTITY,
    TRUST_ONE,
    NO_LONG_LIVED_KEYS,
    LOGIN_BY_IDENTITY,
    OWN_NODE_IDENTITY,
)
