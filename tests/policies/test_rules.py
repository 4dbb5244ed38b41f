"""Each rule with resources that break it and resources that keep it, as plain functions: no engine, no pack."""

from __future__ import annotations

import json
from typing import Any

import pytest

from policies import encryption, identity, network, nodes, storage, tags, workloads
from policies.rule import Resource, Rule, judge, judge_stack

CLUSTER = "aws:eks/cluster:Cluster"
TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
INSTANCE = "aws:ec2/instance:Instance"
GROUP = "aws:eks/nodeGroup:NodeGroup"
BUCKET = "aws:s3/bucket:Bucket"
ROLE_POLICY = "aws:iam/rolePolicy:RolePolicy"
ATTACHMENT = "aws:iam/rolePolicyAttachment:RolePolicyAttachment"
CLASS = "kubernetes:storage.k8s.io/v1:StorageClass"
DEPLOYMENT = "kubernetes:apps/v1:Deployment"
RELEASE = "kubernetes:helm.sh/v3:Release"

DENY_HTTP = {"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": ["b", "b/*"], "Condition": {"Bool": {"aws:SecureTransport": "false"}}}
GPU_LABELS = {"nvidia.com/gpu.present": "true", "skypilot.co/accelerator": "h100"}
GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NO_SCHEDULE"}
ALL_TAGS = {"trainfleet:platform": "prod", "trainfleet:environment": "prod", "trainfleet:owner": "a@b.c"}
OPEN = {"endpointPublicAccess": True}
CLOSED_BLOCK = dict.fromkeys(storage.BLOCKS, True)


def document(*statements: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


def pod(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "x", "namespace": "training"}, "spec": {"template": {"spec": {"containers": [{"name": "c"}], **spec}}}}


def container(**security: Any) -> list[dict[str, Any]]:
    return [{"name": "c", "securityContext": security}]


BROKEN: list[tuple[Rule, str, dict[str, Any], str]] = [
    (network.NO_OPEN_CONTROL_PLANE, CLUSTER, {}, "publicAccessCidrs"),
    (network.NO_OPEN_CONTROL_PLANE, CLUSTER, {"vpcConfig": OPEN}, "publicAccessCidrs"),
    (network.NO_OPEN_CONTROL_PLANE, CLUSTER, {"vpcConfig": {**OPEN, "publicAccessCidrs": ["10.0.0.0/8", "0.0.0.0/0"]}}, "0.0.0.0/0"),
    (network.NO_OPEN_CONTROL_PLANE, CLUSTER, {"vpcConfig": {**OPEN, "publicAccessCidrs": ["::/0"]}}, "::/0"),
    (encryption.SECRETS_ENCRYPTED, CLUSTER, {}, "encryptionConfig"),
    (encryption.SECRETS_ENCRYPTED, CLUSTER, {"encryptionConfig": {"resources": [], "provider": {"keyArn": "k"}}}, "resources"),
    (encryption.SECRETS_ENCRYPTED, CLUSTER, {"encryptionConfig": {"resources": ["secrets"], "provider": {}}}, "keyArn"),
    (encryption.ENCRYPTED_VOLUMES, TEMPLATE, {}, "blockDeviceMappings"),
    (encryption.ENCRYPTED_VOLUMES, TEMPLATE, {"blockDeviceMappings": [{"ebs": {"encrypted": "true"}}, {"ebs": {}}]}, "[1].ebs.encrypted"),
    (encryption.ENCRYPTED_VOLUMES, TEMPLATE, {"blockDeviceMappings": [{"ebs": {"encrypted": "false"}}]}, "[0].ebs.encrypted"),
    (encryption.ENCRYPTED_VOLUMES, INSTANCE, {}, "rootBlockDevice"),
    (encryption.ENCRYPTED_VOLUMES, INSTANCE, {"rootBlockDevice": {"encrypted": True}, "ebsBlockDevices": [{}]}, "ebsBlockDevices[0]"),
    (encryption.ENCRYPTED_VOLUMES, GROUP, {}, "launchTemplate"),
    (encryption.ENCRYPTED_VOLUMES, "aws:ebs/volume:Volume", {"encrypted": False}, "encrypted"),
    (encryption.ENCRYPTED_VOLUMES, "aws:efs/fileSystem:FileSystem", {}, "encrypted"),
    (encryption.ENCRYPTED_VOLUMES, "aws:fsx/lustreFileSystem:LustreFileSystem", {}, "kmsKeyId"),
    (encryption.ENCRYPTED_VOLUMES, CLASS, {"provisioner": "ebs.csi.aws.com", "parameters": {"type": "gp3"}}, "parameters.encrypted"),
    (storage.NO_PUBLIC_BUCKET, BUCKET, {"acl": "public-read"}, "public-read"),
    (storage.NO_PUBLIC_BUCKET, "aws:s3/bucketAcl:BucketAcl", {"acl": "public-read-write"}, "public-read-write"),
    (
        storage.NO_PUBLIC_BUCKET,
        "aws:s3/bucketAcl:BucketAcl",
        {"accessControlPolicy": {"grants": [{"permission": "READ", "grantee": {"uri": "http://acs.amazonaws.com/groups/global/AllUsers"}}]}},
        "AllUsers",
    ),
    (storage.NO_PUBLIC_BUCKET, storage.BLOCK, {**CLOSED_BLOCK, "restrictPublicBuckets": False}, "restrictPublicBuckets"),
    (
        storage.NO_PUBLIC_BUCKET,
        storage.BLOCK,
        {"blockPublicAcls": True, "blockPublicPolicy": True, "ignorePublicAcls": True},
        "restrictPublicBuckets",
    ),
    (storage.TLS_ONLY_BUCKET, storage.POLICY, {"policy": document({**DENY_HTTP, "Effect": "Allow"})}, "SecureTransport"),
    (storage.TLS_ONLY_BUCKET, storage.POLICY, {"policy": document({**DENY_HTTP, "Principal": {"AWS": "arn:me"}})}, "SecureTransport"),
    (storage.TLS_ONLY_BUCKET, storage.POLICY, {"policy": document({**DENY_HTTP, "Action": "s3:GetObject"})}, "SecureTransport"),
    (storage.TLS_ONLY_BUCKET, storage.POLICY, {"policy": document({**DENY_HTTP, "Condition": {}})}, "SecureTransport"),
    (storage.TLS_ONLY_BUCKET, storage.POLICY, {"policy": "not JSON"}, "SecureTransport"),
    (nodes.IMDSV2, TEMPLATE, {}, "httpTokens"),
    (nodes.IMDSV2, TEMPLATE, {"metadataOptions": {"httpTokens": "optional"}}, "httpTokens"),
    (nodes.IMDSV2, INSTANCE, {}, "httpTokens"),
    (nodes.IMDSV2, GROUP, {}, "launchTemplate"),
    (identity.NO_STAR_ROLE, ROLE_POLICY, {"policy": document({"Effect": "Allow", "Action": "*", "Resource": "*"})}, "Statement[0]"),
    (identity.NO_STAR_ROLE, ROLE_POLICY, {"policy": document({"Effect": "Allow", "Action": ["s3:Get*", "*:*"], "Resource": ["*"]})}, "Statement[0]"),
    (identity.NO_STAR_ROLE, ROLE_POLICY, {"policy": document({"Effect": "Allow", "NotAction": "iam:*", "Resource": "*"})}, "Statement[0]"),
    (identity.NO_STAR_ROLE, "aws:iam/policy:Policy", {"policy": {"Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}}, "Statement[0]"),
    (
        identity.NO_STAR_ROLE,
        "aws:iam/role:Role",
        {"inlinePolicies": [{"policy": document({"Effect": "Allow", "Action": "*", "Resource": "*"})}]},
        "inlinePolicies[0]",
    ),
    (identity.NO_STAR_ROLE, "aws:iam/role:Role", {"managedPolicyArns": ["arn:aws:iam::aws:policy/AdministratorAccess"]}, "Administrator"),
    (identity.NO_STAR_ROLE, ATTACHMENT, {"policyArn": "arn:aws-us-gov:iam::aws:policy/AdministratorAccess"}, "Administrator"),
    (
        identity.NO_STAR_ROLE,
        "kubernetes:rbac.authorization.k8s.io/v1:ClusterRole",
        {"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]}, {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]},
        "rules[1]",
    ),
    (identity.NO_STAR_ROLE, "kubernetes:rbac.authorization.k8s.io/v1:ClusterRoleBinding", {"roleRef": {"name": "cluster-admin"}}, "cluster-admin"),
    (tags.REQUIRED_TAGS, BUCKET, {}, "trainfleet:platform, trainfleet:environment, trainfleet:owner"),
    (tags.REQUIRED_TAGS, BUCKET, {"tags": {**ALL_TAGS, "trainfleet:owner": ""}}, "trainfleet:owner"),
    (nodes.GPU_TAINT_AND_LABEL, GROUP, {"amiType": "AL2023_x86_64_NVIDIA", "labels": GPU_LABELS}, "taint"),
    (nodes.GPU_TAINT_AND_LABEL, GROUP, {"labels": GPU_LABELS, "taints": [{**GPU_TAINT, "effect": "NO_EXECUTE"}]}, "taint"),
    (nodes.GPU_TAINT_AND_LABEL, GROUP, {"taints": [GPU_TAINT], "labels": {"nvidia.com/gpu.present": "true"}}, "skypilot.co/accelerator"),
    (nodes.GPU_TAINT_AND_LABEL, GROUP, {"taints": [GPU_TAINT], "labels": {**GPU_LABELS, "skypilot.co/accelerator": "H100"}}, "lower case"),
    (nodes.GPU_TAINT_AND_LABEL, GROUP, {"taints": [GPU_TAINT], "labels": {"skypilot.co/accelerator": "h100"}}, "gpu.present"),
    (workloads.NO_PRIVILEGED_POD, DEPLOYMENT, pod(hostNetwork=True), "spec.template.spec.hostNetwork"),
    (workloads.NO_PRIVILEGED_POD, DEPLOYMENT, pod(hostPID=True), "hostPID"),
    (workloads.NO_PRIVILEGED_POD, DEPLOYMENT, pod(containers=container(privileged=True)), "containers[0].securityContext.privileged"),
    (workloads.NO_PRIVILEGED_POD, DEPLOYMENT, pod(initContainers=container(privileged=True)), "initContainers[0]"),
    (workloads.NO_PRIVILEGED_POD, "kubernetes:core/v1:Pod", {"spec": {"containers": [], "hostIPC": True}}, "spec.hostIPC"),
    (workloads.NO_PRIVILEGED_POD, "kubernetes:batch/v1:CronJob", {"spec": {"jobTemplate": pod(hostNetwork=True)}}, "hostNetwork"),
    (
        workloads.NO_PRIVILEGED_POD,
        "kubernetes:ray.io/v1:RayCluster",
        {"spec": {"workerGroupSpecs": [{"template": {"spec": {"containers": container(privileged=True)}}}]}},
        "workerGroupSpecs[0]",
    ),
    (
        workloads.NO_PRIVILEGED_POD,
        RELEASE,
        {"chart": "x", "namespace": "y", "values": {"a": [{"securityContext": {"privileged": True}}]}},
        "privileged",
    ),
    (workloads.NO_PRIVILEGED_POD, RELEASE, {"chart": "x", "namespace": "y", "values": {"hostNetwork": "true"}}, "hostNetwork"),
    (workloads.NO_PRIVILEGED_POD, RELEASE, {"chart": "nvidia-device-plugin", "namespace": "training", "values": {}}, "nvidia-device-plugin"),
]

KEPT: list[tuple[Rule, str, dict[str, Any]]] = [
    (network.NO_OPEN_CONTROL_PLANE, CLUSTER, {"vpcConfig": {"endpointPublicAccess": False}}),
    (network.NO_OPEN_CONTROL_PLANE, CLUSTER, {"vpcConfig": {**OPEN, "publicAccessCidrs": ["203.0.113.0/24"]}}),
    (encryption.SECRETS_ENCRYPTED, CLUSTER, {"encryptionConfig": {"resources": ["secrets"], "provider": {"keyArn": "k"}}}),
    (encryption.ENCRYPTED_VOLUMES, TEMPLATE, {"blockDeviceMappings": [{"ebs": {"encrypted": "true"}}, {"virtualName": "ephemeral0"}]}),
    (encryption.ENCRYPTED_VOLUMES, INSTANCE, {"rootBlockDevice": {"encrypted": True}}),
    (encryption.ENCRYPTED_VOLUMES, GROUP, {"launchTemplate": {"id": "lt"}}),
    (encryption.ENCRYPTED_VOLUMES, "aws:ebs/volume:Volume", {"encrypted": True}),
    (encryption.ENCRYPTED_VOLUMES, "aws:fsx/lustreFileSystem:LustreFileSystem", {"kmsKeyId": "k"}),
    (encryption.ENCRYPTED_VOLUMES, CLASS, {"provisioner": "ebs.csi.aws.com", "parameters": {"encrypted": "true"}}),
    (encryption.ENCRYPTED_VOLUMES, CLASS, {"provisioner": "rancher.io/local-path"}),
    (storage.NO_PUBLIC_BUCKET, BUCKET, {"acl": "private"}),
    (storage.NO_PUBLIC_BUCKET, BUCKET, {}),
    (storage.NO_PUBLIC_BUCKET, storage.BLOCK, CLOSED_BLOCK),
    (storage.TLS_ONLY_BUCKET, storage.POLICY, {"policy": document({"Effect": "Allow"}, DENY_HTTP)}),
    (storage.TLS_ONLY_BUCKET, storage.POLICY, {"policy": document({**DENY_HTTP, "Principal": {"AWS": ["*"]}})}),
    (nodes.IMDSV2, TEMPLATE, {"metadataOptions": {"httpTokens": "required"}}),
    (nodes.IMDSV2, INSTANCE, {"metadataOptions": {"httpEndpoint": "disabled"}}),
    (nodes.IMDSV2, GROUP, {"launchTemplate": {"id": "lt"}}),
    (identity.NO_STAR_ROLE, ROLE_POLICY, {"policy": document({"Effect": "Allow", "Action": "s3:*", "Resource": "*"})}),
    (identity.NO_STAR_ROLE, ROLE_POLICY, {"policy": document({"Effect": "Deny", "Action": "*", "Resource": "*"})}),
    (identity.NO_STAR_ROLE, ATTACHMENT, {"policyArn": "arn:aws:iam::aws:policy/AmazonEKSClusterPolicy"}),
    (identity.NO_STAR_ROLE, "kubernetes:rbac.authorization.k8s.io/v1:ClusterRoleBinding", {"roleRef": {"name": "view"}}),
    (tags.REQUIRED_TAGS, BUCKET, {"tags": ALL_TAGS}),
    (nodes.GPU_TAINT_AND_LABEL, GROUP, {"amiType": "AL2023_x86_64_NVIDIA", "labels": GPU_LABELS, "taints": [GPU_TAINT]}),
    (nodes.GPU_TAINT_AND_LABEL, GROUP, {"amiType": "AL2023_x86_64_STANDARD", "labels": {"pool": "system"}}),
    (workloads.NO_PRIVILEGED_POD, DEPLOYMENT, pod(hostNetwork=False, containers=container(privileged=False))),
    (workloads.NO_PRIVILEGED_POD, RELEASE, {"chart": "nvidia-device-plugin", "namespace": "gpu-system", "values": {}}),
    (workloads.NO_PRIVILEGED_POD, RELEASE, {"chart": "x", "namespace": "y", "values": {"image": {"tag": "1"}}}),
]


@pytest.mark.parametrize(("rule", "kind", "props", "names"), BROKEN, ids=lambda value: value.name if isinstance(value, Rule) else None)
def test_a_broken_rule_names_what_is_wrong(rule: Rule, kind: str, props: dict[str, Any], names: str) -> None:
    violations = judge(rule, Resource(kind, "it", props))
    assert any(names in violation.what for violation in violations), violations


@pytest.mark.parametrize(("rule", "kind", "props"), KEPT, ids=lambda value: value.name if isinstance(value, Rule) else None)
def test_a_kept_rule_says_nothing(rule: Rule, kind: str, props: dict[str, Any]) -> None:
    assert judge(rule, Resource(kind, "it", props)) == ()


def test_a_rule_has_a_violation_and_a_pass_for_each_of_its_types() -> None:
    broken = {(rule.name, kind) for rule, kind, _, _ in BROKEN}
    kept = {rule.name for rule, _, _ in KEPT}
    from policies.pack import RULES

    for rule in RULES:
        assert rule.name in kept
        assert any(name == rule.name for name, _ in broken)


STACK_CASES = [
    (storage.NO_PUBLIC_BUCKET, storage.BLOCK, "public access block"),
    (storage.TLS_ONLY_BUCKET, storage.POLICY, "bucket policy"),
]


@pytest.mark.parametrize(("rule", "companion", "names"), STACK_CASES, ids=["block", "policy"])
def test_a_bucket_without_its_companion_is_named(rule: Rule, companion: str, names: str) -> None:
    lonely, guarded = Resource(BUCKET, "lonely", {"bucket": "a"}, "urn:a"), Resource(BUCKET, "guarded", {"bucket": "b"}, "urn:b")
    other = Resource(companion, "companion", {"bucket": "b"}, "urn:c", {"bucket": ("urn:b",)})
    found = judge_stack(rule, [lonely, guarded, other])
    assert [(violation.name, violation.urn) for violation in found] == [("lonely", "urn:a")]
    assert names in found[0].what


@pytest.mark.parametrize(("rule", "companion", "names"), STACK_CASES, ids=["block", "policy"])
def test_a_companion_may_name_its_bucket_in_words(rule: Rule, companion: str, names: str) -> None:
    bucket, other = Resource(BUCKET, "b", {"bucket": "named"}, "urn:b"), Resource(companion, "c", {"bucket": "named"}, "urn:c")
    assert judge_stack(rule, [bucket, other]) == ()


def test_a_setting_allows_one_more_named_pod_and_no_other() -> None:
    settings = {"allowed": ["monitoring/node-exporter"]}
    allowed = {"metadata": {"name": "node-exporter", "namespace": "monitoring"}, "spec": {"containers": [], "hostNetwork": True}}
    elsewhere = {**allowed, "metadata": {"name": "node-exporter", "namespace": "training"}}
    kind = "kubernetes:core/v1:Pod"
    assert judge(workloads.NO_PRIVILEGED_POD, Resource(kind, "p", allowed, settings=settings)) == ()
    assert judge(workloads.NO_PRIVILEGED_POD, Resource(kind, "p", allowed)) != ()
    assert judge(workloads.NO_PRIVILEGED_POD, Resource(kind, "p", elsewhere, settings=settings)) != ()


def test_a_setting_requires_one_more_tag() -> None:
    (violation,) = judge(tags.REQUIRED_TAGS, Resource(BUCKET, "b", {"tags": ALL_TAGS}, settings={"required": ["team"]}))
    assert violation.what == "tags lack team"
