"""Rules of a whole stack: what each type lacks when it is alone, and the companions with which the stack
keeps
the rule.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trainfleet.policies.resource_types import (
    AKS,
    AWS_BUDGET,
    AZURE_BUDGETS,
    AZURE_DIAGNOSTICS,
    AZURE_KEY,
    AZURE_STORAGE,
    BLOB_SERVICE,
    ECR,
    EKS,
    EKS_ADDON,
    GCP_BUDGET,
    GCP_IMAGES,
    GCP_SERVICE,
    GCP_SUBNET,
    GCS,
    GKE,
    GKE_NODES,
    NAMESPACE,
    NETWORK_POLICY,
    S3,
    S3_BLOCK,
    S3_ENCRYPTION,
    S3_LIFECYCLE,
    S3_LOGGING,
    S3_POLICY,
    S3_VERSIONING,
    VNET,
    VPC,
)


@dataclass(frozen=True)
class StackCase:
    """A resource that violates a stack rule on its own, and companions that each fix it."""

    rule: str
    kind: str
    message: str
    companions: tuple[tuple[str, str, dict[str, Any]], ...] = ()
    """Type, the property that refers to the resource (empty: none), and properties."""
    props: dict[str, Any] = field(default_factory=dict)
    fixed: dict[str, Any] | None = None
    """Properties with which the resource itself keeps the rule."""
    without: tuple[str, ...] = ()
    """Paths of the planned resource of the type by which it keeps the rule."""


FLOW = "azure-native:network:FlowLog"
DENY = {
    "metadata": {"name": "deny", "namespace": "training"},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]},
}
KMS = {"rules": [{"applyServerSideEncryptionByDefault": {"sseAlgorithm": "aws:kms", "kmsMasterKeyId": "k"}}]}
EVERY_DAY = {"rotationPolicy": {"lifetimeActions": [{"action": {"type": "rotate"}}]}}
STACK_CASES = [
    StackCase(
        "images-scanned",
        GCP_IMAGES,
        "does not enable containerscanning.googleapis.com",
        ((GCP_SERVICE, "", {"service": "containerscanning.googleapis.com"}),),
    ),
    *(
        StackCase("no-public-bucket", kind, "no public access block", ((S3_BLOCK, "bucket", {}),))
        for kind in S3
    ),
    *(StackCase("tls-only-bucket", kind, "no bucket policy", ((S3_POLICY, "bucket", {}),)) for kind in S3),
    *(
        StackCase(
            "own-key-for-buckets",
            kind,
            "no default encryption",
            ((S3_ENCRYPTION, "bucket", KMS), (S3_LOGGING, "targetBucket", {})),
        )
        for kind in S3
    ),
    *(StackCase("old-data-goes", kind, "no lifecycle", ((S3_LIFECYCLE, "bucket", {}),)) for kind in S3),
    *(
        StackCase("recoverable-objects", kind, "no versioning", ((S3_VERSIONING, "bucket", {}),))
        for kind in S3
    ),
    *(
        StackCase(
            "access-to-data-logged",
            kind,
            "no access log",
            ((S3_LOGGING, "bucket", {}), (S3_LOGGING, "targetBucket", {})),
        )
        for kind in S3
    ),
    StackCase(
        "access-to-data-logged",
        GCS,
        "no access log",
        ((GCS, "logging", {"logging": {"logBucket": "x"}}),),
        fixed={"logging": {"logBucket": "x"}},
    ),
    StackCase(
        "access-to-data-logged",
        AZURE_STORAGE,
        "no diagnostic setting",
        ((AZURE_DIAGNOSTICS[0], "resourceUri", {}), (FLOW, "storageId", {})),
        fixed={"kind": "FileStorage"},
    ),
    StackCase(
        "recoverable-objects",
        AZURE_STORAGE,
        "no settings for blobs",
        ((BLOB_SERVICE, "accountName", {}), (FLOW, "storageId", {})),
        fixed={"kind": "FileStorage"},
    ),
    StackCase(
        "old-data-goes",
        AZURE_STORAGE,
        "no management policy",
        (("azure-native:storage:ManagementPolicy", "accountName", {}),),
        fixed={"kind": "FileStorage"},
    ),
    StackCase(
        "private-way-to-stores",
        AZURE_STORAGE,
        "no private endpoint",
        (
            ("azure-native:network:PrivateEndpoint", "privateLinkServiceConnections", {}),
            (FLOW, "storageId", {}),
        ),
    ),
    StackCase(
        "private-way-to-stores",
        VPC,
        "no endpoint for S3",
        (("aws:ec2/vpcEndpoint:VpcEndpoint", "vpcId", {"serviceName": "com.amazonaws.us-east-2.s3"}),),
    ),
    StackCase(
        "private-way-to-stores",
        GCP_SUBNET,
        "privateIpGoogleAccess",
        ((GKE_NODES, "networkConfig", {}),),
        fixed={"privateIpGoogleAccess": True},
        without=("privateIpGoogleAccess",),
    ),
    StackCase("network-logged", VPC, "no flow log", (("aws:ec2/flowLog:FlowLog", "vpcId", {}),)),
    StackCase("network-logged", VNET, "no flow log", ((FLOW, "targetResourceId", {}),)),
    StackCase(
        "network-logged",
        GCP_SUBNET,
        "logConfig is missing",
        ((GKE_NODES, "networkConfig", {}),),
        fixed={"purpose": "REGIONAL_MANAGED_PROXY"},
        without=("logConfig",),
    ),
    StackCase(
        "no-default-network",
        VPC,
        "default security group",
        (("aws:ec2/defaultSecurityGroup:DefaultSecurityGroup", "vpcId", {}),),
    ),
    StackCase(
        "namespaces-closed",
        NAMESPACE,
        "namespace training has no network policy",
        ((NETWORK_POLICY, "", DENY),),
        {"metadata": {"name": "training"}},
        {"metadata": {"name": "aws-hyperpod"}},
    ),
    StackCase(
        "workload-identity",
        EKS,
        "neither the add-on",
        (
            (EKS_ADDON, "clusterName", {"addonName": "eks-pod-identity-agent"}),
            ("aws:iam/openIdConnectProvider:OpenIdConnectProvider", "", {}),
        ),
    ),
    StackCase("budget-with-alerts", EKS, "no budget", ((AWS_BUDGET, "", {}),)),
    StackCase("budget-with-alerts", GKE, "no budget", ((GCP_BUDGET, "", {}),)),
    StackCase("budget-with-alerts", AKS, "no budget", tuple((kind, "", {}) for kind in AZURE_BUDGETS)),
    StackCase(
        "old-images-go", ECR, "no lifecycle", (("aws:ecr/lifecyclePolicy:LifecyclePolicy", "repository", {}),)
    ),
    StackCase(
        "keys-rotate",
        AZURE_KEY,
        "lifetimeActions",
        ((AKS, "securityProfile", {}),),
        fixed={"properties": EVERY_DAY},
        without=("properties.rotationPolicy",),
    ),
    StackCase(
        "control-plane-logged", AKS, "no diagnostic setting", ((AZURE_DIAGNOSTICS[0], "resourceUri", {}),)
    ),
    StackCase(
        "maintenance-window",
        AKS,
        "no maintenance",
        (("azure-native:containerservice:MaintenanceConfiguration", "resourceName", {}),),
    ),
]
