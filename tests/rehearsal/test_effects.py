"""What a changed property does: updates, replaces, or is not known; over the rules as they are shipped."""

from __future__ import annotations

from typing import Any

import pytest

from trainfleet.rehearsal.simulation.changes import value_at
from trainfleet.rehearsal.simulation.conditions import condition
from trainfleet.rehearsal.simulation.property_paths import split_path
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN
from trainfleet.rehearsal.simulation.replacement import Effect, effect, effects, source, worst

LUSTRE = "aws:fsx/lustreFileSystem:LustreFileSystem"
SECRET_VERSION = "aws:secretsmanager/secretVersion:SecretVersion"
ENDPOINT = "aws:ec2/vpcEndpoint:VpcEndpoint"
UPDATE, REPLACE, MAYBE = Effect.UPDATE, Effect.REPLACE, Effect.UNKNOWN


@pytest.mark.parametrize(
    ("token", "old", "new", "expected"),
    [
        (
            LUSTRE,
            {"storageCapacity": 4800, "deploymentType": "PERSISTENT_2"},
            {"storageCapacity": 1200},
            REPLACE,
        ),
        (
            LUSTRE,
            {"storageCapacity": 1200, "deploymentType": "PERSISTENT_2"},
            {"storageCapacity": UNKNOWN, "deploymentType": "PERSISTENT_2"},
            MAYBE,
        ),
        (
            LUSTRE,
            {"storageCapacity": 1200, "deploymentType": "PERSISTENT_2"},
            {"storageCapacity": 4800, "deploymentType": "PERSISTENT_2"},
            UPDATE,
        ),
        (LUSTRE, {"storageCapacity": 1200}, {"storageCapacity": 2400}, REPLACE),
        (
            LUSTRE,
            {"metadataConfiguration": {"iops": 6000}},
            {"metadataConfiguration": {"iops": 1500}},
            REPLACE,
        ),
        (
            "aws:eks/cluster:Cluster",
            {"encryptionConfig": {"provider": {"keyArn": "k"}, "resources": ["secrets"]}},
            {},
            REPLACE,
        ),
        (
            "aws:eks/cluster:Cluster",
            {},
            {"encryptionConfig": {"provider": {"keyArn": "k"}, "resources": ["secrets"]}},
            UPDATE,
        ),
        (
            "gcp:secretmanager/secret:Secret",
            {"replication": {"auto": {"customerManagedEncryption": {"kmsKeyName": "k"}}}},
            {"replication": {"userManaged": {"replicas": [{"location": "europe-west4"}]}}},
            REPLACE,
        ),
        ("aws:ec2/vpc:Vpc", {"instanceTenancy": "dedicated"}, {"instanceTenancy": "default"}, UPDATE),
        ("aws:ec2/vpc:Vpc", {"instanceTenancy": "default"}, {"instanceTenancy": "dedicated"}, REPLACE),
        (
            ENDPOINT,
            {"vpcEndpointType": "Interface", "privateDnsEnabled": True},
            {"vpcEndpointType": "Interface", "privateDnsEnabled": False},
            UPDATE,
        ),
        (ENDPOINT, {"privateDnsEnabled": True}, {"privateDnsEnabled": False}, REPLACE),
        (SECRET_VERSION, {"secretString": "a"}, {"secretString": "b"}, REPLACE),
        (SECRET_VERSION, {"secretString": "a"}, {"secretString": UNKNOWN}, REPLACE),
        (
            SECRET_VERSION,
            {"secretStringWo": "a", "secretStringWoVersion": 1},
            {"secretStringWo": "b", "secretStringWoVersion": 2},
            REPLACE,
        ),
        (SECRET_VERSION, {"secretString": "a"}, {"secretStringWo": "a", "secretStringWoVersion": 1}, MAYBE),
        ("aws:ssm/parameter:Parameter", {"tier": "Advanced"}, {"tier": "Standard"}, REPLACE),
        ("aws:ssm/parameter:Parameter", {"tier": "Standard"}, {"tier": "Advanced"}, UPDATE),
        (
            "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule",
            {"cidrIpv4": "10.0.0.0/8"},
            {"referencedSecurityGroupId": "sg-1"},
            REPLACE,
        ),
        (
            "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule",
            {"cidrIpv4": "10.0.0.0/8"},
            {"cidrIpv4": "10.0.0.0/16"},
            UPDATE,
        ),
        (
            "gcp:container/cluster:Cluster",
            {"enableL4IlbSubsetting": True},
            {"enableL4IlbSubsetting": False},
            REPLACE,
        ),
        ("aws:cloudcontrol/resource:Resource", {"desiredState": "{}"}, {"desiredState": '{"a": 1}'}, MAYBE),
        (
            "kubernetes:kueue.x-k8s.io/v1beta1:ClusterQueue",
            {"spec": {"cohort": "a"}},
            {"spec": {"cohort": "b"}},
            UPDATE,
        ),
        (
            "kubernetes:kueue.x-k8s.io/v1beta1:ClusterQueue",
            {"metadata": {"name": "a"}},
            {"metadata": {"name": "b"}},
            REPLACE,
        ),
        ("aws:ec2/vpc:Vpc", {"region": "us-east-1"}, {"region": "us-east-2"}, REPLACE),
        (
            "aws:rds/instance:Instance",
            {"engine": "mysql", "username": "a"},
            {"engine": "mysql", "username": "b"},
            REPLACE,
        ),
        ("aws:invented/type:Type", {"engine": "a"}, {"engine": "b"}, MAYBE),
    ],
)
def test_the_effect_of_a_change_of_inputs(
    token: str, old: dict[str, Any], new: dict[str, Any], expected: Effect
) -> None:
    assert worst(effects(token, old, new).values()) is expected
    assert effect(token, (), old, new) is expected


@pytest.mark.parametrize(
    ("path", "old", "new", "expected"),
    [
        ("storageCapacity", 4800, 1200, REPLACE),
        ("storageCapacity", 1200, 4800, MAYBE),
        ("deploymentType", "SCRATCH_2", "PERSISTENT_2", REPLACE),
        ("tags.owner", "a", "b", UPDATE),
    ],
)
def test_one_property_alone_is_unknown_where_a_rule_reads_another(
    path: str, old: object, new: object, expected: Effect
) -> None:
    assert effect(LUSTRE, split_path(path), old, new) is expected


def test_a_leaf_says_nothing_about_the_removal_of_what_it_is_in() -> None:
    path = split_path("encryptionConfig.provider.keyArn")
    assert effect("aws:eks/cluster:Cluster", path, "k", None) is MAYBE
    assert (
        effect("aws:eks/cluster:Cluster", ("encryptionConfig",), {"provider": {"keyArn": "k"}}, None)
        is REPLACE
    )


@pytest.mark.parametrize(
    "text", ["", "smaller", "shrinks from 1 to 2", "changes of a", "added if a", "removed if a is"]
)
def test_a_condition_that_cannot_be_read_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a condition"):
        condition("a", text)


def test_a_condition_in_a_list_reads_the_same_item() -> None:
    each = condition("disks[*].size", "shrinks if disks[*].kind is ssd")
    old = {"disks": [{"size": 1, "kind": "hdd"}, {"size": 9, "kind": "ssd"}]}
    new = {"disks": [{"size": 0, "kind": "hdd"}, {"size": 3, "kind": "ssd"}]}

    def values(path: tuple[str, ...]) -> tuple[Any, Any]:
        return value_at(old, path), value_at(new, path)

    assert each.holds(split_path("disks[0].size"), values) is False
    assert each.holds(split_path("disks[1].size"), values) is True


def test_every_type_with_rules_names_their_source() -> None:
    assert "lustre" in source(LUSTRE)
    assert source("aws:invented/type:Type") == ""
