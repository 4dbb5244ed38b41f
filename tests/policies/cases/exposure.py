"""Exposure and encryption, broken."""

from __future__ import annotations

import json
from typing import Any

from tests.policies.cases.table import REMOVED, Case
from trainfleet.policies.resource_types import (
    ACR,
    AKS,
    AKS_NODES,
    AWS_SECRET,
    AWS_SUBNET,
    AZURE_LUSTRE,
    AZURE_STORAGE,
    BLOB_CONTAINER,
    EC2,
    ECR,
    EFS,
    EKS,
    EKS_NODES,
    FILESTORE,
    FSX,
    GCP_DISK,
    GCP_FIREWALL,
    GCP_IMAGES,
    GCP_INSTANCE,
    GCP_KEY,
    GCP_LOGS,
    GCP_LUSTRE,
    GCP_SECRET,
    GCS,
    GKE,
    GKE_NODES,
    KMS_KEY,
    LAUNCH_TEMPLATE,
    LOG_GROUP,
    NSG,
    NSG_RULE,
    S3,
    S3_BLOCK,
    S3_ENCRYPTION,
    S3_POLICY,
    SERVICE,
    STORAGE_CLASS,
    VAULT,
)
from trainfleet.policies.store_access import BLOCKS

DENY_HTTP: dict[str, Any] = {
    "Effect": "Deny",
    "Principal": "*",
    "Action": "s3:*",
    "Resource": ["arn:aws:s3:::b", "arn:aws:s3:::b/*"],
    "Condition": {"Bool": {"aws:SecureTransport": "false"}},
}


def document(*statements: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


PUBLIC = {"vpcConfig.endpointPublicAccess": True}
CONTROL_PLANE = [
    Case("no-open-control-plane", EKS, {"vpcConfig": REMOVED}, "publicAccessCidrs"),
    Case(
        "no-open-control-plane",
        EKS,
        {**PUBLIC, "vpcConfig.publicAccessCidrs": REMOVED},
        "publicAccessCidrs does not restrict",
    ),
    Case(
        "no-open-control-plane",
        EKS,
        {**PUBLIC, "vpcConfig.publicAccessCidrs": ["10.0.0.0/8", "0.0.0.0/0"]},
        "includes 0.0.0.0/0",
    ),
    Case("no-open-control-plane", EKS, {**PUBLIC, "vpcConfig.publicAccessCidrs": ["::/0"]}, "::/0"),
    Case(
        "no-open-control-plane",
        GKE,
        {"privateClusterConfig.enablePrivateEndpoint": False, "masterAuthorizedNetworksConfig": REMOVED},
        "masterAuthorizedNetworksConfig is missing",
    ),
    Case(
        "no-open-control-plane",
        GKE,
        {
            "privateClusterConfig.enablePrivateEndpoint": False,
            "masterAuthorizedNetworksConfig": {"cidrBlocks": [{"cidrBlock": "0.0.0.0/0"}]},
        },
        "0.0.0.0/0",
    ),
    Case(
        "no-open-control-plane",
        GKE,
        {
            "privateClusterConfig.enablePrivateEndpoint": False,
            "masterAuthorizedNetworksConfig": {"gcpPublicCidrsAccessEnabled": True},
        },
        "gcpPublicCidrsAccessEnabled",
    ),
    Case("no-open-control-plane", AKS, {"apiServerAccessProfile": REMOVED}, "authorizedIPRanges"),
    Case(
        "no-open-control-plane",
        AKS,
        {"apiServerAccessProfile": {"enablePrivateCluster": False, "authorizedIPRanges": ["0.0.0.0/0"]}},
        "includes 0.0.0.0/0",
    ),
]
BUCKETS = [
    *(Case("no-public-bucket", kind, {"acl": "public-read"}, "acl is public-read") for kind in S3),
    Case("no-public-bucket", "aws:s3/bucketAcl:BucketAcl", {"acl": "public-read-write"}, "public-read-write"),
    Case(
        "no-public-bucket",
        "aws:s3/bucketAcl:BucketAcl",
        {
            "accessControlPolicy": {
                "grants": [
                    {
                        "permission": "READ",
                        "grantee": {"uri": "http://acs.amazonaws.com/groups/global/AllUsers"},
                    }
                ]
            }
        },
        "AllUsers",
    ),
    *(
        Case("no-public-bucket", S3_BLOCK, {flag: value}, flag)
        for flag in BLOCKS
        for value in (False, REMOVED)
    ),
    Case("no-public-bucket", GCS, {"publicAccessPrevention": "inherited"}, "publicAccessPrevention"),
    Case("no-public-bucket", GCS, {"publicAccessPrevention": REMOVED}, "missing"),
    Case(
        "no-public-bucket",
        "gcp:storage/bucketAccessControl:BucketAccessControl",
        {"entity": "allUsers"},
        "entity is allUsers",
    ),
    Case("no-public-bucket", AZURE_STORAGE, {"allowBlobPublicAccess": True}, "allowBlobPublicAccess"),
    Case("no-public-bucket", AZURE_STORAGE, {"allowBlobPublicAccess": REMOVED}, "allowBlobPublicAccess"),
    Case("no-public-bucket", BLOB_CONTAINER, {"publicAccess": "Blob"}, "publicAccess is `Blob`"),
    Case("one-way-into-buckets", GCS, {"uniformBucketLevelAccess": False}, "uniformBucketLevelAccess"),
    Case(
        "one-way-into-buckets",
        "aws:s3/bucketOwnershipControls:BucketOwnershipControls",
        {"rule.objectOwnership": "ObjectWriter"},
        "ObjectWriter",
    ),
    *(
        Case("tls-only-bucket", S3_POLICY, {"policy": text}, "SecureTransport")
        for text in (
            document({**DENY_HTTP, "Effect": "Allow"}),
            document({**DENY_HTTP, "Principal": {"AWS": "arn:aws:iam::111122223333:root"}}),
            document({**DENY_HTTP, "Action": "s3:GetObject"}),
            document({**DENY_HTTP, "Condition": {}}),
            "not JSON",
        )
    ),
    Case("tls-only-bucket", AZURE_STORAGE, {"enableHttpsTrafficOnly": False}, "enableHttpsTrafficOnly"),
    Case("tls-only-bucket", AZURE_STORAGE, {"minimumTlsVersion": "TLS1_0"}, "minimumTlsVersion"),
    Case("tls-only-bucket", AZURE_STORAGE, {"minimumTlsVersion": REMOVED}, "minimumTlsVersion"),
]
PORTS = [
    Case(
        "no-open-ingress",
        "aws:ec2/securityGroup:SecurityGroup",
        {"ingress": [{"cidrBlocks": ["0.0.0.0/0"], "protocol": "tcp"}]},
        "ingress[0]",
    ),
    Case(
        "no-open-ingress",
        "aws:ec2/securityGroup:SecurityGroup",
        {"ingress": [{"ipv6CidrBlocks": ["::/0"], "protocol": "tcp"}]},
        "::/0",
    ),
    Case(
        "no-open-ingress",
        "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule",
        {"cidrIpv4": "0.0.0.0/0"},
        "cidrIpv4",
    ),
    Case(
        "no-open-ingress",
        "aws:ec2/securityGroupRule:SecurityGroupRule",
        {"cidrBlocks": ["0.0.0.0/0"]},
        "0.0.0.0/0",
    ),
    Case("no-open-ingress", GCP_FIREWALL, {"sourceRanges": ["0.0.0.0/0"]}, "0.0.0.0/0"),
    Case("no-open-ingress", GCP_FIREWALL, {"sourceRanges": REMOVED}, "sourceRanges is missing"),
    Case(
        "no-open-ingress",
        NSG,
        {"securityRules.0.sourceAddressPrefix": "Internet"},
        "securityRules[0].sourceAddressPrefix allows traffic from Internet",
    ),
    Case("no-open-ingress", NSG_RULE, {"sourceAddressPrefix": "*"}, "allows traffic from *"),
    Case(
        "no-open-ingress",
        NSG_RULE,
        {"sourceAddressPrefix": REMOVED, "sourceAddressPrefixes": ["0.0.0.0/0"]},
        "0.0.0.0/0",
    ),
]
ADDRESSES = [
    Case("no-public-node", AWS_SUBNET, {"mapPublicIpOnLaunch": True}, "mapPublicIpOnLaunch"),
    Case(
        "no-public-node",
        LAUNCH_TEMPLATE,
        {"networkInterfaces": [{"associatePublicIpAddress": "true"}]},
        "networkInterfaces[0]",
    ),
    Case("no-public-node", EC2, {"associatePublicIpAddress": True}, "associatePublicIpAddress"),
    Case("no-public-node", GKE, {"privateClusterConfig.enablePrivateNodes": False}, "enablePrivateNodes"),
    Case("no-public-node", GKE, {"privateClusterConfig": REMOVED}, "enablePrivateNodes"),
    Case("no-public-node", GKE_NODES, {"networkConfig.enablePrivateNodes": False}, "enablePrivateNodes"),
    Case(
        "no-public-node",
        GCP_INSTANCE,
        {"networkInterfaces.0.accessConfigs": [{}]},
        "networkInterfaces[0].accessConfigs",
    ),
    Case("no-public-node", AKS, {"agentPoolProfiles.0.enableNodePublicIP": True}, "agentPoolProfiles[0]"),
    Case("no-public-node", AKS_NODES, {"enableNodePublicIP": True}, "enableNodePublicIP"),
    Case("no-ssh-to-nodes", EKS_NODES, {"remoteAccess": {"ec2SshKey": "k"}}, "ec2SshKey"),
    Case("no-ssh-to-nodes", LAUNCH_TEMPLATE, {"keyName": "k"}, "keyName"),
    Case("no-ssh-to-nodes", GKE_NODES, {"nodeConfig.metadata": {"ssh-keys": "me:ssh-rsa A"}}, "ssh-keys"),
    Case(
        "no-ssh-to-nodes",
        AKS,
        {
            "linuxProfile": {
                "adminUsername": "me",
                "ssh": {"publicKeys": [{"keyData": "ssh-rsa AAAAB3NzaC1yc2E= me"}]},
            }
        },
        "linuxProfile.ssh",
    ),
    *(
        Case(
            "closed-stores",
            kind,
            {"publicNetworkAccess": "Enabled", "networkRuleSet.defaultAction": "Allow"},
            "publicNetworkAccess",
        )
        for kind in (AZURE_STORAGE, ACR)
    ),
    Case(
        "closed-stores",
        VAULT,
        {"properties.publicNetworkAccess": REMOVED, "properties.networkAcls": REMOVED},
        "properties.networkAcls.defaultAction",
    ),
    Case("no-public-service", SERVICE, {"spec.type": "LoadBalancer"}, "LoadBalancer"),
    Case(
        "no-public-service",
        SERVICE,
        {"spec.type": "LoadBalancer", "spec.loadBalancerSourceRanges": ["0.0.0.0/0"]},
        "LoadBalancer",
    ),
    Case("no-public-service", SERVICE, {"spec.type": "NodePort"}, "NodePort"),
]
DISKS = [
    Case("secrets-encrypted", EKS, {"encryptionConfig": REMOVED}, "encryptionConfig is missing"),
    Case("secrets-encrypted", EKS, {"encryptionConfig.resources": []}, "secrets"),
    Case("secrets-encrypted", EKS, {"encryptionConfig.provider": {}}, "keyArn"),
    Case("secrets-encrypted", GKE, {"databaseEncryption": REMOVED}, "databaseEncryption.state"),
    Case("secrets-encrypted", GKE, {"databaseEncryption.state": "DECRYPTED"}, "DECRYPTED"),
    Case("secrets-encrypted", AKS, {"securityProfile.azureKeyVaultKms": REMOVED}, "azureKeyVaultKms.enabled"),
    Case("secrets-encrypted", AKS, {"securityProfile.azureKeyVaultKms.keyId": REMOVED}, "keyId"),
    Case("encrypted-volumes", LAUNCH_TEMPLATE, {"blockDeviceMappings": REMOVED}, "blockDeviceMappings"),
    Case(
        "encrypted-volumes",
        LAUNCH_TEMPLATE,
        {"blockDeviceMappings.0.ebs.encrypted": "false"},
        "[0].ebs.encrypted",
    ),
    Case("encrypted-volumes", EC2, {"rootBlockDevice": REMOVED}, "rootBlockDevice"),
    Case("encrypted-volumes", EC2, {"ebsBlockDevices": [{"encrypted": False}]}, "ebsBlockDevices[0]"),
    Case("encrypted-volumes", EKS_NODES, {"launchTemplate": REMOVED}, "launchTemplate"),
    Case("encrypted-volumes", "aws:ebs/volume:Volume", {"encrypted": REMOVED}, "encrypted"),
    Case("encrypted-volumes", EFS, {"encrypted": False}, "encrypted"),
    Case("encrypted-volumes", FSX, {"kmsKeyId": REMOVED}, "kmsKeyId"),
    Case("encrypted-volumes", GKE_NODES, {"nodeConfig.bootDiskKmsKey": REMOVED}, "bootDiskKmsKey"),
    Case("encrypted-volumes", GCP_DISK, {"diskEncryptionKey": REMOVED}, "kmsKeySelfLink"),
    Case(
        "encrypted-volumes",
        AKS,
        {"agentPoolProfiles.0.enableEncryptionAtHost": False},
        "agentPoolProfiles[0].enableEncryptionAtHost",
    ),
    Case("encrypted-volumes", AKS_NODES, {"enableEncryptionAtHost": REMOVED}, "enableEncryptionAtHost"),
    Case(
        "encrypted-volumes",
        STORAGE_CLASS,
        {"provisioner": "ebs.csi.aws.com", "parameters": {"type": "gp3"}},
        "parameters.encrypted",
    ),
    Case(
        "encrypted-volumes",
        STORAGE_CLASS,
        {"provisioner": "pd.csi.storage.gke.io", "parameters": REMOVED},
        "disk-encryption-kms-key",
    ),
    Case(
        "encrypted-volumes",
        STORAGE_CLASS,
        {"provisioner": "disk.csi.azure.com", "parameters": {"skuName": "x"}},
        "diskEncryptionSetID",
    ),
]
KEYS = [
    Case("own-key-for-shared-files", EFS, {"kmsKeyId": REMOVED}, "kmsKeyId"),
    Case("own-key-for-shared-files", FILESTORE, {"kmsKeyName": REMOVED}, "kmsKeyName"),
    Case("own-key-for-shared-files", GCP_LUSTRE, {"kmsKey": REMOVED}, "kmsKey"),
    Case("own-key-for-shared-files", AZURE_LUSTRE, {"encryptionSettings": REMOVED}, "keyUrl"),
    Case("own-key-for-buckets", S3_ENCRYPTION, {"rules": []}, "rules is empty"),
    Case(
        "own-key-for-buckets",
        S3_ENCRYPTION,
        {"rules": [{"applyServerSideEncryptionByDefault": {"sseAlgorithm": "aws:kms"}}]},
        "kmsMasterKeyId",
    ),
    Case("own-key-for-buckets", GCS, {"encryption": REMOVED}, "defaultKmsKeyName"),
    Case("own-key-for-buckets", AZURE_STORAGE, {"encryption.keySource": "Microsoft.Storage"}, "keySource"),
    Case("own-key-for-secrets", AWS_SECRET, {"kmsKeyId": REMOVED}, "kmsKeyId"),
    Case("own-key-for-secrets", GCP_SECRET, {"replication": {"auto": {}}}, "replication.auto"),
    Case(
        "own-key-for-secrets",
        GCP_SECRET,
        {"replication.userManaged.replicas.0.customerManagedEncryption": REMOVED},
        "replicas[0]",
    ),
    Case(
        "own-key-for-images",
        ECR,
        {"encryptionConfigurations": [{"encryptionType": "AES256"}]},
        "encryptionConfigurations",
    ),
    Case("own-key-for-images", GCP_IMAGES, {"kmsKeyName": REMOVED}, "kmsKeyName"),
    Case("own-key-for-images", ACR, {"encryption": REMOVED}, "encryption.status"),
    Case("own-key-for-logs", LOG_GROUP, {"kmsKeyId": REMOVED}, "kmsKeyId"),
    Case("own-key-for-logs", GCP_LOGS, {"cmekSettings": REMOVED}, "kmsKeyName"),
    Case("keys-rotate", KMS_KEY, {"enableKeyRotation": False}, "enableKeyRotation"),
    Case("keys-rotate", GCP_KEY, {"rotationPeriod": REMOVED}, "rotationPeriod"),
    Case("keys-rotate", GCP_KEY, {"rotationPeriod": "63072000s"}, "more than a year"),
    Case("keys-cannot-vanish", KMS_KEY, {"deletionWindowInDays": 7}, "deletionWindowInDays is `7`"),
    Case("keys-cannot-vanish", GCP_KEY, {"destroyScheduledDuration": "86400s"}, "destroyScheduledDuration"),
    Case("keys-cannot-vanish", VAULT, {"properties.enablePurgeProtection": REMOVED}, "enablePurgeProtection"),
    Case("keys-cannot-vanish", VAULT, {"properties.enableSoftDelete": False}, "enableSoftDelete"),
    Case(
        "keys-cannot-vanish",
        VAULT,
        {"properties.softDeleteRetentionInDays": 7},
        "softDeleteRetentionInDays is `7`",
    ),
    Case("verified-boot", GKE, {"enableShieldedNodes": False}, "enableShieldedNodes"),
    Case(
        "verified-boot",
        GKE_NODES,
        {"nodeConfig.shieldedInstanceConfig.enableSecureBoot": False},
        "enableSecureBoot",
    ),
    Case(
        "verified-boot",
        f"{GKE_NODES}#gpu",
        {"nodeConfig.shieldedInstanceConfig.enableIntegrityMonitoring": False},
        "enableIntegrityMonitoring",
    ),
]
CASES = [*CONTROL_PLANE, *BUCKETS, *PORTS, *ADDRESSES, *DISKS, *KEYS]
