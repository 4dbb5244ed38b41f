"""Rules of a cloud that depend on what else exists: each kind, on each cloud, by record and by the engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainfleet.rehearsal.engine.find import Engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.rehearsal.rehearse import RehearsalOptions, rehearse
from trainfleet.rehearsal.simulation.cloud_object import CloudObject
from trainfleet.rehearsal.simulation.facts.custom import custom_kinds
from trainfleet.rehearsal.simulation.schema import packages
from trainfleet.rehearsal.simulation.state import Cloud, RefusedError
from trainfleet.rehearsal.simulation.stateful_rules import rules
from trainfleet.rehearsal.simulation.stateful_rules.agreements import AGREEMENT_KINDS

VNET = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/virtualNetworks/net"


def record(token: str, resource_id: str, outputs: dict[str, Any] | None = None, **inputs: Any) -> CloudObject:
    return CloudObject(
        f"urn:pulumi:s::p::{token}::{resource_id.rsplit('/', 1)[-1]}",
        token,
        resource_id,
        "",
        inputs,
        {**inputs, **(outputs or {})},
    )


VPC = record("aws:ec2/vpc:Vpc", "vpc-1", cidrBlock="10.0.0.0/16")
NETWORK = record("gcp:compute/network:Network", "projects/p/global/networks/net", {"name": "net"})
AZURE_NETWORK = record(
    "azure-native:network:VirtualNetwork",
    VNET,
    {"name": "net"},
    addressSpace={"addressPrefixes": ["10.0.0.0/16"]},
)
EGRESS = record("azure-native:network:NatGateway", "/subscriptions/s/nat")


def subnet(resource_id: str, cidr: str, zone: str = "a") -> CloudObject:
    return record("aws:ec2/subnet:Subnet", resource_id, vpcId="vpc-1", cidrBlock=cidr, availabilityZone=zone)


GKE = record("gcp:container/cluster:Cluster", "projects/p/locations/r/clusters/prod")
EKS = record("aws:eks/cluster:Cluster", "other")


def agent(namespace: str, name: str = "agent", place: str = GKE.id) -> CloudObject:
    found = record(
        "kubernetes:apps/v1:DaemonSet",
        name,
        metadata={"name": name, "namespace": namespace},
        spec={"template": {"spec": {"priorityClassName": "system-node-critical"}}},
    )
    found.place = place
    return found


def critical_quota(namespace: str, scope: dict[str, Any] | None = None, place: str = GKE.id) -> CloudObject:
    scope = scope or {
        "scopeName": "PriorityClass",
        "operator": "In",
        "values": ["system-node-critical", "system-cluster-critical"],
    }
    found = record(
        "kubernetes:core/v1:ResourceQuota",
        "critical-pods",
        metadata={"name": "critical-pods", "namespace": namespace},
        spec={"hard": {"pods": "1G"}, "scopeSelector": {"matchExpressions": [scope]}},
    )
    found.place = place
    return found


TAG = "k8s.io_cluster-autoscaler_node-template_resources_rdma_ib"


def pool(pool_name: str = "h100", least: int = 0, **tags: str) -> CloudObject:
    return record(
        "azure-native:containerservice:AgentPool",
        f"/subscriptions/s/agentPools/{pool_name}",
        agentPoolName=pool_name,
        enableAutoScaling=True,
        minCount=least,
        nodeLabels={"pool": pool_name},
        tags=tags,
    )


PLUGIN_SETTINGS = record(
    "kubernetes:core/v1:ConfigMap",
    "settings",
    metadata={"name": "settings", "namespace": "agents"},
    data={"config.json": '{"configList": [{"resourceName": "ib", "resourcePrefix": "rdma"}]}', "notes": "-"},
)


def plugin(pool_name: str = "h100") -> CloudObject:
    terms = [{"matchExpressions": [{"key": "pool", "operator": "In", "values": [pool_name]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return record(
        "kubernetes:apps/v1:DaemonSet",
        "plugin",
        metadata={"name": "plugin", "namespace": "agents"},
        spec={
            "template": {
                "spec": {
                    "containers": [{"image": "ghcr.io/mellanox/k8s-rdma-shared-dev-plugin:v1.5.3"}],
                    "volumes": [{"name": "config", "configMap": {"name": "settings"}}],
                    "affinity": {"nodeAffinity": required},
                }
            }
        },
    )


NO_NODE = "pool h100 starts without a node, and the autoscaler does not know that its nodes have rdma/ib"
NO_POD = "GKE would admit no pod of it: class system-node-critical needs a ResourceQuota in namespace agents"
REFUSED: list[tuple[str, list[CloudObject], str, CloudObject, str]] = [
    (
        "range outside",
        [VPC],
        "create",
        subnet("subnet-1", "10.1.0.0/24"),
        "10.1.0.0/24 is not inside 10.0.0.0/16 of vpc-1",
    ),
    (
        "ranges overlap",
        [VPC, subnet("subnet-1", "10.0.0.0/20")],
        "create",
        subnet("subnet-2", "10.0.8.0/24"),
        "overlaps 10.0.0.0/20 of subnet-1",
    ),
    (
        "in use",
        [VPC, subnet("subnet-1", "10.0.0.0/20")],
        "delete",
        VPC,
        "vpc-1 is still in use by subnet-1 (vpcId)",
    ),
    (
        "one zone",
        [VPC, subnet("subnet-1", "10.0.0.0/20"), subnet("subnet-2", "10.0.16.0/20")],
        "create",
        record("aws:eks/cluster:Cluster", "c", vpcConfig={"subnetIds": ["subnet-1", "subnet-2"]}),
        "must be in at least 2 zones, and all are in a",
    ),
    (
        "bucket with objects",
        [
            record("aws:s3/bucket:Bucket", "b"),
            record("aws:s3/bucketObjectv2:BucketObjectv2", "o", bucket="b"),
        ],
        "delete",
        record("aws:s3/bucket:Bucket", "b"),
        "b is still in use by o",
    ),
    (
        "ranges overlap on Google Cloud",
        [
            NETWORK,
            record("gcp:compute/subnetwork:Subnetwork", "s1", network=NETWORK.id, ipCidrRange="10.0.0.0/20"),
        ],
        "create",
        record(
            "gcp:compute/subnetwork:Subnetwork",
            "s2",
            network="net",
            ipCidrRange="10.1.0.0/20",
            secondaryIpRanges=[{"ipCidrRange": "10.0.0.0/24"}],
        ),
        "10.0.0.0/24 overlaps 10.0.0.0/20 of s1",
    ),
    (
        "in use on Google Cloud",
        [NETWORK, record("gcp:compute/router:Router", "r", network=NETWORK.id)],
        "delete",
        NETWORK,
        "is still in use by r (network)",
    ),
    (
        "range outside on Azure",
        [AZURE_NETWORK],
        "create",
        record("azure-native:network:Subnet", "s", virtualNetworkName="net", addressPrefix="10.2.0.0/24"),
        "10.2.0.0/24 is not inside 10.0.0.0/16 of net",
    ),
    (
        "in use on Azure",
        [
            EGRESS,
            record("azure-native:network:Subnet", "s", virtualNetworkName="x", natGateway={"id": EGRESS.id}),
        ],
        "delete",
        EGRESS,
        "is still in use by s (natGateway.id)",
    ),
    (
        "quota",
        [record("aws:ec2/vpc:Vpc", f"vpc-{n}") for n in range(5)],
        "create",
        record("aws:ec2/vpc:Vpc", "vpc-9"),
        "the quota is 5 of aws:ec2/vpc:Vpc",
    ),
    ("critical pods without a quota", [GKE], "create", agent("agents"), NO_POD),
    (
        "critical pods with a quota in another namespace",
        [GKE, critical_quota("others")],
        "create",
        agent("agents"),
        NO_POD,
    ),
    (
        "critical pods with a quota of another class",
        [GKE, critical_quota("agents", {"scopeName": "PriorityClass", "operator": "In", "values": ["low"]})],
        "create",
        agent("agents"),
        NO_POD,
    ),
    (
        "critical pods with a quota in another cluster",
        [GKE, critical_quota("agents", place="elsewhere")],
        "create",
        agent("agents"),
        NO_POD,
    ),
    (
        "critical pods of the only cluster",
        [GKE],
        "create",
        agent("agents", place="a-digest"),
        NO_POD,
    ),
    ("a resource of an empty pool", [PLUGIN_SETTINGS, pool()], "create", plugin(), NO_NODE),
    (
        "another resource in the tags",
        [PLUGIN_SETTINGS, pool(**{TAG.replace("ib", "other"): "63"})],
        "create",
        plugin(),
        f"add the tag {TAG}",
    ),
]


def done(cloud: Cloud, verb: str, what: CloudObject) -> None:
    if verb == "create":
        cloud.create(what)
    else:
        cloud.delete(what.token, what.id, what.urn)


@pytest.mark.parametrize(
    ("there", "verb", "what", "output"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_what_else_exists_can_forbid_an_operation(
    there: list[CloudObject], verb: str, what: CloudObject, output: str
) -> None:
    cloud = Cloud(records={each.key: each for each in there})
    with pytest.raises(RefusedError) as caught:
        done(cloud, verb, what)
    assert output in str(caught.value)
    assert {each.key for each in there} == set(cloud.records)


ALLOWED: list[tuple[str, list[CloudObject], str, CloudObject]] = [
    (
        "adjacent ranges",
        [VPC, subnet("subnet-1", "10.0.0.0/20")],
        "create",
        subnet("subnet-2", "10.0.16.0/20"),
    ),
    (
        "two zones",
        [VPC, subnet("subnet-1", "10.0.0.0/20"), subnet("subnet-2", "10.0.16.0/20", "b")],
        "create",
        record("aws:eks/cluster:Cluster", "c", vpcConfig={"subnetIds": ["subnet-1", "subnet-2"]}),
    ),
    (
        "a bucket that may be emptied",
        [
            record("aws:s3/bucket:Bucket", "b", forceDestroy=True),
            record("aws:s3/bucketObjectv2:BucketObjectv2", "o", bucket="b"),
        ],
        "delete",
        record("aws:s3/bucket:Bucket", "b"),
    ),
    (
        "a second range of the network",
        [
            VPC,
            record(
                "aws:ec2/vpcIpv4CidrBlockAssociation:VpcIpv4CidrBlockAssociation",
                "more",
                vpcId="vpc-1",
                cidrBlock="10.1.0.0/16",
            ),
        ],
        "create",
        subnet("subnet-1", "10.1.0.0/24"),
    ),
    (
        "the same ranges in another network",
        [
            NETWORK,
            record("gcp:compute/subnetwork:Subnetwork", "s1", network="other", ipCidrRange="10.0.0.0/20"),
        ],
        "create",
        record("gcp:compute/subnetwork:Subnetwork", "s2", network="net", ipCidrRange="10.0.0.0/20"),
    ),
    ("critical pods with a quota", [GKE, critical_quota("agents")], "create", agent("agents")),
    ("critical pods in kube-system", [GKE], "create", agent("kube-system")),
    ("a resource in the tags", [PLUGIN_SETTINGS, pool(**{TAG: "63"})], "create", plugin()),
    ("a resource of a pool with a node", [PLUGIN_SETTINGS, pool(least=1)], "create", plugin()),
    ("a resource of another pool", [PLUGIN_SETTINGS, pool()], "create", plugin("a100")),
    ("critical pods on EKS", [GKE, EKS], "create", agent("agents", place="other@2026")),
]


@pytest.mark.parametrize(
    ("there", "verb", "what"), [row[1:] for row in ALLOWED], ids=[row[0] for row in ALLOWED]
)
def test_what_is_allowed_goes_through(there: list[CloudObject], verb: str, what: CloudObject) -> None:
    done(Cloud(records={each.key: each for each in there}), verb, what)


def test_a_quota_can_be_raised() -> None:
    cloud = Cloud(
        records={
            ("aws:ec2/vpc:Vpc", f"vpc-{n}", ""): record("aws:ec2/vpc:Vpc", f"vpc-{n}") for n in range(5)
        },
        quotas={"aws:ec2/vpc:Vpc": 6},
    )
    cloud.create(record("aws:ec2/vpc:Vpc", "vpc-9"))
    with pytest.raises(RefusedError, match="the quota is 6"):
        cloud.create(record("aws:ec2/vpc:Vpc", "vpc-10"))


def rows_of(kind: str) -> list[dict[str, Any]]:
    return [row for rows in rules()[kind].values() for row in rows]


def references(row: dict[str, Any]) -> list[str]:
    """The texts of a row that are a type and a path in it."""
    values = [
        value
        for key, given in row.items()
        if key not in ("source", "network", "what", "say", "inline")
        for value in (given if isinstance(given, list) else [given])
    ]
    return [value for value in values if isinstance(value, str) and " " in value]


@pytest.mark.parametrize(
    ("kind", "row"),
    [(kind, row) for kind in sorted(rules().keys() - AGREEMENT_KINDS) for row in rows_of(kind)],
)
def test_a_row_has_a_source_and_names_types_and_inputs_that_exist(kind: str, row: dict[str, Any]) -> None:
    assert "." in row["source"], kind
    # the path of `network` is in the type that the row is about
    network, _, reference = row.get("network", "").partition(" ")
    paths = [
        (row["type"], *row.get("ranges", ()), *filter(None, [reference])),
        *([(network, *row["of"])] if network else []),
        *(tuple(text.split(" ")) for text in references(row)),
    ]
    for token, *inside in paths:
        group, _, name = token.removeprefix("kubernetes:").partition("/")
        if kinds := custom_kinds(group):
            assert name in kinds, token
            continue
        resource = packages()[token.split(":", maxsplit=1)[0]].resource(token)
        assert resource is not None, token
        assert [
            path for path in inside if path.split(".")[0] not in {*resource.inputs, *resource.outputs}
        ] == [], token


def test_a_program_hears_of_an_overlap_at_apply(engine: Engine, program: Callable[[str], Path]) -> None:
    code = 'vpc = aws.ec2.Vpc("vpc", cidr_block="10.0.0.0/16")\n'
    code += "".join(
        f'aws.ec2.Subnet("{name}", vpc_id=vpc.id, cidr_block="{cidr}")\n'
        for name, cidr in (("a", "10.0.0.0/20"), ("b", "10.0.8.0/24"))
    )
    report = rehearse(read_project(program(code)), engine)
    assert not report.ok
    assert any(
        "overlaps" in str(problem) and "aws:ec2/subnet:Subnet" in str(problem) for problem in report.problems
    ), report.problems


def test_a_quota_of_the_command_line_is_obeyed(engine: Engine, program: Callable[[str], Path]) -> None:
    folder = program("\n".join(f'aws.ec2.Vpc("vpc-{n}", cidr_block="10.{n}.0.0/16")' for n in range(2)))
    report = rehearse(read_project(folder), engine, RehearsalOptions(quotas={"aws:ec2/vpc:Vpc": 1}))
    assert any("the quota is 1" in str(problem) for problem in report.problems), report.problems
