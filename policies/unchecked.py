"""Why a rule that is about clouds checks nothing on one of them."""

from __future__ import annotations

from collections.abc import Mapping

UNCHECKED: Mapping[str, Mapping[str, str]] = {
    "logs-expire": {
        "azure": "a workspace always has a retention period, 30 days by default",
    },
    "verified-boot": {
        "aws": (
            "a node group has no such setting, and UEFI Secure Boot is not enabled on the standard AL2023"
            " images (AL2023 user guide)"
        ),
        "azure": (
            "with trusted launch AKS nodes load only signed drivers, and the GPU driver that AKS installs"
            " is not signed (AKS: confidential GPUs)"
        ),
    },
    "own-key-for-secrets": {
        "azure": (
            "there is no setting: a key vault encrypts its secrets with keys in Microsoft's hardware modules"
        ),
    },
    "own-key-for-logs": {
        "azure": (
            "a workspace needs a dedicated cluster with a daily commitment for it (Azure Monitor: "
            "customer-managed keys)"
        ),
    },
    "pools-are-separate": {
        "aws": "a node group is always a resource of its own",
    },
    "gpu-fast-network": {
        "aws": "GPU machines have no interface but ENA and EFA",
        "azure": "AKS uses accelerated networking where the size supports it",
    },
    "flex-nodes-end": {
        "aws": "there is no flex-start; a capacity block ends by itself",
        "azure": "there is no flex-start",
    },
    "services-act-for-a-named-account": {
        "gcp": "a service agent belongs to one project",
        "azure": "a service acts as a managed identity, which belongs to one subscription",
    },
    "imdsv2": {
        "gcp": "the metadata server always requires the header Metadata-Flavor",
        "azure": ("the metadata service always requires the header Metadata, and rejects forwarded requests"),
    },
    "pods-not-as-node": {
        "azure": (
            "closing the metadata service to pods is a preview (podLinkLocalAccess); the layer's network "
            "policies close it"
        ),
    },
    "own-node-identity": {
        "aws": "a node group requires a role; there is no default one",
    },
    "no-default-network": {
        "azure": "a subscription has no default network",
    },
    "guarded-subnets": {
        "aws": "security groups belong to network interfaces, see `no-default-network`",
        "gcp": "firewall rules belong to the network, which denies inbound traffic by default",
    },
    "pods-have-addresses": {
        "aws": "the VPC CNI has no other mode",
    },
    "known-way-out": {
        "aws": "a machine without a public address has no other egress, see `no-public-node`",
        "gcp": "a machine without a public address has no other egress, see `no-public-node`",
    },
    "nodes-repaired": {
        "azure": "AKS repairs the nodes of every cluster; there is no setting (AKS: node auto-repair)",
    },
    "control-plane-with-agreement": {
        "aws": "every EKS cluster has one",
        "gcp": "every GKE cluster has one",
    },
    "immutable-images": {
        "azure": ("the registry has no such setting; a tag is locked when it is pushed (ACR: lock an image)"),
    },
    "images-scanned": {
        "azure": "Microsoft Defender for Containers scans them, a setting of the subscription",
    },
    "one-way-into-buckets": {
        "azure": (
            "there is no switch: access lists count only for identities without a role (Data Lake "
            "Storage: access control)"
        ),
    },
    "tls-only-bucket": {
        "gcp": (
            "there is no switch: Cloud Storage takes credentials only over TLS, and `no-public-bucket` "
            "leaves no anonymous access"
        ),
    },
    "closed-stores": {
        "aws": (
            "S3, ECR and Secrets Manager have no network switch, and a policy that denies by VPC also "
            "shuts out FSx, log delivery and launchers; `no-public-bucket`, `no-anonymous-access` and "
            "credentials that expire limit who reads"
        ),
        "gcp": (
            "VPC Service Controls do this, and belong to the organization, not to a platform (Access "
            "Context Manager)"
        ),
    },
}
"""Name of a rule to its clouds without a check, with the reason."""
