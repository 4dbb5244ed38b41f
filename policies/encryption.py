"""Encryption: what lies on a disk is encrypted, with keys that the platform owns, that rotate and that cannot
vanish.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainfleet.policies.engine.accessors import (
    all_of,
    at,
    at_least,
    is_true,
    listed,
    missing_companion,
    not_false,
    number,
    numbered,
    one_of,
    present,
    takes_records,
    true,
)
from trainfleet.policies.engine.rule import ADVICE, FROM_STAGING, Json, Resource, Rule, Violation
from trainfleet.policies.gpu import gke_gpu
from trainfleet.policies.resource_types import (
    ACR,
    AKS,
    AKS_NODES,
    AWS_SECRET,
    AZURE_KEY,
    AZURE_LUSTRE,
    AZURE_STORAGE,
    EC2,
    ECR,
    EFS,
    EKS,
    EKS_NODES,
    FILESTORE,
    FSX,
    GCP_DISK,
    GCP_IMAGES,
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
    S3,
    S3_ENCRYPTION,
    STORAGE_CLASS,
    VAULT,
)

DISK_KEYS = {
    "ebs.csi.aws.com": "encrypted",
    "ebs.csi.eks.amazonaws.com": "encrypted",
    "kubernetes.io/aws-ebs": "encrypted",
    "pd.csi.storage.gke.io": "disk-encryption-kms-key",
    "disk.csi.azure.com": "diskEncryptionSetID",
}
"""By driver: the parameter of a storage class that encrypts its volumes, or names the key that does."""
YEAR = 365 * 86400
TWO_WEEKS = 14


def eks_secrets(resource: Resource) -> Iterable[Violation]:
    config = resource.props.get("encryptionConfig")
    if config is None:
        yield Violation("encryptionConfig is missing")
        return
    if "secrets" not in listed(config.get("resources")):
        yield Violation("encryptionConfig.resources does not hold `secrets`")
    if (config.get("provider") or {}).get("keyArn") is None:
        yield Violation("encryptionConfig.provider.keyArn is missing")


def _disk(where: str, disk: Json) -> Iterable[Violation]:
    if not is_true(disk.get("encrypted")):
        yield Violation(f"{where}.encrypted is not true")


def launch_template_disks(resource: Resource) -> Iterable[Violation]:
    """A template that names no disk takes the image's, which is not encrypted unless the account says so."""
    mappings = listed(resource.props.get("blockDeviceMappings"))
    if not mappings:
        yield Violation("blockDeviceMappings is missing, so the root volume is the image's own")
    for index, mapping in enumerate(mappings):
        if (ebs := mapping.get("ebs")) is not None:
            yield from _disk(f"blockDeviceMappings[{index}].ebs", ebs)


def node_group_template(resource: Resource) -> Iterable[Violation]:
    if resource.props.get("launchTemplate") is None:
        yield Violation("launchTemplate is missing, so the root volume is the image's own")


def instance_disks(resource: Resource) -> Iterable[Violation]:
    yield from _disk("rootBlockDevice", resource.props.get("rootBlockDevice") or {})
    for index, disk in enumerate(listed(resource.props.get("ebsBlockDevices"))):
        yield from _disk(f"ebsBlockDevices[{index}]", disk)


def aks_disks(resource: Resource) -> Iterable[Violation]:
    for where, pool in numbered("agentPoolProfiles", resource.props.get("agentPoolProfiles")):
        if not is_true(pool.get("enableEncryptionAtHost")):
            yield Violation(f"{where}.enableEncryptionAtHost is not true")


def storage_class(resource: Resource) -> Iterable[Violation]:
    provisioner = resource.props.get("provisioner")
    parameter = DISK_KEYS.get(str(provisioner)) if provisioner is not None else None
    if parameter is None:
        return
    value = (resource.props.get("parameters") or {}).get(parameter)
    if parameter == "encrypted" and not is_true(value):
        yield Violation("parameters.encrypted is not `true`")
    if value is None and parameter != "encrypted":
        yield Violation(
            f"parameters.{parameter} is missing: the key would be the provider's and not the platform's"
        )


def s3_key(resource: Resource) -> Iterable[Violation]:
    for where, rule in numbered("rules", resource.props.get("rules")):
        algorithm = at(rule, "applyServerSideEncryptionByDefault.sseAlgorithm")
        if algorithm not in ("aws:kms", "aws:kms:dsse", "AES256"):
            yield Violation(f"{where}.applyServerSideEncryptionByDefault.sseAlgorithm is missing")
        elif algorithm != "AES256" and at(rule, "applyServerSideEncryptionByDefault.kmsMasterKeyId") is None:
            yield Violation(
                f"{where}.applyServerSideEncryptionByDefault.kmsMasterKeyId is missing: the key would be the provider's"
            )
    if not listed(resource.props.get("rules")):
        yield Violation("rules is empty")


def _with_a_key(resource: Resource) -> bool:
    rules = listed(resource.props.get("rules"))
    return any(
        str(at(rule, "applyServerSideEncryptionByDefault.sseAlgorithm")).startswith("aws:kms")
        for rule in rules
    )


def ecr_key(resource: Resource) -> Iterable[Violation]:
    found = [
        each
        for _, each in numbered("encryptionConfigurations", resource.props.get("encryptionConfigurations"))
    ]
    if not any(
        str(each.get("encryptionType")).startswith("KMS") and each.get("kmsKey") is not None for each in found
    ):
        yield Violation("encryptionConfigurations has no `KMS` with a kmsKey")


def gcp_secret_key(resource: Resource) -> Iterable[Violation]:
    replication = resource.props.get("replication") or {}
    auto = replication.get("auto")
    if auto is not None:
        if at(auto, "customerManagedEncryption.kmsKeyName") is None:
            yield Violation("replication.auto.customerManagedEncryption.kmsKeyName is missing")
        return
    replicas = list(numbered("replication.userManaged.replicas", at(replication, "userManaged.replicas")))
    if not replicas:
        yield Violation("replication is missing")
    for where, replica in replicas:
        if at(replica, "customerManagedEncryption.kmsKeyName") is None:
            yield Violation(f"{where}.customerManagedEncryption.kmsKeyName is missing")


def gcp_rotation(resource: Resource) -> Iterable[Violation]:
    if str(resource.props.get("purpose") or "ENCRYPT_DECRYPT") != "ENCRYPT_DECRYPT":
        return
    period = number(resource.props.get("rotationPeriod"))
    if period is None or period > YEAR:
        yield Violation("rotationPeriod is not a year or less")


def aws_rotation(resource: Resource) -> Iterable[Violation]:
    """Only symmetric keys that encrypt can be rotated."""
    if str(resource.props.get("keyUsage") or "ENCRYPT_DECRYPT") != "ENCRYPT_DECRYPT":
        return
    if str(
        resource.props.get("customerMasterKeySpec") or "SYMMETRIC_DEFAULT"
    ) == "SYMMETRIC_DEFAULT" and not is_true(resource.props.get("enableKeyRotation")):
        yield Violation("enableKeyRotation is not true")


def fixed_keys(resources: Sequence[Resource]) -> Iterable[Violation]:
    """Azure's keys but those of a cluster: AKS encrypts secrets with one named version, and a new one is an
    upgrade of the cluster.
    """
    named = {urn for one in resources if one.kind == AKS for urn in one.depends.get("securityProfile", ())}
    for key in resources:
        if (
            key.kind == AZURE_KEY
            and key.urn not in named
            and not at(key.props, "properties.rotationPolicy.lifetimeActions")
        ):
            yield Violation("properties.rotationPolicy.lifetimeActions is missing", key.urn, key.name)


def secure_boot(resource: Resource) -> Iterable[Violation]:
    """Not on GPU nodes: it refuses kernel modules that Google did not sign, the GPU driver's among them."""
    if not gke_gpu(resource) and not is_true(
        at(resource.props, "nodeConfig.shieldedInstanceConfig.enableSecureBoot")
    ):
        yield Violation("nodeConfig.shieldedInstanceConfig.enableSecureBoot is not true")


SECRETS_ENCRYPTED = Rule(
    name="secrets-encrypted",
    statement="Kubernetes secrets are encrypted with a key that the platform owns.",
    reason="Without it a copy of the control plane's store is a copy of every secret, and nobody but the cloud can lock it.",
    fix="give the cluster an encryption configuration for secrets with a key of the platform",
    references=(
        "CIS EKS 5.3.1",
        "CKV_AWS_58",
        "AWS-0039",
        "CIS GKE 5.3.1",
        "AKS baseline: KMS etcd encryption",
    ),
    severity="critical",
    checks={
        EKS: eks_secrets,
        GKE: all_of(
            one_of("databaseEncryption.state", ("ENCRYPTED", "ALL_OBJECTS_ENCRYPTION_ENABLED")),
            present("databaseEncryption.keyName"),
        ),
        AKS: all_of(
            true("securityProfile.azureKeyVaultKms.enabled"),
            present("securityProfile.azureKeyVaultKms.keyId"),
        ),
    },
)
ENCRYPTED_VOLUMES = Rule(
    name="encrypted-volumes",
    statement="Every disk, filesystem and storage class is encrypted, with a key of the platform where the cloud takes one.",
    reason="Disks are copied, kept as snapshots and thrown away; only the key decides who can read them afterwards.",
    fix="set encrypted: true (AWS), the disk's KMS key (GCP) or encryption at host (Azure) on the disk, filesystem or storage class",
    references=(
        "CIS AWS 2.2.1",
        "CKV_AWS_3",
        "CKV_AWS_8",
        "CKV_AWS_190",
        "AWS-0026",
        "AWS-0131",
        "CIS GKE 5.9.1",
        "CKV_AZURE_227",
        "CKV_AZURE_117",
        "AZU-0067",
    ),
    severity="critical",
    checks={
        LAUNCH_TEMPLATE: launch_template_disks,
        EC2: instance_disks,
        EKS_NODES: node_group_template,
        "aws:ebs/volume:Volume": true("encrypted"),
        EFS: true("encrypted"),
        FSX: present("kmsKeyId", "the key would be the provider's and not the platform's"),
        GKE_NODES: present(
            "nodeConfig.bootDiskKmsKey", "the key would be the provider's and not the platform's"
        ),
        GCP_DISK: present(
            "diskEncryptionKey.kmsKeySelfLink", "the key would be the provider's and not the platform's"
        ),
        AKS: aks_disks,
        AKS_NODES: true("enableEncryptionAtHost"),
        STORAGE_CLASS: storage_class,
    },
)
OWN_KEY_FILES = Rule(
    name="own-key-for-shared-files",
    statement="A shared filesystem is encrypted with a key that the platform owns.",
    reason="Data sets and checkpoints lie there; with the platform's own key they can be locked in one place.",
    fix="name the platform's key on the filesystem",
    references=(
        "CKV_AWS_190",
        "Filestore: customer-managed encryption keys",
        "Azure Managed Lustre: customer-managed keys",
    ),
    severity="medium",
    levels=FROM_STAGING,
    checks={
        EFS: present("kmsKeyId"),
        FILESTORE: present("kmsKeyName"),
        GCP_LUSTRE: present("kmsKey"),
        AZURE_LUSTRE: present("encryptionSettings.keyEncryptionKey.keyUrl"),
    },
)
OWN_KEY_BUCKET = Rule(
    name="own-key-for-buckets",
    statement="A bucket is encrypted with a key that the platform owns, unless it only takes access logs.",
    reason="Who may use the key decides who may read, also when a bucket's own rules are wrong.",
    fix="name the platform's key as the bucket's default key",
    references=("CKV_AWS_145", "AWS-0132", "GCP-0066", "CKV2_AZURE_1", "AZU-0060"),
    severity="medium",
    levels=FROM_STAGING,
    checks={
        S3_ENCRYPTION: s3_key,
        GCS: present("encryption.defaultKmsKeyName"),
        AZURE_STORAGE: all_of(
            one_of("encryption.keySource", ("Microsoft.Keyvault",)),
            present("encryption.keyVaultProperties.keyName"),
        ),
    },
    stack=dict.fromkeys(
        S3,
        missing_companion(
            S3,
            (S3_ENCRYPTION,),
            "bucket",
            "the bucket has no default encryption with a KMS key",
            counts=_with_a_key,
            spared=takes_records,
        ),
    ),
)
OWN_KEY_SECRETS = Rule(
    name="own-key-for-secrets",
    statement="The cloud's secret store encrypts the platform's secrets with the platform's own key.",
    reason="A right to read secrets that was given too widely stays without effect while the key is closed.",
    fix="name the platform's key on the secret; a key vault keeps its keys in hardware with the premium tier",
    references=("CKV_AWS_149", "AWS-0098", "Secret Manager: customer-managed encryption keys"),
    severity="medium",
    levels=FROM_STAGING,
    checks={AWS_SECRET: present("kmsKeyId"), GCP_SECRET: gcp_secret_key},
)
OWN_KEY_IMAGES = Rule(
    name="own-key-for-images",
    statement="Training images are encrypted with a key that the platform owns.",
    reason="Images hold code and sometimes weights; the same key closes them together with the data.",
    fix="name the platform's key on the repository; in Azure the registry must be Premium",
    references=("CKV_AWS_136", "AWS-0033", "CKV_GCP_84", "ACR: customer-managed keys"),
    severity="low",
    levels=ADVICE,
    checks={ECR: ecr_key, GCP_IMAGES: present("kmsKeyName"), ACR: one_of("encryption.status", ("enabled",))},
)
OWN_KEY_LOGS = Rule(
    name="own-key-for-logs",
    statement="Logs are encrypted with a key that the platform owns, where the cloud lets a log store have one.",
    reason="Logs say who did what and often hold what should not be in them.",
    fix="name the platform's key on the log store",
    references=("CKV_AWS_158", "AWS-0017", "Cloud Logging: CMEK for log buckets"),
    severity="low",
    levels=FROM_STAGING,
    checks={LOG_GROUP: present("kmsKeyId"), GCP_LOGS: present("cmekSettings.kmsKeyName")},
)
KEYS_ROTATE = Rule(
    name="keys-rotate",
    statement="Every encryption key is rotated by itself, once a year or more often.",
    reason="A key that is never changed makes one leak a leak of everything, past and to come.",
    fix="turn the key's automatic rotation on",
    references=("CIS AWS 3.6", "CKV_AWS_7", "AWS-0065", "CKV_GCP_43", "Azure Key Vault: key autorotation"),
    severity="high",
    checks={KMS_KEY: aws_rotation, GCP_KEY: gcp_rotation},
    stack={AZURE_KEY: fixed_keys},
)
KEYS_STAY = Rule(
    name="keys-cannot-vanish",
    statement="A deleted key can be brought back for two weeks at least.",
    reason="What a lost key encrypted is lost with it; two weeks are the time in which somebody notices.",
    fix="lengthen the key's deletion window, and turn purge protection on in a key vault",
    references=("CKV_GCP_82", "CKV_AZURE_110", "CKV_AZURE_42", "AZU-0016", "AWS KMS: deleting keys"),
    severity="high",
    levels=FROM_STAGING,
    checks={
        KMS_KEY: at_least("deletionWindowInDays", TWO_WEEKS, absent=30),
        GCP_KEY: at_least("destroyScheduledDuration", TWO_WEEKS * 86400, absent=30 * 86400),
        VAULT: all_of(
            true("properties.enablePurgeProtection"),
            not_false("properties.enableSoftDelete"),
            at_least("properties.softDeleteRetentionInDays", TWO_WEEKS, absent=90),
        ),
    },
)
VERIFIED_BOOT = Rule(
    name="verified-boot",
    statement="A node's boot chain is measured, and nothing unsigned is loaded.",
    reason="A root kit that survives a restart is invisible to everything that runs above it.",
    fix="turn shielded nodes, secure boot and integrity monitoring on",
    references=("CKV_GCP_68", "CKV_GCP_71", "CKV_GCP_72", "GCP-0055", "CIS GKE 5.5.5 to 5.5.7"),
    severity="medium",
    levels=FROM_STAGING,
    checks={
        GKE: not_false("enableShieldedNodes"),
        GKE_NODES: all_of(
            secure_boot, not_false("nodeConfig.shieldedInstanceConfig.enableIntegrityMonitoring")
        ),
    },
)
RULES = (
    SECRETS_ENCRYPTED,
    ENCRYPTED_VOLUMES,
    OWN_KEY_FILES,
    OWN_KEY_BUCKET,
    OWN_KEY_SECRETS,
    OWN_KEY_IMAGES,
    OWN_KEY_LOGS,
    KEYS_ROTATE,
    KEYS_STAY,
    VERIFIED_BOOT,
)
