"""Identity, network and naming, broken."""

from __future__ import annotations

import json
from typing import Any

from tests.policies.cases.exposure import document
from tests.policies.cases.table import BASES, REMOVED, Case
from trainfleet.policies.iam_principals import RESOURCE_POLICIES
from trainfleet.policies.identity import GCP_BINDINGS, GCP_MEMBERS, PROJECT_GRANTS
from trainfleet.policies.naming import GCP_LABELLED, TAGGABLE
from trainfleet.policies.resource_types import (
    ACR,
    AKS,
    AWS_ROLE,
    AZURE_STORAGE,
    AZURE_SUBNET,
    BINDINGS,
    CLOUD_CONTROL,
    EC2,
    EKS,
    EKS_ADDON,
    EKS_NODES,
    GCP_NETWORK,
    GKE,
    GKE_NODES,
    LAUNCH_TEMPLATE,
    ROLES,
    VNET,
)

STAR = {"Effect": "Allow", "Action": "*", "Resource": "*"}
ALL = {"Effect": "Allow", "Action": ["s3:Get*", "*:*"], "Resource": ["*"]}
SUBSCRIPTION = "/subscriptions/11111111-2222-3333-4444-555555555555"
OWNER, CONTRIBUTOR = "8e3af657-a8ff-443c-a75c-2fe8c4bcb635", "b24988ac-6180-42a0-ab88-20f7382dd24c"
TRUST = "assumeRolePolicy"


def _assign(role: str, scope: str) -> dict[Any, Any]:
    return {
        "roleDefinitionId": f"{SUBSCRIPTION}/providers/Microsoft.Authorization/roleDefinitions/{role}",
        "scope": scope,
    }


RIGHTS = [
    *(
        Case("no-star-role", f"aws:iam/{kind}", {"policy": document(statement)}, "policy.Statement[0]")
        for kind in (
            "policy:Policy",
            "rolePolicy:RolePolicy",
            "userPolicy:UserPolicy",
            "groupPolicy:GroupPolicy",
        )
        for statement in (STAR, ALL, {"Effect": "Allow", "NotAction": "iam:*", "Resource": "*"})
    ),
    Case("no-star-role", AWS_ROLE, {"inlinePolicies": [{"policy": document(STAR)}]}, "inlinePolicies[0]"),
    Case(
        "no-star-role",
        AWS_ROLE,
        {"managedPolicyArns": ["arn:aws:iam::aws:policy/AdministratorAccess"]},
        "Administrator",
    ),
    *(
        Case(
            "no-star-role",
            kind,
            {"policyArn": "arn:aws-us-gov:iam::aws:policy/AdministratorAccess"},
            "Administrator",
        )
        for kind in (
            "aws:iam/rolePolicyAttachment:RolePolicyAttachment",
            "aws:iam/policyAttachment:PolicyAttachment",
        )
    ),
    *(
        Case("no-star-role", kind, {"role": role}, role)
        for kind in PROJECT_GRANTS
        for role in ("roles/owner", "roles/editor")
    ),
    Case(
        "no-star-role",
        "azure-native:authorization:RoleAssignment",
        _assign(OWNER, f"{SUBSCRIPTION}/resourceGroups/g"),
        "Owner",
    ),
    Case(
        "no-star-role",
        "azure-native:authorization:RoleAssignment",
        _assign(CONTRIBUTOR, SUBSCRIPTION),
        "Contributor",
    ),
    Case(
        "no-star-role",
        "azure-native:authorization:RoleDefinition",
        {"permissions": [{"actions": ["*"]}]},
        "permissions[0].actions",
    ),
    *(
        Case(
            "no-star-role",
            kind,
            {"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]},
            "rules[0] allows every verb",
        )
        for kind in ROLES
    ),
    *(Case("no-star-role", kind, {"roleRef.name": "cluster-admin"}, "cluster-admin") for kind in BINDINGS),
    *(
        Case(
            "no-anonymous-access",
            kind,
            {
                prop: document(
                    {
                        "Effect": "Allow",
                        "Principal": "*",
                        "Action": "s3:GetObject",
                        "Resource": "arn:aws:s3:::data/*",
                    }
                )
            },
            "allows every principal without a condition",
        )
        for kind, prop in RESOURCE_POLICIES.items()
    ),
    *(
        Case("no-anonymous-access", kind, {"member": "allUsers"}, "member includes allUsers")
        for kind in GCP_MEMBERS
    ),
    *(
        Case(
            "no-anonymous-access",
            kind,
            {"members": ["user:a@b.c", "allAuthenticatedUsers"]},
            "members includes allAuthenticatedUsers",
        )
        for kind in GCP_BINDINGS
    ),
    Case("no-anonymous-access", ACR, {"anonymousPullEnabled": True}, "anonymousPullEnabled"),
    *(
        Case(
            "no-anonymous-access",
            kind,
            {"subjects": [{"kind": "User", "name": "system:anonymous"}]},
            "subjects[0] is system:anonymous",
        )
        for kind in BINDINGS
    ),
]
LOGINS = [
    Case("imdsv2", LAUNCH_TEMPLATE, {"metadataOptions": REMOVED}, "httpTokens"),
    Case("imdsv2", LAUNCH_TEMPLATE, {"metadataOptions.httpTokens": "optional"}, "httpTokens"),
    Case("imdsv2", EC2, {"metadataOptions": REMOVED}, "httpTokens"),
    Case("imdsv2", EKS_NODES, {"launchTemplate": REMOVED}, "launchTemplate"),
    Case(
        "pods-not-as-node",
        LAUNCH_TEMPLATE,
        {"metadataOptions.httpPutResponseHopLimit": 2},
        "httpPutResponseHopLimit is 2",
    ),
    Case(
        "pods-not-as-node",
        GKE_NODES,
        {"nodeConfig.workloadMetadataConfig.mode": "GCE_METADATA"},
        "GCE_METADATA",
    ),
    Case("pods-not-as-node", GKE_NODES, {"nodeConfig.workloadMetadataConfig": REMOVED}, "missing"),
    Case("workload-identity", GKE, {"workloadIdentityConfig": REMOVED}, "workloadPool"),
    Case("workload-identity", AKS, {"oidcIssuerProfile": REMOVED}, "oidcIssuerProfile.enabled"),
    Case(
        "workload-identity",
        AKS,
        {"securityProfile.workloadIdentity.enabled": False},
        "workloadIdentity.enabled",
    ),
    Case(
        "trust-names-its-subject",
        AWS_ROLE,
        {TRUST: document({"Effect": "Allow", "Principal": "*", "Action": "sts:AssumeRole"})},
        "everyone",
    ),
    Case(
        "trust-names-its-subject",
        AWS_ROLE,
        {
            TRUST: document(
                {
                    "Effect": "Allow",
                    "Principal": {"Federated": "arn:oidc"},
                    "Action": "sts:AssumeRoleWithWebIdentity",
                }
            )
        },
        "no condition on the token's subject",
    ),
    Case(
        "trust-names-its-subject",
        "gcp:serviceaccount/iAMMember:IAMMember",
        {"role": "roles/iam.workloadIdentityUser", "member": "serviceAccount:p.svc.id.goog[training/*]"},
        "not a single service account",
    ),
    Case(
        "trust-names-its-subject",
        "gcp:serviceaccount/iAMBinding:IAMBinding",
        {
            "members": [
                "principalSet://iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/*"
            ]
        },
        "not a single service account",
    ),
    Case(
        "trust-names-its-subject",
        "azure-native:managedidentity:FederatedIdentityCredential",
        {"subject": "system:serviceaccount:training:*"},
        "not a single service account",
    ),
    *(
        Case(
            "trust-names-its-subject",
            "azure-native:managedidentity:FederatedIdentityCredential",
            {"subject": subject},
            "the pull requests of one repository",
        )
        for subject in ("repo:org/*:environment:production", "repo:org/repo:*", "project_path:org:ref:main")
    ),
    *(
        Case(
            "trust-names-its-subject",
            AWS_ROLE,
            {
                TRUST: document(
                    {
                        "Effect": "Allow",
                        "Principal": {"Federated": "arn:oidc"},
                        "Action": "sts:AssumeRoleWithWebIdentity",
                        "Condition": {"StringLike": {"token.actions.githubusercontent.com:sub": subject}},
                    }
                )
            },
            "not a single one",
        )
        for subject in ("repo:org/*", "repo:org/*:ref:refs/heads/main", "repo:org/repo*")
    ),
    Case(
        "trust-names-its-subject",
        "azure-native:managedidentity:FederatedIdentityCredential",
        {"audiences": ["any"]},
        "audiences",
    ),
    Case("no-long-lived-keys", "aws:iam/accessKey:AccessKey", {"status": "Active"}, "never expires"),
    Case("no-long-lived-keys", "aws:iam/userLoginProfile:UserLoginProfile", {"user": "u"}, "password"),
    Case("no-long-lived-keys", "gcp:serviceaccount/key:Key", {"serviceAccountId": "a"}, "key"),
    Case("no-long-lived-keys", "gcp:storage/hmacKey:HmacKey", {"state": "ACTIVE"}, "HMAC"),
    Case("no-long-lived-keys", AZURE_STORAGE, {"allowSharedKeyAccess": True}, "allowSharedKeyAccess"),
    Case("no-long-lived-keys", AZURE_STORAGE, {"allowSharedKeyAccess": REMOVED}, "allowSharedKeyAccess"),
    Case("no-long-lived-keys", ACR, {"adminUserEnabled": True}, "adminUserEnabled"),
    Case(
        "login-by-identity",
        EKS,
        {"accessConfig.authenticationMode": "API_AND_CONFIG_MAP"},
        "API_AND_CONFIG_MAP",
    ),
    Case("login-by-identity", EKS, {"accessConfig": REMOVED}, "missing"),
    Case(
        "login-by-identity",
        GKE,
        {"masterAuth": {"clientCertificateConfig": {"issueClientCertificate": True}}},
        "issueClientCertificate",
    ),
    Case("login-by-identity", GKE, {"enableLegacyAbac": True}, "enableLegacyAbac"),
    Case("login-by-identity", AKS, {"disableLocalAccounts": REMOVED}, "disableLocalAccounts"),
    Case("login-by-identity", AKS, {"aadProfile": REMOVED}, "aadProfile.managed"),
    Case("login-by-identity", AKS, {"enableRBAC": False}, "enableRBAC"),
    Case("own-node-identity", GKE_NODES, {"nodeConfig.serviceAccount": REMOVED}, "serviceAccount is missing"),
    Case(
        "own-node-identity",
        GKE_NODES,
        {"nodeConfig.serviceAccount": "1-compute@developer.gserviceaccount.com"},
        "default account",
    ),
    Case(
        "own-node-identity",
        AKS,
        {"servicePrincipalProfile": {"clientId": "c", "secret": "s"}},
        "servicePrincipalProfile.secret",
    ),
    Case("own-node-identity", AKS, {"identity": REMOVED}, "identity.type"),
]
NETWORK = [
    Case(
        "no-default-network",
        "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup",
        {"ingress": [{"protocol": "-1", "self": True}]},
        "ingress",
    ),
    Case("no-default-network", "aws:ec2/defaultVpc:DefaultVpc", {"tags": {}}, "default network"),
    Case("no-default-network", GCP_NETWORK, {"autoCreateSubnetworks": REMOVED}, "autoCreateSubnetworks"),
    Case("guarded-subnets", AZURE_SUBNET, {"networkSecurityGroup": REMOVED}, "networkSecurityGroup"),
    Case(
        "guarded-subnets",
        VNET,
        {"subnets": [{"name": "s", "addressPrefix": "10.0.0.0/24"}]},
        "subnets[0].networkSecurityGroup",
    ),
    Case(
        "network-policies-enforced",
        EKS_ADDON,
        {"addonName": "vpc-cni", "configurationValues": json.dumps({"enableNetworkPolicy": "false"})},
        "enableNetworkPolicy",
    ),
    Case(
        "network-policies-enforced",
        EKS_ADDON,
        {"addonName": "vpc-cni", "configurationValues": REMOVED},
        "enableNetworkPolicy",
    ),
    Case("network-policies-enforced", GKE, {"datapathProvider": REMOVED}, "datapathProvider"),
    Case("network-policies-enforced", AKS, {"networkProfile.networkPolicy": "none"}, "networkPolicy"),
    Case(
        "pods-have-addresses",
        GKE,
        {"ipAllocationPolicy": REMOVED, "networkingMode": "ROUTES"},
        "ipAllocationPolicy",
    ),
    Case(
        "pods-have-addresses",
        AKS,
        {
            "networkProfile.networkPlugin": "kubenet",
            "networkProfile.networkPluginMode": REMOVED,
            "networkProfile.networkDataplane": REMOVED,
        },
        "kubenet",
    ),
    Case("known-way-out", AKS, {"networkProfile.outboundType": "loadBalancer"}, "loadBalancer"),
    Case(
        "known-way-out", AZURE_SUBNET, {"natGateway": REMOVED, "defaultOutboundAccess": REMOVED}, "natGateway"
    ),
]


def _tag(kind: str, tag: str) -> tuple[str | int, ...]:
    if kind in GCP_LABELLED:
        return (*GCP_LABELLED[kind].split("."), tag.replace("trainfleet:", "trainfleet-"))
    return ("tags", tag)


def _hyperpod(tag: str, value: Any) -> dict[Any, Any]:
    desired = json.loads(BASES[CLOUD_CONTROL].props["desiredState"])
    kept = [each for each in desired["Tags"] if each["Key"] != tag]
    return {
        "desiredState": json.dumps(
            {**desired, "Tags": kept if value is REMOVED else [*kept, {"Key": tag, "Value": value}]}
        )
    }


def _tagged(kind: str, tag: str, value: Any) -> dict[Any, Any]:
    return _hyperpod(tag, value) if kind == CLOUD_CONTROL else {_tag(kind, tag): value}


NAMING = [
    *(
        Case("required-tags", kind, _tagged(kind, "trainfleet:owner", value), "owner")
        for kind in TAGGABLE
        for value in (REMOVED, "")
    ),
    *(
        Case(
            "names-begin-with-platform",
            kind,
            _tagged(kind, "trainfleet:platform", "other"),
            "does not start with `other-`",
        )
        for kind in TAGGABLE
    ),
    *(
        Case("known-environment", kind, _tagged(kind, "trainfleet:environment", "qa"), "`qa`")
        for kind in TAGGABLE
    ),
]
CASES = [*RIGHTS, *LOGINS, *NETWORK, *NAMING]
