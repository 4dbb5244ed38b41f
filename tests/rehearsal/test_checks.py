"""What a resource's inputs may be, checked by the installed SDKs: names, required ones, types, enums."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trainfleet.rehearsal.simulation.provider import CLOUD_MODELS
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN
from trainfleet.rehearsal.simulation.schema import packages

ROLE = "arn:aws:iam::111122223333:role/a"
CLUSTER = {"roleArn": ROLE, "vpcConfig": {"subnetIds": ["subnet-0a", "subnet-0b"]}}
NODES = {
    "clusterName": "c",
    "nodeRoleArn": ROLE,
    "subnetIds": ["subnet-0a"],
    "scalingConfig": {"minSize": 0, "maxSize": 1, "desiredSize": 0},
}
TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "eks.amazonaws.com"}}
    ],
}
POD = {"selector": {}, "template": {"spec": {"containers": [{"name": "a"}]}}}


def mistakes(token: str, inputs: dict[str, Any]) -> list[str]:
    package = packages()[token.split(":", 1)[0]]
    return [str(mistake) for mistake in CLOUD_MODELS[package.name].check(package, token, inputs)]


REFUSED = [
    ("aws:eks/cluster:Cluster", {**CLUSTER, "nme": "x"}, "nme: unknown property (did you mean `name`?)"),
    (
        "aws:eks/cluster:Cluster",
        {"roleArn": ROLE, "vpcConfig": {"subnetIds": ["subnet-0a"], "subnet_idz": []}},
        "vpcConfig.subnet_idz: unknown property (did you mean `subnetIds`?)",
    ),
    (
        "aws:eks/cluster:Cluster",
        {"vpcConfig": {"subnetIds": ["subnet-0a"]}},
        "roleArn: missing required property",
    ),
    (
        "aws:eks/cluster:Cluster",
        {"roleArn": ROLE, "vpcConfig": {}},
        "vpcConfig.subnetIds: missing required property",
    ),
    (
        "aws:eks/cluster:Cluster",
        {**CLUSTER, "vpcConfig": {"subnetIds": "a"}},
        "vpcConfig.subnetIds: must be a list, not 'a'",
    ),
    (
        "aws:eks/cluster:Cluster",
        {**CLUSTER, "deletionProtection": "yes"},
        "deletionProtection: must be true or false, not 'yes'",
    ),
    ("aws:eks/cluster:Cluster", {**CLUSTER, "tags": ["a"]}, "tags: must be a map, not ['a']"),
    ("aws:eks/cluster:Cluster", {**CLUSTER, "name": True}, "name: must be a string, not True"),
    (
        "aws:eks/cluster:Cluster",
        {**CLUSTER, "enabledClusterLogTypes": ["aplication"]},
        "enabledClusterLogTypes[0]: 'aplication' is not one of the values",
    ),
    (
        "aws:eks/nodeGroup:NodeGroup",
        {**NODES, "diskSize": "big"},
        "diskSize: must be a whole number, not 'big'",
    ),
    ("aws:eks/nodeGroup:NodeGroup", {**NODES, "diskSize": 1.5}, "diskSize: must be a whole number, not 1.5"),
    (
        "aws:eks/nodeGroup:NodeGroup",
        {**NODES, "capacityType": "RESERVED"},
        "capacityType: 'RESERVED' is not one of the values",
    ),
    (
        "aws:eks/nodeGroup:NodeGroup",
        {**NODES, "taints": [{"key": "a", "effect": "NoSchedule"}]},
        "taints[0].effect: 'NoSchedule' is not one of the values (did you mean",
    ),
    (
        "aws:iam/policyAttachment:PolicyAttachment",
        {"policyArn": "arn:aws:iam::aws:policy/A", "rolez": []},
        "rolez: unknown property (did you mean `roles`?)",
    ),
    ("aws:eks/clustr:Clustr", {}, "aws:eks/clustr:Clustr is not a type of pulumi-aws"),
    (
        "kubernetes:apps/v1:Deployment",
        {"apiVersion": "apps/v2", "spec": POD},
        "apiVersion: 'apps/v2' is not one of the values (did you mean `apps/v1`?)",
    ),
    (
        "kubernetes:apps/v1:Deployment",
        {"spec": {**POD, "replica": 2}},
        "spec.replica: unknown property (did you mean `replicas`?)",
    ),
    (
        "kubernetes:apps/v1:Deployment",
        {"metadata": {"labels": {"a": ["b"]}}, "spec": POD},
        "metadata.labels[\"a\"]: must be a string, not ['b']",
    ),
    (
        "kubernetes:core/v1:Service",
        {"spec": {"type": "LoadBalancr"}},
        "spec.type: 'LoadBalancr' is not one of the values (did you mean `LoadBalancer`?)",
    ),
    (
        "kubernetes:core/v1:Pod",
        {"spec": {"containers": [{"name": "a", "ports": [{"containerPort": "http"}]}]}},
        "must be a whole number, not 'http'",
    ),
    (
        "kubernetes:apps/v1:Deploymnt",
        {"apiVersion": "apps/v1", "kind": "Deploymnt"},
        "kind: 'Deploymnt' is not a kind of apps/v1 (did you mean `Deployment`?)",
    ),
    (
        "kubernetes:ray.io/v1:RayCluster",
        {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"nme": "x"}},
        "metadata.nme: unknown property (did you mean `name`?)",
    ),
    ("kubernetes:ray.io/v1:RayCluster", {"kind": "RayCluster"}, "apiVersion: missing required property"),
    ("kubernetes:helm.sh/v3:Release", {"chrt": "x"}, "chrt: unknown property (did you mean `chart`?)"),
]

ACCEPTED = [
    ("aws:eks/cluster:Cluster", {**CLUSTER, "version": "1.34", "__defaults": []}),
    (
        "aws:eks/cluster:Cluster",
        {"roleArn": UNKNOWN, "vpcConfig": UNKNOWN, "enabledClusterLogTypes": ["api", UNKNOWN]},
    ),
    ("aws:eks/nodeGroup:NodeGroup", {**NODES, "capacityType": "CAPACITY_BLOCK", "diskSize": "50"}),
    ("aws:iam/role:Role", {"assumeRolePolicy": json.dumps(TRUST)}),
    ("aws:iam/role:Role", {"assumeRolePolicy": TRUST}),
    (
        "aws:sns/topicSubscription:TopicSubscription",
        {"topic": "arn:aws:sns:us-east-2:111122223333:t", "endpoint": "a@b", "protocol": "email"},
    ),
    (
        "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration",
        {"bucket": "b", "rules": []},
    ),
    (
        "kubernetes:core/v1:Service",
        {
            "spec": {
                "ports": [
                    {"name": "a", "port": 80, "targetPort": "http"},
                    {"name": "b", "port": 81, "targetPort": 8080},
                ]
            }
        },
    ),
    (
        "kubernetes:example.com/v1:Thing",
        {
            "apiVersion": "example.com/v1",
            "kind": "Thing",
            "metadata": {"name": "x"},
            "spec": {"anything": [1]},
        },
    ),
    (
        "kubernetes:helm.sh/v3:Release",
        {"chart": "kuberay-operator", "values": {"a": {"b": 1}}, "compat": "true"},
    ),
]


@pytest.mark.parametrize(("token", "inputs", "output"), REFUSED, ids=[case[2][:60] for case in REFUSED])
def test_a_mistake_is_refused_with_its_path(token: str, inputs: dict[str, Any], output: str) -> None:
    assert any(output in mistake for mistake in mistakes(token, inputs)), mistakes(token, inputs)


@pytest.mark.parametrize(
    ("token", "inputs"), ACCEPTED, ids=[f"{case[0]}-{index}" for index, case in enumerate(ACCEPTED)]
)
def test_what_is_right_is_accepted(token: str, inputs: dict[str, Any]) -> None:
    assert mistakes(token, inputs) == []


def test_all_mistakes_are_reported_at_once() -> None:
    assert len(mistakes("aws:eks/cluster:Cluster", {"nme": "x", "vpcConfig": {"subnet_idz": 1}})) == 4


@pytest.mark.deep
def test_every_kubernetes_type_is_understood() -> None:
    package = packages()["kubernetes"]
    unread = [
        token
        for token in package.classes
        if not (resource := package.resource(token)) or not resource.inputs or not resource.outputs
    ]
    assert unread == []


@pytest.mark.parametrize(
    "token", ["gcp:container/nodePool:NodePool", "azure-native:containerservice:ManagedCluster"]
)
def test_the_other_clouds_come_for_free(token: str) -> None:
    package = packages()[token.split(":", maxsplit=1)[0]]
    resource = package.resource(token)
    assert resource is not None
    assert len(resource.inputs) > 20
    assert len(resource.outputs) > 20
