"""Relations between resources: each rule with a wrong and a right program, by record."""

from __future__ import annotations

from typing import Any

import pytest

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
from trainfleet.rehearsal.simulation.gcp.answers import FINDERS


def link(name: str, folder: str, prefix: str, filesystem: str = "fs-1") -> CloudObject:
    return record(
        "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation",
        name,
        fileSystemId=filesystem,
        fileSystemPath=folder,
        dataRepositoryPath=f"s3://bucket/{prefix}",
    )


DATASETS = link("datasets", "/datasets/", "datasets/")
GOOGLE_RANGE = record(
    "gcp:compute/globalAddress:GlobalAddress",
    "projects/p/global/addresses/google",
    purpose="VPC_PEERING",
    address="10.9.0.0",
    prefixLength=20,
    network="projects/p/global/networks/net",
)
GCP_LUSTRE = record("gcp:lustre/instance:Instance", "lustre", network="projects/p/global/networks/net")


def firewall(
    source: str = "10.9.0.0/20", ports: list[str] | None = None, protocol: str = "tcp", network: str = "net"
) -> CloudObject:
    allowed = {"protocol": protocol, **({"ports": ports} if ports else {})}
    return record(
        "gcp:compute/firewall:Firewall",
        "allow",
        network=f"https://www.googleapis.com/compute/v1/projects/p/global/networks/{network}",
        sourceRanges=[source],
        allows=[allowed],
    )


BUDGET = record("gcp:billing/budget:Budget", "budget", billingAccount="012345-6789AB-CDEF01")


def api(name: str) -> CloudObject:
    return record("gcp:projects/service:Service", f"p/{name}", service=f"{name}.googleapis.com")


def domains(**allow: Any) -> CloudObject:
    return record(
        "gcp:projects/organizationPolicy:OrganizationPolicy",
        "domains",
        constraint="constraints/iam.allowedPolicyMemberDomains",
        listPolicy={"allow": allow},
    )


def writer(member: str) -> CloudObject:
    return record("gcp:storage/bucketIAMMember:BucketIAMMember", "writer", member=member)


CALL_BACK = "no firewall rule of net admits TCP port 988 from 10.9.0.0/20"
VAULT_ID, SUBNET_ID, GROUP_ID = "/s/vaults/keys", "/s/subnets/lustre", "/s/nsg"
AMLFS = record(
    "azure-native:storagecache:AmlFilesystem",
    "/s/lustre",
    filesystemSubnet=SUBNET_ID,
    encryptionSettings={"keyEncryptionKey": {"keyUrl": "u", "sourceVault": {"id": VAULT_ID}}},
)


def inbound(priority: int, source: str, *, ports: str = "*", access: str = "Allow") -> dict[str, Any]:
    return {
        "priority": priority,
        "direction": "Inbound",
        "access": access,
        "protocol": "*",
        "sourceAddressPrefix": source,
        "destinationPortRange": ports,
    }


SERVERS, MONITOR = inbound(100, "10.0.16.0/20"), inbound(110, "AzureMonitor")
NOBODY = inbound(4096, "*", access="Deny")


def lustre_network(*rules: dict[str, Any], nat: bool = True) -> list[CloudObject]:
    group = record("azure-native:network:NetworkSecurityGroup", GROUP_ID, securityRules=list(rules))
    subnet = record(
        "azure-native:network:Subnet",
        SUBNET_ID,
        addressPrefix="10.0.16.0/24",
        networkSecurityGroup={"id": GROUP_ID},
        natGateway={"id": "/s/nat"} if nat else None,
        defaultOutboundAccess=False,
    )
    return [group, subnet]


def vault(access: str = "Enabled", bypass: str = "AzureServices") -> CloudObject:
    rules = {"defaultAction": "Deny", "bypass": bypass}
    return record(
        "azure-native:keyvault:Vault",
        VAULT_ID,
        properties={"publicNetworkAccess": access, "networkAcls": rules},
    )


OPEN = lustre_network(SERVERS, MONITOR, NOBODY)


RESERVED = "/subscriptions/s/resourceGroups/capacity/providers/Microsoft.Compute/capacityReservationGroups/a"
RESERVED_POOL = record(
    "azure-native:containerservice:AgentPool", "/s/pools/a", capacityReservationGroupID=RESERVED
)


def role(scope: str) -> CloudObject:
    return record("azure-native:authorization:RoleAssignment", f"{scope}/roles/1", scope=scope)


def kueue(kind: str, name: str, **spec: Any) -> CloudObject:
    return record(f"kubernetes:kueue.x-k8s.io/v1beta2:{kind}", name, metadata={"name": name}, spec=spec)


def node_pool(*, queued: bool = True) -> CloudObject:
    return record(
        "gcp:container/nodePool:NodePool",
        "pools/a100",
        queuedProvisioning={"enabled": queued},
        nodeConfig={"labels": {"pool": "a100", "gpu": "yes"}},
    )


def cluster_queue(**checks: Any) -> CloudObject:
    group = {"coveredResources": ["cpu"], "flavors": [{"name": "system"}, {"name": "a100"}]}
    strategy = {"admissionChecksStrategy": {"admissionChecks": [checks]}} if checks else {}
    return kueue("ClusterQueue", "training", resourceGroups=[group], **strategy)


FLAVORS = [
    kueue("ResourceFlavor", "a100", nodeLabels={"pool": "a100"}),
    kueue("ResourceFlavor", "system", nodeLabels={}),
]
PROVISIONED = [
    kueue(
        "AdmissionCheck",
        "dws",
        controllerName="kueue.x-k8s.io/provisioning-request",
        parameters={"kind": "ProvisioningRequestConfig", "name": "dws-config"},
    ),
    kueue("ProvisioningRequestConfig", "dws-config", provisioningClassName="queued-provisioning.gke.io"),
]
PLACED = kueue("ResourceFlavor", "a100", nodeLabels={"pool": "a100"}, topologyName="blocks")
BLOCKS = kueue("Topology", "blocks", levels=[{"nodeLabel": "example.com/block"}])
NO_REQUEST = "nodes of flavor a100 are added for a ProvisioningRequest of class queued-provisioning.gke.io"
FSX = record("aws:fsx/lustreFileSystem:LustreFileSystem", "fs-1", securityGroupIds=["sg-servers"])


def rule(kind: str, group: str, peer: str, low: int = 988, high: int = 988) -> CloudObject:
    return record(
        f"aws:vpc/securityGroup{kind}Rule:SecurityGroup{kind}Rule",
        f"{kind}-{group}-{low}",
        securityGroupId=group,
        referencedSecurityGroupId=peer,
        ipProtocol="tcp",
        fromPort=low,
        toPort=high,
    )


TO_NODES = [rule("Egress", "sg-servers", "sg-nodes"), rule("Egress", "sg-servers", "sg-nodes", 1018, 1023)]
FROM_SERVERS = rule("Ingress", "sg-nodes", "sg-servers")
REFUSED: list[Wrong] = [
    (
        "clients that do not admit the servers",
        [*TO_NODES, FROM_SERVERS],
        FSX,
        "security group sg-nodes has no ingress rule for ports 1018-1023 from the servers' group sg-servers",
    ),
    ("two links of one folder", [DATASETS], link("all", "/", ""), "fileSystemPath / overlaps /datasets/"),
    (
        "two links of one prefix",
        [DATASETS],
        link("copy", "/copy", "datasets/images/"),
        "dataRepositoryPath s3://bucket/datasets/images/ overlaps s3://bucket/datasets/ of datasets",
    ),
    (
        "a member of Google where domains are restricted",
        [domains(values=["C012345"])],
        writer("group:cloud-storage-analytics@google.com"),
        "group:cloud-storage-analytics@google.com is not of a domain that domains",
    ),
    (
        "a budget before its API",
        [api("compute"), api("billingbudgets")],
        BUDGET,
        "the API cloudbilling.googleapis.com is not enabled",
    ),
    ("Lustre without a firewall rule", [GOOGLE_RANGE], GCP_LUSTRE, CALL_BACK),
    (
        "Lustre with a rule for nodes only",
        [GOOGLE_RANGE, firewall("10.0.0.0/16", protocol="all")],
        GCP_LUSTRE,
        CALL_BACK,
    ),
    ("Lustre with a rule for NFS", [GOOGLE_RANGE, firewall(ports=["2049"])], GCP_LUSTRE, CALL_BACK),
    (
        "Lustre with a rule of another network",
        [GOOGLE_RANGE, firewall(network="other")],
        GCP_LUSTRE,
        CALL_BACK,
    ),
    (
        "servers without SSH",
        [*lustre_network(inbound(100, "10.0.0.0/8", ports="988-1023"), MONITOR, NOBODY), vault()],
        AMLFS,
        "denies port 22 among the servers in 10.0.16.0/24",
    ),
    (
        "a denial before the servers' rule",
        [*lustre_network(inbound(90, "*", access="Deny"), SERVERS, MONITOR), vault()],
        AMLFS,
        "denies port 22",
    ),
    (
        "servers that Azure Monitor cannot reach",
        [*lustre_network(SERVERS), vault()],
        AMLFS,
        "denies the service tag AzureMonitor",
    ),
    (
        "servers without egress",
        [*lustre_network(SERVERS, MONITOR, NOBODY, nat=False), vault()],
        AMLFS,
        "its subnet has no egress",
    ),
    (
        "a key in a closed vault",
        [*OPEN, vault("Disabled")],
        AMLFS,
        "in a vault without public network access",
    ),
    (
        "a key that trusted services cannot read",
        [*OPEN, vault(bypass="None")],
        AMLFS,
        "do not let trusted services pass",
    ),
    (
        "a reservation without a role",
        [role("/subscriptions/s/resourceGroups/capacity-2"), role(f"{RESERVED}-2")],
        RESERVED_POOL,
        "no role is assigned on capacityReservationGroupID",
    ),
    (
        "a key without a role",
        [*OPEN, vault(), role("/s/vaults/keys-2")],
        AMLFS,
        "no role is assigned on encryptionSettings.keyEncryptionKey.sourceVault.id /s/vaults/keys",
    ),
    (
        "a queued pool without an admission check",
        [*FLAVORS, *PROVISIONED, node_pool()],
        cluster_queue(),
        NO_REQUEST,
    ),
    (
        "a flavor whose topology does not exist",
        [PLACED],
        cluster_queue(),
        "flavor a100 places pods in the topology blocks, which does not exist",
    ),
    (
        "a flavor with a topology and without labels",
        [kueue("ResourceFlavor", "a100", nodeLabels={}, topologyName="blocks"), BLOCKS],
        cluster_queue(),
        "flavor a100 has a topology and no nodeLabels",
    ),
    (
        "an admission check of another flavor",
        [*FLAVORS, *PROVISIONED, node_pool()],
        cluster_queue(name="dws", onFlavors=["system"]),
        NO_REQUEST,
    ),
    (
        "an admission check without its configuration",
        [*FLAVORS, PROVISIONED[0], node_pool()],
        cluster_queue(name="dws"),
        NO_REQUEST,
    ),
]
ALLOWED: list[Right] = [
    (
        "clients that admit the servers",
        [*TO_NODES, FROM_SERVERS, rule("Ingress", "sg-nodes", "sg-servers", 1018, 1023)],
        FSX,
    ),
    ("servers that reach no clients", [rule("Egress", "sg-other", "sg-nodes")], FSX),
    ("links of two folders", [DATASETS], link("runs", "/runs/", "runs/")),
    ("folders with a common beginning", [DATASETS], link("more", "/datasets-2/", "datasets-2/")),
    ("a budget after its APIs", [api("billingbudgets"), api("cloudbilling")], BUDGET),
    ("a member where domains are restricted", [domains(values=["C1"])], writer("user:a@example.com")),
    ("a member of Google where all are allowed", [domains(all=True)], writer("group:a@google.com")),
    ("a member of Google without a policy", [], writer("group:a@google.com")),
    ("a budget where APIs are on", [], BUDGET),
    ("Lustre with its rule", [GOOGLE_RANGE, firewall(ports=["988"])], GCP_LUSTRE),
    ("Lustre with a range of ports", [GOOGLE_RANGE, firewall("10.0.0.0/8", ["900-1100"])], GCP_LUSTRE),
    ("a file system of Azure with its prerequisites", [*OPEN, vault()], AMLFS),
    ("a file system of Azure by the default rules", [*lustre_network(MONITOR), vault()], AMLFS),
    (
        "a queued pool with its admission check",
        [*FLAVORS, *PROVISIONED, node_pool()],
        cluster_queue(name="dws", onFlavors=["a100"]),
    ),
    ("a pool that grows by itself", [*FLAVORS, node_pool(queued=False)], cluster_queue()),
    ("a reservation with a role", [role(RESERVED.lower())], RESERVED_POOL),
    ("a reservation in a group with a role", [role(RESERVED.partition("/providers")[0])], RESERVED_POOL),
    ("a program without roles", [], RESERVED_POOL),
    ("a flavor with its topology", [PLACED, BLOCKS], cluster_queue()),
    ("a role on a key of the vault", [*OPEN, vault(), role(f"{VAULT_ID}/keys/data")], AMLFS),
    ("links of two file systems", [DATASETS], link("all", "/", "datasets/", "fs-2")),
]


@each_wrong(REFUSED)
def test_a_missing_relation_is_rejected(there: list[CloudObject], what: CloudObject, output: str) -> None:
    assert_rejected(there, what, output)


@each_right(ALLOWED)
def test_a_relation_that_holds_is_accepted(there: list[CloudObject], what: CloudObject) -> None:
    assert_accepted(there, what)


@pytest.mark.parametrize(
    ("enabled", "account"),
    [((), True), (("compute",), False), (("compute", "cloudbilling"), True)],
)
def test_a_project_has_no_billing_account_until_its_api_is_on(
    enabled: tuple[str, ...], account: bool
) -> None:
    find = FINDERS["gcp:organizations/getProject:getProject"]
    found = find({"projectId": "p"}, "", [api(name) for name in enabled])
    assert bool(found["billingAccount"]) is account
