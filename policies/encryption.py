"""Encryption: encryption at rest, and the keys for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from trainfleet.policies.encryption_keys import (
    KEY_DELETION_DELAY,
    KEYS_ROTATE,
    OWN_KEY_BUCKET,
    OWN_KEY_FILES,
    OWN_KEY_IMAGES,
    OWN_KEY_LOGS,
    OWN_KEY_SECRETS,
)
from trainfleet.policies.engine.accessors import (
    all_of,
    at,
    document,
    is_true,
    listed,
    not_false,
    numbered,
    one_of,
    present,
    true,
)
from trainfleet.policies.engine.pod_specs import chart
from trainfleet.policies.engine.rule import FROM_STAGING, Json, Resource, Rule, Violation
from trainfleet.policies.gpu import gke_gpu
from trainfleet.policies.resource_types import (
    AKS,
    AKS_NODES,
    EC2,
    EFS,
    EKS,
    EKS_ADDON,
    EKS_NODES,
    FSX,
    GCP_DISK,
    GKE,
    GKE_NODES,
    LAUNCH_TEMPLATE,
    RELEASE,
    STORAGE_CLASS,
)

DISK_KEYS = {
    "ebs.csi.aws.com": "encrypted",
    "ebs.csi.eks.amazonaws.com": "encrypted",
    "kubernetes.io/aws-ebs": "encrypted",
    "fsx.csi.aws.com": "kmsKeyId",
    "pd.csi.storage.gke.io": "disk-encryption-kms-key",
    "filestore.csi.storage.gke.io": "instance-encryption-kms-key",
    "disk.csi.azure.com": "diskEncryptionSetID",
}
"""Driver to the storage class parameter that encrypts volumes or names their key. EFS and Azure Files encrypt
in their file system and account, which have rules of their own.
"""
EBS_DRIVER = "aws-ebs-csi-driver"
"""The chart and the EKS add-on of this name share their values: `storageClasses`, whose provisioner is the
driver, and `defaultStorageClass`, which does not encrypt (charts/aws-ebs-csi-driver, values.yaml).
"""


def eks_secrets(resource: Resource) -> Iterable[Violation]:
    config = resource.props.get("encryptionConfig")
    if config is None:
        yield Violation("encryptionConfig is missing")
        return
    if "secrets" not in listed(config.get("resources")):
        yield Violation("encryptionConfig.resources does not include `secrets`")
    if (config.get("provider") or {}).get("keyArn") is None:
        yield Violation("encryptionConfig.provider.keyArn is missing")


def _disk(where: str, disk: Json) -> Iterable[Violation]:
    if not is_true(disk.get("encrypted")):
        yield Violation(f"{where}.encrypted is not true")


def launch_template_disks(resource: Resource) -> Iterable[Violation]:
    """A template without disks uses the image's, encrypted only if the account enforces it."""
    mappings = listed(resource.props.get("blockDeviceMappings"))
    if not mappings:
        yield Violation("blockDeviceMappings is missing, so the root volume uses the image's settings")
    for index, mapping in enumerate(mappings):
        if (ebs := mapping.get("ebs")) is not None:
            yield from _disk(f"blockDeviceMappings[{index}].ebs", ebs)


def node_group_template(resource: Resource) -> Iterable[Violation]:
    if resource.props.get("launchTemplate") is None:
        yield Violation("launchTemplate is missing, so the root volume uses the image's settings")


def instance_disks(resource: Resource) -> Iterable[Violation]:
    yield from _disk("rootBlockDevice", resource.props.get("rootBlockDevice") or {})
    for index, disk in enumerate(listed(resource.props.get("ebsBlockDevices"))):
        yield from _disk(f"ebsBlockDevices[{index}]", disk)


def aks_disks(resource: Resource) -> Iterable[Violation]:
    for where, pool in numbered("agentPoolProfiles", resource.props.get("agentPoolProfiles")):
        if not is_true(pool.get("enableEncryptionAtHost")):
            yield Violation(f"{where}.enableEncryptionAtHost is not true")


def storage_class(resource: Resource) -> Iterable[Violation]:
    yield from _class("", resource.props, resource.props.get("provisioner"))


def _class(where: str, body: Mapping[str, Json], provisioner: Json) -> Iterator[Violation]:
    parameter = DISK_KEYS.get(str(provisioner)) if provisioner is not None else None
    if parameter is None:
        return
    value = (body.get("parameters") or {}).get(parameter)
    if parameter == "encrypted" and not is_true(value):
        yield Violation(f"{where}parameters.encrypted is not `true`")
    if value is None and parameter != "encrypted":
        yield Violation(f"{where}parameters.{parameter} is missing: the cloud provider's key would be used")


def release_classes(resource: Resource) -> Iterable[Violation]:
    """Require encryption of every storage class that a chart's values declare."""
    yield from _classes("values", resource.props.get("values"))
    if chart(resource) == EBS_DRIVER:
        yield from _ebs_driver("values", resource.props.get("values"))


def addon_classes(resource: Resource) -> Iterable[Violation]:
    """The same for the EBS driver as an EKS add-on."""
    if resource.props.get("addonName") == EBS_DRIVER:
        yield from _ebs_driver("configurationValues", document(resource.props.get("configurationValues")))


def _classes(where: str, node: Json) -> Iterator[Violation]:
    if isinstance(node, Mapping):
        if isinstance(node.get("provisioner"), str):
            yield from _class(f"{where}.", node, node["provisioner"])
        for key, value in node.items():
            yield from _classes(f"{where}.{key}", value)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _classes(f"{where}[{index}]", value)


def _ebs_driver(where: str, values: Json) -> Iterator[Violation]:
    if not isinstance(values, Mapping):
        return
    for place, each in numbered(f"{where}.storageClasses", values.get("storageClasses")):
        yield from _class(f"{place}.", each, "ebs.csi.aws.com")
    if is_true(at(values, "defaultStorageClass.enabled")):
        yield Violation(f"{where}.defaultStorageClass.enabled is true, and that class does not encrypt")


def secure_boot(resource: Resource) -> Iterable[Violation]:
    """Exempts GPU nodes: secure boot rejects the GPU driver, a kernel module that Google did not sign."""
    if not gke_gpu(resource) and not is_true(
        at(resource.props, "nodeConfig.shieldedInstanceConfig.enableSecureBoot")
    ):
        yield Violation("nodeConfig.shieldedInstanceConfig.enableSecureBoot is not true")


SECRETS_ENCRYPTED = Rule(
    name="secrets-encrypted",
    statement="Kubernetes secrets are encrypted with a key that the platform owns.",
    reason=(
        "Without it, a copy of etcd is a copy of every secret, and only the cloud provider can revoke access "
        "to it."
    ),
    fix="configure secrets encryption on the cluster with a key of the platform",
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
    statement=(
        "Every disk, filesystem and storage class is encrypted, with a platform key where the cloud supports "
        "one."
    ),
    reason="Disks are copied, snapshotted and discarded; the key decides who can read them afterwards.",
    fix="set encrypted: true (AWS), the disk's KMS key (GCP) or encryption at host (Azure)",
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
        FSX: present("kmsKeyId", "the cloud provider's key would be used"),
        GKE_NODES: present("nodeConfig.bootDiskKmsKey", "the cloud provider's key would be used"),
        GCP_DISK: present("diskEncryptionKey.kmsKeySelfLink", "the cloud provider's key would be used"),
        AKS: aks_disks,
        AKS_NODES: true("enableEncryptionAtHost"),
        STORAGE_CLASS: storage_class,
        RELEASE: release_classes,
        EKS_ADDON: addon_classes,
    },
)


VERIFIED_BOOT = Rule(
    name="verified-boot",
    statement="A node's boot chain is measured, and unsigned code is not loaded.",
    reason="A rootkit that survives a restart is invisible to everything that runs above it.",
    fix="enable shielded nodes, secure boot and integrity monitoring",
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
    KEY_DELETION_DELAY,
    VERIFIED_BOOT,
)
