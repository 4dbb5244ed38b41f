"""What lies on a disk is encrypted: Kubernetes secrets with a key of one's own, and every volume."""

from __future__ import annotations

from collections.abc import Iterable

from policies.rule import Json, Resource, Rule, Violation, is_true, listed

EBS_PROVISIONERS = {"ebs.csi.aws.com", "ebs.csi.eks.amazonaws.com", "kubernetes.io/aws-ebs"}


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


def encrypted_flag(resource: Resource) -> Iterable[Violation]:
    if not is_true(resource.props.get("encrypted")):
        yield Violation("encrypted is not true")


def own_key(resource: Resource) -> Iterable[Violation]:
    if resource.props.get("kmsKeyId") is None:
        yield Violation("kmsKeyId is missing: the key would be the provider's and not the platform's")


def storage_class(resource: Resource) -> Iterable[Violation]:
    if resource.props.get("provisioner") not in EBS_PROVISIONERS:
        return
    if not is_true((resource.props.get("parameters") or {}).get("encrypted")):
        yield Violation("parameters.encrypted is not `true`")


SECRETS_ENCRYPTED = Rule(
    name="secrets-encrypted",
    statement="Kubernetes secrets are encrypted with a key that the platform owns.",
    fix="give the cluster an encryption configuration for `secrets` with a key of the platform",
    references=("CIS EKS 5.3.1", "CKV_AWS_58", "AWS-0039"),
    checks={"aws:eks/cluster:Cluster": eks_secrets},
)
ENCRYPTED_VOLUMES = Rule(
    name="encrypted-volumes",
    statement="Every disk, filesystem and storage class is encrypted.",
    fix="set encrypted: true (and the platform's key) on the disk, filesystem or storage class",
    references=("CIS AWS 2.2.1", "CKV_AWS_3", "CKV_AWS_8", "CKV_AWS_190", "AWS-0026", "AWS-0131"),
    checks={
        "aws:ec2/launchTemplate:LaunchTemplate": launch_template_disks,
        "aws:ec2/instance:Instance": instance_disks,
        "aws:eks/nodeGroup:NodeGroup": node_group_template,
        "aws:ebs/volume:Volume": encrypted_flag,
        "aws:efs/fileSystem:FileSystem": encrypted_flag,
        "aws:fsx/lustreFileSystem:LustreFileSystem": own_key,
        "kubernetes:storage.k8s.io/v1:StorageClass": storage_class,
    },
)
RULES = (SECRETS_ENCRYPTED, ENCRYPTED_VOLUMES)
