"""Resources that must agree with what they refer to: every row, with a wrong and a right program by record."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rehearsal.agreement_resources import (
    ACL,
    AKS,
    AWAY,
    AZURE_NAT,
    BALANCER,
    BUCKET,
    CONNECTION,
    ENDPOINT,
    GATEWAY,
    GCP_NET,
    GCP_SUBNET,
    GCS_ACL,
    HOME,
    INTERFACE,
    NAT,
    NETWORK,
    NODES,
    POOL,
    PRIVATE_NAT,
    PRIVATE_SQL,
    REPLICATION,
    SUBNET_ID,
    TAKEN,
    ZONE,
    account,
    address,
    block,
    bucket_policy,
    cloud_nat,
    container,
    databases,
    dns,
    encrypted,
    gcs,
    gke,
    in_vpc,
    key,
    machine,
    owners,
    reader,
    readers,
    repository,
    role,
    routed,
    routers,
    table,
    versions,
    vnet,
)
from tests.rehearsal.relation_cases import (
    Right,
    Wrong,
    assert_accepted,
    assert_rejected,
    each_right,
    each_wrong,
    record,
)
from trainfleet.rehearsal.simulation.cloud_object import CloudObject
from trainfleet.rehearsal.simulation.schema import packages
from trainfleet.rehearsal.simulation.stateful_rules import rules
from trainfleet.rehearsal.simulation.stateful_rules.agreements import AGREEMENT_KINDS

WRONG: list[Wrong] = [
    ("a route table of another VPC", [*NETWORK, table(AWAY)], routed(AWAY), f"VPC {HOME}, and routeTableId"),
    *(
        (f"a {name} with a group of another VPC", NETWORK, what, f"VPC {AWAY}")
        for name, what in in_vpc(["foreign"])
    ),
    *(
        (f"a role that {service} may not take", [role("backup.amazonaws.com")], what, f"allow {service}.")
        for service, what in TAKEN
    ),
    ("a role that is denied", [role("eks.amazonaws.com", effect="Deny")], TAKEN[1][1], "does not allow eks."),
    ("a public NAT gateway in a closed VPC", NETWORK, NAT, "has no internet gateway"),
    ("replication without versions", [BUCKET], REPLICATION, "has no versioning"),
    ("replication with paused versions", [BUCKET, versions("Suspended")], REPLICATION, "has no versioning"),
    ("an ACL where the owner is enforced", [BUCKET], ACL, "allows no ACL"),
    ("an ACL against the ownership", [BUCKET, owners("BucketOwnerEnforced")], ACL, "allows no ACL"),
    ("a public policy of a new bucket", [BUCKET], bucket_policy("*"), "blocks public policies"),
    (
        "a public policy of a blocked bucket",
        [BUCKET, block(True)],
        bucket_policy({"AWS": "*"}),
        "blocks public policies",
    ),
    ("databases in one zone", NETWORK, databases("nodes"), "at least 2 zones"),
    ("a machine in another region", [GCP_SUBNET], machine("europe-west4-a"), "region europe-west4-a, and"),
    (
        "a cluster in another region",
        [GCP_SUBNET],
        gke("europe-west4", subnetwork=SUBNET_ID),
        "region us-central1",
    ),
    (
        "a subnet of another network",
        [GCP_SUBNET],
        gke(network="projects/p/global/networks/other", subnetwork=SUBNET_ID),
        "and subnetwork in network",
    ),
    ("NAT in another region", routers("us-central1"), cloud_nat("us-east1"), "router in region us-central1"),
    ("a bucket's key elsewhere", [key("us-east1")], encrypted("US-CENTRAL1", "us-east1"), "location"),
    (
        "a multi-region with a regional key",
        [key("us-east1")],
        encrypted("US", "us-east1"),
        "location US, and",
    ),
    ("a registry's key elsewhere", [key("us")], repository("us"), "kmsKeyName in location"),
    (
        "a cluster's key elsewhere",
        [key("us-east1")],
        gke(databaseEncryption={"keyName": key("us-east1").id}),
        "databaseEncryption.keyName in location",
    ),
    ("a private database without peering", [GCP_NET], PRIVATE_SQL, "no private services connection"),
    (
        "a public member of a private bucket",
        [gcs(publicAccessPrevention="enforced")],
        reader("allUsers"),
        "which forbids public members",
    ),
    (
        "public members of a private bucket",
        [gcs(publicAccessPrevention="enforced")],
        readers("user:a@example.com", "allAuthenticatedUsers"),
        "which forbids public members",
    ),
    ("ACLs with uniform access", [gcs(uniformBucketLevelAccess=True)], GCS_ACL, "which forbids ACLs"),
    ("a record of another zone", [ZONE], dns("runs.example.com."), "is not in zone ml.example.com."),
    ("a record with a similar end", [ZONE], dns("xml.example.com."), "is not in zone ml.example.com."),
    ("a pool in another region", [*vnet("northeurope"), AKS], POOL, "vnetSubnetID in region northeurope"),
    ("an interface in another region", vnet("northeurope"), INTERFACE, "in region northeurope"),
    ("an endpoint in another region", vnet("northeurope"), ENDPOINT, "in region northeurope"),
    ("a balancer with a basic address", [address("Basic")], BALANCER, "SKU Basic"),
    ("NAT with a basic address", [address("Basic")], AZURE_NAT, "which forbids a NAT gateway"),
    ("a public container of a private account", [account(public=False)], container("Blob"), "which forbids"),
]
RIGHT: list[Right] = [
    ("a route table of the VPC", [*NETWORK, table(HOME)], routed(HOME)),
    *((f"a {name} with a group of its VPC", NETWORK, what) for name, what in in_vpc(["local"])),
    *((f"a {name} with a group that exists elsewhere", NETWORK, what) for name, what in in_vpc(["sg-1"])),
    *((f"a role for {service}", [role(f"{service}.amazonaws.com")], what) for service, what in TAKEN),
    ("a role for a service in a region", [role("scheduler.us-east-2.amazonaws.com")], TAKEN[3][1]),
    ("a role for a service in China", [role("ec2.amazonaws.com.cn")], TAKEN[0][1]),
    ("a role of another program", [], TAKEN[0][1]),
    ("a public NAT gateway", [*NETWORK, GATEWAY], NAT),
    ("a private NAT gateway", NETWORK, PRIVATE_NAT),
    ("a NAT gateway in a VPC that exists", [NODES], NAT),
    ("replication with versions", [BUCKET, versions("Enabled")], REPLICATION),
    (
        "replication of a bucket with versions",
        [record("aws:s3/bucket:Bucket", "data", versioning={"enabled": True})],
        REPLICATION,
    ),
    ("an ACL of objects' writers", [BUCKET, owners("ObjectWriter")], ACL),
    ("a public policy that is not blocked", [BUCKET, block(False)], bucket_policy("*")),
    ("a policy for an account", [BUCKET], bucket_policy({"AWS": "arn:aws:iam::123456789012:root"})),
    (
        "a public policy with a condition",
        [BUCKET, block(True)],
        bucket_policy("*", Condition={"StringEquals": {"aws:PrincipalOrgID": "o-1"}}),
    ),
    ("databases in two zones", NETWORK, databases("nodes", "far")),
    ("a machine in a zone of the region", [GCP_SUBNET], machine("us-central1-a")),
    ("a zonal cluster", [GCP_SUBNET], gke("us-central1-c", subnetwork=SUBNET_ID)),
    ("a subnet of the network", [GCP_SUBNET], gke(network="net", subnetwork=SUBNET_ID)),
    ("NAT of a router", routers("us-central1"), cloud_nat("us-central1")),
    ("NAT of one of two routers", routers("us-east1", "us-central1"), cloud_nat("us-central1")),
    ("a bucket's key", [key("us-central1")], encrypted("US-CENTRAL1", "us-central1")),
    ("a European bucket's key", [key("europe")], encrypted("EU", "europe")),
    ("a registry's key", [key("us-central1")], repository("us-central1")),
    (
        "a cluster's key",
        [key("us-central1")],
        gke("us-central1-a", databaseEncryption={"keyName": key("us-central1").id}),
    ),
    ("a private database", [GCP_NET, CONNECTION], PRIVATE_SQL),
    ("a private database in a network that exists", [], PRIVATE_SQL),
    ("a public member", [gcs(publicAccessPrevention="inherited")], reader("allUsers")),
    ("a member", [gcs(publicAccessPrevention="enforced")], reader("user:a@example.com")),
    ("members", [gcs(publicAccessPrevention="enforced")], readers("group:team@example.com")),
    ("ACLs", [gcs(uniformBucketLevelAccess=False)], GCS_ACL),
    ("a record of the zone", [ZONE], dns("runs.ml.example.com.")),
    ("the zone's own record", [ZONE], dns("ml.example.com.")),
    ("a pool in the region", [*vnet("westeurope"), AKS], POOL),
    ("an interface in the region", vnet("West Europe"), INTERFACE),
    ("an endpoint in the region", vnet("westeurope"), ENDPOINT),
    ("a balancer with a standard address", [address("Standard")], BALANCER),
    ("NAT with a standard address", [address("Standard")], AZURE_NAT),
    ("a public container", [account(public=True)], container("Blob")),
    ("a private container", [account(public=False)], container("None")),
]


@each_wrong(WRONG)
def test_what_does_not_agree_is_rejected(there: list[CloudObject], what: CloudObject, output: str) -> None:
    assert_rejected(there, what, output)


@each_right(RIGHT)
def test_what_agrees_is_accepted(there: list[CloudObject], what: CloudObject) -> None:
    assert_accepted(there, what)


ROWS = [(kind, row) for kind in AGREEMENT_KINDS for rows in rules()[kind].values() for row in rows]


@pytest.mark.parametrize(("kind", "row"), ROWS, ids=[f"{kind}-{row['type']}" for kind, row in ROWS])
def test_a_row_has_a_source_and_a_wrong_program(kind: str, row: dict[str, Any]) -> None:
    assert "." in row["source"]
    for token, path in named_paths(kind, row):
        resource = packages()[token.partition(":")[0]].resource(token)
        assert resource is not None, token
        assert path == "." or path.split(".")[0] in {*resource.inputs, *resource.outputs}, (token, path)
    assert any(what.token == row["type"] for _, _, what, _ in WRONG), "no case in WRONG"
    assert any(what.token == row["type"] for _, _, what in RIGHT), "no case in RIGHT"


def named_paths(kind: str, row: dict[str, Any]) -> list[tuple[str, str]]:
    """Each type with a path in it that a row names."""
    found: list[tuple[str, str]] = []
    chains = [*row.get("sides", ()), *(row[name] for name in ("to", "zone") if name in row)]
    for chain in chains:
        path, *through = chain.split(" ")
        found += [(row["type"], path), *zip(through[::2], through[1::2], strict=True)]
    for each in row.get("by", ()):
        token, path, *condition = each.split(" ")
        found += [(token, path), *((token, name) for name in condition[:1])]
    if kind == "forbidden":
        path, token = row["of"].split(" ")
        found += [(row["type"], path), (token, row["setting"].split(" ")[0])]
    own = [row[name].split(" ")[0] for name in ("when", "unless", "role", "name") if name in row]
    buckets = [(token, ".") for token in (*row.get("buckets", ()), *filter(None, [row.get("block")]))]
    return [*found, *((row["type"], path) for path in own), *buckets]
