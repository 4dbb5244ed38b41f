"""Rules on encryption keys that the platform owns, part of the encryption theme."""

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
    stores_only_logs,
    true,
)
from trainfleet.policies.engine.rule import ADVICE, FROM_STAGING, Resource, Rule, Violation
from trainfleet.policies.resource_types import (
    ACR,
    AKS,
    AWS_SECRET,
    AZURE_KEY,
    AZURE_LUSTRE,
    AZURE_STORAGE,
    ECR,
    EFS,
    FILESTORE,
    GCP_IMAGES,
    GCP_KEY,
    GCP_LOGS,
    GCP_LUSTRE,
    GCP_SECRET,
    GCS,
    KMS_KEY,
    LOG_GROUP,
    S3,
    S3_ENCRYPTION,
    VAULT,
)

YEAR = 365 * 86400


TWO_WEEKS = 14


def s3_key(resource: Resource) -> Iterable[Violation]:
    for where, rule in numbered("rules", resource.props.get("rules")):
        algorithm = at(rule, "applyServerSideEncryptionByDefault.sseAlgorithm")
        if algorithm not in ("aws:kms", "aws:kms:dsse", "AES256"):
            yield Violation(f"{where}.applyServerSideEncryptionByDefault.sseAlgorithm is missing")
        elif algorithm != "AES256" and at(rule, "applyServerSideEncryptionByDefault.kmsMasterKeyId") is None:
            yield Violation(
                f"{where}.applyServerSideEncryptionByDefault.kmsMasterKeyId is missing: "
                "the cloud provider's key would be used"
            )
    if not listed(resource.props.get("rules")):
        yield Violation("rules is empty")


def _uses_kms(resource: Resource) -> bool:
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
        yield Violation("encryptionConfigurations has no `KMS` entry with a kmsKey")


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
        yield Violation("rotationPeriod is missing or more than a year")


def aws_rotation(resource: Resource) -> Iterable[Violation]:
    """Only symmetric encryption keys support rotation."""
    if str(resource.props.get("keyUsage") or "ENCRYPT_DECRYPT") != "ENCRYPT_DECRYPT":
        return
    if str(
        resource.props.get("customerMasterKeySpec") or "SYMMETRIC_DEFAULT"
    ) == "SYMMETRIC_DEFAULT" and not is_true(resource.props.get("enableKeyRotation")):
        yield Violation("enableKeyRotation is not true")


def unrotated_keys(resources: Sequence[Resource]) -> Iterable[Violation]:
    """Report Azure keys without rotation, except the key of a cluster.

    AKS encrypts secrets with one named key version; a new version requires a cluster upgrade.
    """
    named = {urn for one in resources if one.kind == AKS for urn in one.depends.get("securityProfile", ())}
    for key in resources:
        if (
            key.kind == AZURE_KEY
            and key.urn not in named
            and not at(key.props, "properties.rotationPolicy.lifetimeActions")
        ):
            yield Violation("properties.rotationPolicy.lifetimeActions is missing", key.urn, key.name)


OWN_KEY_FILES = Rule(
    name="own-key-for-shared-files",
    statement="A shared filesystem is encrypted with a key that the platform owns.",
    reason=(
        "Data sets and checkpoints are stored there; with one platform key, access can be revoked in one "
        "place."
    ),
    fix="set the platform's key on the filesystem",
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
    statement="A bucket is encrypted with a key that the platform owns, unless it stores only access logs.",
    reason="Access to the key limits who can read the data, even if the bucket's own policy is wrong.",
    fix="set the platform's key as the bucket's default key",
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
            counts=_uses_kms,
            exempt=stores_only_logs,
        ),
    ),
)


OWN_KEY_SECRETS = Rule(
    name="own-key-for-secrets",
    statement="The cloud's secret store encrypts the platform's secrets with a key that the platform owns.",
    reason="An overly broad permission to read secrets has no effect without access to the key.",
    fix=(
        "set the platform's key on the secret; in Azure the premium tier of a key vault keeps its keys in "
        "hardware"
    ),
    references=("CKV_AWS_149", "AWS-0098", "Secret Manager: customer-managed encryption keys"),
    severity="medium",
    levels=FROM_STAGING,
    checks={AWS_SECRET: present("kmsKeyId"), GCP_SECRET: gcp_secret_key},
)


OWN_KEY_IMAGES = Rule(
    name="own-key-for-images",
    statement="Training images are encrypted with a key that the platform owns.",
    reason="Images contain code and sometimes weights; the same key protects them together with the data.",
    fix="set the platform's key on the repository; in Azure the registry must be Premium",
    references=("CKV_AWS_136", "AWS-0033", "CKV_GCP_84", "ACR: customer-managed keys"),
    severity="low",
    levels=ADVICE,
    checks={ECR: ecr_key, GCP_IMAGES: present("kmsKeyName"), ACR: one_of("encryption.status", ("enabled",))},
)


OWN_KEY_LOGS = Rule(
    name="own-key-for-logs",
    statement="Logs are encrypted with a key that the platform owns, where the log store supports one.",
    reason="Logs record who did what, and often contain data that they should not.",
    fix="set the platform's key on the log store",
    references=("CKV_AWS_158", "AWS-0017", "Cloud Logging: CMEK for log buckets"),
    severity="low",
    levels=FROM_STAGING,
    checks={LOG_GROUP: present("kmsKeyId"), GCP_LOGS: present("cmekSettings.kmsKeyName")},
)


KEYS_ROTATE = Rule(
    name="keys-rotate",
    statement="Every encryption key rotates automatically, at least once a year.",
    reason="If a key never changes, one leak exposes all past and future data.",
    fix="enable the key's automatic rotation",
    references=("CIS AWS 3.6", "CKV_AWS_7", "AWS-0065", "CKV_GCP_43", "Azure Key Vault: key autorotation"),
    severity="high",
    checks={KMS_KEY: aws_rotation, GCP_KEY: gcp_rotation},
    stack={AZURE_KEY: unrotated_keys},
)


KEY_DELETION_DELAY = Rule(
    name="keys-cannot-vanish",
    statement="A deleted key can be restored for at least two weeks.",
    reason="Data encrypted with a lost key is lost; two weeks leave time to notice the mistake.",
    fix="increase the key's deletion window, and enable purge protection on a key vault",
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
