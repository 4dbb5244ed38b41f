"""What a case is, and the compliant resources that cases break: planned ones of our own stacks, and a few
written by hand.

A case names a rule, a type and a change.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.policies.gather import PLANNED, copy_props
from trainfleet.policies.naming import AWS_TAGGABLE
from trainfleet.policies.resource_types import WORKLOADS

REMOVED = object()
"""Marks a property to remove."""
Path = Any
"""Properties by dots, or a tuple of them where a key has dots of its own."""


@dataclass(frozen=True)
class Case:
    """One way to break one rule."""

    rule: str
    kind: str
    """A resource type, with `#gpu` for the GPU pool among the pools."""
    change: dict[Path, Any]
    """By path (a.b.0.c, or a tuple where a key has dots): the new value, or REMOVED."""
    says: str
    """A part of the violation."""
    protect: bool = True
    """Whether the resource has Pulumi's option of that name."""

    @property
    def type(self) -> str:
        return self.kind.partition("#")[0]


@dataclass(frozen=True)
class Base:
    name: str
    props: dict[str, Any]


TAGS = {"trainfleet:platform": "p", "trainfleet:environment": "prod", "trainfleet:owner": "a@b.c"}
LABELS = {"trainfleet-platform": "p", "trainfleet-environment": "prod", "trainfleet-owner": "a_at_b_c"}
NARROW = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": ["arn:aws:s3:::b/*"]}],
    }
)
MINE = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"AWS": "arn:aws:iam::111122223333:root"},
                "Action": "*",
                "Resource": "r",
            }
        ],
    }
)
POD = {
    "securityContext": {"runAsNonRoot": True},
    "containers": [
        {
            "name": "c",
            "image": "registry.example.com/training:1.0",
            "resources": {"requests": {"memory": "1Gi"}},
            "securityContext": {"allowPrivilegeEscalation": False},
            "env": [{"name": "TOKENIZERS_PARALLELISM", "value": "true"}],
        }
    ],
}
HEAD: dict[str, tuple[str, ...]] = {
    "Pod": (),
    "CronJob": ("jobTemplate", "spec", "template", "spec"),
    "RayCluster": ("headGroupSpec", "template", "spec"),
}
HEAD |= {
    "RayJob": ("rayClusterSpec", *HEAD["RayCluster"]),
    "RayService": ("rayClusterConfig", *HEAD["RayCluster"]),
}


def pod_path(kind: str) -> tuple[str, ...]:
    """Where a kind of workload keeps its pod's specification, below the resource."""
    return ("spec", *HEAD.get(kind.rpartition(":")[2], ("template", "spec")))


def _workload(kind: str) -> dict[str, Any]:
    group, _, version = kind.removeprefix("kubernetes:").rpartition(":")[0].rpartition("/")
    node: Any = copy.deepcopy(POD)
    for key in reversed(pod_path(kind)):
        node = {key: node}
    name = kind.rpartition(":")[2]
    more: dict[str, Any] = {}
    if name in ("Deployment", "DaemonSet", "ReplicaSet", "StatefulSet"):
        more = {"selector": {"matchLabels": {"a": "b"}}}
        node["spec"]["template"]["metadata"] = {"labels": {"a": "b"}}
    if name == "StatefulSet":
        more |= {"serviceName": "s"}
    if name == "CronJob":
        more = {"schedule": "0 0 * * *"}
    for path in (("template",), ("jobTemplate", "spec", "template")):
        template = _at(node["spec"], path)
        if name in ("Job", "CronJob") and template:
            template["spec"]["restartPolicy"] = "Never"
    if name == "RayCluster":
        node["spec"]["headGroupSpec"]["rayStartParams"] = {}
    core = f"{group}/{version}" if group != "core" else version
    return {
        "apiVersion": core,
        "kind": name,
        "metadata": {"name": "w", "namespace": "training"},
        "spec": {**more, **node["spec"]},
    }


def _at(node: Any, path: Sequence[str]) -> Any:
    for key in path:
        node = node.get(key, {})
    return node


HYPERPOD = {
    "ClusterName": "c",
    "NodeRecovery": "Automatic",
    "Tags": [{"Key": key, "Value": value} for key, value in TAGS.items()],
}
AZURE_BUDGET = {
    "scope": "/subscriptions/11111111-2222-3333-4444-555555555555",
    "amount": 100,
    "category": "Cost",
    "timeGrain": "Monthly",
    "timePeriod": {"startDate": "2026-01-01T00:00:00Z"},
    "notifications": {
        "spent": {"enabled": True, "operator": "GreaterThan", "threshold": 80, "contactEmails": ["a@b.c"]}
    },
}
BY_HAND: dict[str, dict[str, Any]] = {
    **{kind: {"tags": TAGS} for kind in AWS_TAGGABLE},
    **{kind: _workload(kind) for kind in WORKLOADS},
    "aws:cloudcontrol/resource:Resource": {
        "typeName": "AWS::SageMaker::Cluster",
        "desiredState": json.dumps(HYPERPOD),
    },
    "aws:ebs/volume:Volume": {"availabilityZone": "us-east-2a", "encrypted": True, "size": 10, "tags": TAGS},
    "aws:ec2/defaultVpc:DefaultVpc": {},
    "aws:ec2/instance:Instance": {
        "ami": "ami-1",
        "instanceType": "m7i.large",
        "rootBlockDevice": {"encrypted": True},
        "metadataOptions": {"httpTokens": "required"},
        "tags": TAGS,
    },
    "aws:ec2/securityGroupRule:SecurityGroupRule": {
        "type": "ingress",
        "protocol": "tcp",
        "fromPort": 22,
        "toPort": 22,
        "securityGroupId": "sg-1",
        "cidrBlocks": ["10.0.0.0/8"],
    },
    "aws:ecr/repositoryPolicy:RepositoryPolicy": {"repository": "r", "policy": MINE},
    "aws:kms/externalKey:ExternalKey": {"policy": MINE, "tags": TAGS},
    "aws:kms/keyPolicy:KeyPolicy": {"keyId": "k", "policy": MINE},
    "aws:kms/replicaKey:ReplicaKey": {"primaryKeyArn": "k", "policy": MINE, "tags": TAGS},
    "aws:efs/fileSystemPolicy:FileSystemPolicy": {"fileSystemId": "fs-1", "policy": MINE},
    "aws:efs/fileSystem:FileSystem": {
        "encrypted": True,
        "kmsKeyId": "arn:aws:kms:us-east-2:111122223333:key/k",
        "tags": TAGS,
    },
    "aws:iam/accessKey:AccessKey": {"user": "u", "status": "Inactive"},
    "aws:iam/groupPolicy:GroupPolicy": {"group": "g", "policy": NARROW},
    "aws:iam/openIdConnectProvider:OpenIdConnectProvider": {
        "url": "https://a.b",
        "clientIdLists": ["sts.amazonaws.com"],
        "tags": TAGS,
    },
    "aws:iam/policy:Policy": {"policy": NARROW, "tags": TAGS},
    "aws:iam/policyAttachment:PolicyAttachment": {
        "policyArn": "arn:aws:iam::aws:policy/AmazonEKSClusterPolicy",
        "roles": ["r"],
    },
    "aws:iam/userLoginProfile:UserLoginProfile": {},
    "aws:iam/userPolicy:UserPolicy": {"user": "u", "policy": NARROW},
    "aws:s3/bucketAcl:BucketAcl": {"bucket": "b", "acl": "private"},
    "aws:secretsmanager/secretPolicy:SecretPolicy": {
        "secretArn": "arn:aws:secretsmanager:us-east-2:111122223333:secret:s",
        "policy": MINE,
    },
    "aws:sns/topicPolicy:TopicPolicy": {"arn": "arn:aws:sns:us-east-2:111122223333:t", "policy": MINE},
    "aws:sqs/queuePolicy:QueuePolicy": {
        "queueUrl": "https://sqs.us-east-2.amazonaws.com/111122223333/q",
        "policy": MINE,
    },
    "azure-native:containerregistry:Registry": {
        "resourceGroupName": "g",
        "registryName": "images1",
        "location": "eastus",
        "sku": {"name": "Premium"},
        "adminUserEnabled": False,
        "publicNetworkAccess": "Disabled",
        "policies": {"retentionPolicy": {"status": "enabled", "days": 7}},
        "encryption": {
            "status": "enabled",
            "keyVaultProperties": {"identity": "i", "keyIdentifier": "https://v.vault.azure.net/keys/k"},
        },
        "tags": TAGS,
    },
    "azure-native:authorization:RoleDefinition": {
        "scope": "/subscriptions/11111111-2222-3333-4444-555555555555",
        "permissions": [{"actions": ["Microsoft.Storage/storageAccounts/read"]}],
    },
    "azure-native:consumption:Budget": AZURE_BUDGET,
    "azure-native:costmanagement:Budget": AZURE_BUDGET,
    "azure-native:network:SecurityRule": {
        "resourceGroupName": "g",
        "networkSecurityGroupName": "n",
        "access": "Allow",
        "direction": "Inbound",
        "protocol": "Tcp",
        "priority": 100,
        "sourceAddressPrefix": "10.0.0.0/8",
        "sourcePortRange": "*",
        "destinationAddressPrefix": "*",
        "destinationPortRange": "443",
    },
    "azure-native:storagecache:AmlFilesystem": {
        "resourceGroupName": "g",
        "filesystemSubnet": (
            "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/g/"
            "providers/Microsoft.Network/virtualNetworks/v/subnets/s"
        ),
        "location": "eastus",
        "sku": {"name": "AMLFS-Durable-Premium-250"},
        "storageCapacityTiB": 8,
        "zones": ["1"],
        "maintenanceWindow": {"dayOfWeek": "Sunday", "timeOfDayUTC": "02:00"},
        "encryptionSettings": {
            "keyEncryptionKey": {"keyUrl": "https://v.vault.azure.net/keys/k/1", "sourceVault": {"id": "v"}}
        },
        "tags": TAGS,
    },
    "gcp:artifactregistry/repositoryIamBinding:RepositoryIamBinding": {
        "repository": "r",
        "role": "roles/viewer",
        "members": ["user:a@b.c"],
    },
    "gcp:compute/disk:Disk": {
        "zone": "us-central1-a",
        "size": 10,
        "diskEncryptionKey": {"kmsKeySelfLink": "projects/p/locations/us-central1/keyRings/r/cryptoKeys/k"},
        "labels": LABELS,
    },
    "gcp:compute/instance:Instance": {
        "machineType": "e2-small",
        "zone": "us-central1-a",
        "bootDisk": {"initializeParams": {"image": "debian-cloud/debian-12"}},
        "networkInterfaces": [{"network": "n"}],
        "labels": LABELS,
    },
    "gcp:filestore/instance:Instance": {
        "tier": "ENTERPRISE",
        "location": "us-central1",
        "fileShares": {"name": "s", "capacityGb": 1024},
        "networks": [{"network": "n", "modes": ["MODE_IPV4"]}],
        "kmsKeyName": "k",
        "deletionProtectionEnabled": True,
        "labels": LABELS,
    },
    "gcp:kms/cryptoKeyIAMBinding:CryptoKeyIAMBinding": {
        "cryptoKeyId": "k",
        "role": "roles/viewer",
        "members": ["user:a@b.c"],
    },
    "gcp:projects/iAMBinding:IAMBinding": {
        "project": "trainfleet-prod-123456",
        "role": "roles/viewer",
        "members": ["user:a@b.c"],
    },
    "gcp:pubsub/topicIAMBinding:TopicIAMBinding": {
        "topic": "t",
        "role": "roles/viewer",
        "members": ["user:a@b.c"],
    },
    "gcp:pubsub/topicIAMMember:TopicIAMMember": {
        "topic": "t",
        "role": "roles/viewer",
        "member": "user:a@b.c",
    },
    "gcp:secretmanager/secretIamBinding:SecretIamBinding": {
        "secretId": "s",
        "role": "roles/viewer",
        "members": ["user:a@b.c"],
    },
    "gcp:serviceaccount/iAMBinding:IAMBinding": {
        "serviceAccountId": "projects/p/serviceAccounts/a@p.iam.gserviceaccount.com",
        "role": "roles/iam.workloadIdentityUser",
        "members": ["serviceAccount:p.svc.id.goog[training/trainer]"],
    },
    "gcp:serviceaccount/key:Key": {},
    "gcp:storage/bucketAccessControl:BucketAccessControl": {
        "bucket": "b",
        "entity": "user-a@b.c",
        "role": "READER",
    },
    "gcp:storage/bucketIAMBinding:BucketIAMBinding": {
        "bucket": "b",
        "role": "roles/storage.objectViewer",
        "members": ["user:a@b.c"],
    },
    "gcp:storage/hmacKey:HmacKey": {
        "serviceAccountEmail": "a@p.iam.gserviceaccount.com",
        "state": "INACTIVE",
    },
    "kubernetes:core/v1:ConfigMap": {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "c"},
        "data": {"level": "info"},
    },
    "kubernetes:core/v1:Service": {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s"},
        "spec": {"type": "ClusterIP", "ports": [{"port": 80}], "selector": {"a": "b"}},
    },
}


PLANNED_RESOURCES = {
    kind: Base(each["name"], copy_props(each["props"]))
    for kind, each in json.loads(PLANNED.read_text()).items()
}
"""By type (and `#gpu`): the first resource of the rehearsed stacks, whatever the rules say of it."""
NOT_KEPT = {
    "azure-native:containerregistry:Registry": {
        "own-key-for-images": "advice: Azure encrypts images with a key of its own"
    },
    "gcp:filestore/instance:Instance": {"protected-from-deletion": "only a dev platform has the type"},
}
"""By type: the rules that the planned resource does not keep, with the reason."""
BASES = {kind: Base("p-it", props) for kind, props in BY_HAND.items()} | {
    kind: base for kind, base in PLANNED_RESOURCES.items() if kind not in NOT_KEPT
}
"""By type (and `#gpu`): a resource that keeps every rule; a planned one, or one by hand where no stack of
ours has the type or keeps every rule.
"""


def broken(case: Case) -> Base:
    """The case's resource: its base, changed."""
    base = BASES[case.kind]
    props = copy_props(base.props)
    for path, value in case.change.items():
        _put(
            props,
            path if isinstance(path, tuple) else tuple(_step(part) for part in path.split(".")),
            copy_props(value),
        )
    return Base(base.name, props)


def _step(part: str) -> str | int:
    return int(part) if part.isdigit() else part


def _put(node: Any, path: tuple[str | int, ...], value: Any) -> None:
    *parents, last = path
    for key in parents:
        if isinstance(node, dict):
            if not isinstance(node.get(key), dict | list):
                node[key] = {}
            node = node[key]
        else:
            node = node[key]
    if value is REMOVED:
        if isinstance(node, dict):
            node.pop(last, None)
    else:
        node[last] = value
