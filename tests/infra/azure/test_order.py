"""The order in which a platform is made and unmade, on the real engine over the simulated clouds, and what it
then hands out.

One apply and one destroy serve all tests of this file. The order on destroy is what leaves nothing behind at
Azure.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.infra.azure.platforms import LAUNCHERS, RESERVATION, SMALL, SUBSCRIPTION
from tests.infra.lifecycle import Lifecycle, order_of, run_lifecycle, waiting_for
from trainfleet.infra.azure import layout
from trainfleet.rehearsal.simulation.provider import CLOUD_MODELS

# The simulated provider reads every class of the SDK, the old ones too, and those warn.
pytestmark = [
    pytest.mark.deep,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]  # a whole life: AWS's is lived at every change

WHOLE = {
    **SMALL,
    "network": {**SMALL["network"], "nat": "per-zone"},
    "gpu_pools": [
        {
            "name": "h100",
            "accelerator": "H100",
            "per_node": 8,
            "max_nodes": 2,
            "interconnect": "best",
            "compact": True,
        },
        {
            "name": "a100-held",
            "accelerator": "A100-80GB",
            "per_node": 4,
            "max_nodes": 2,
            "capacity": "reserved",
            "reservation": RESERVATION,
            "zone": "2",
        },
        {"name": "t4", "accelerator": "T4", "max_nodes": 2, "capacity": "spot"},
    ],
    "kubernetes": {**SMALL["kubernetes"], "launchers": [LAUNCHERS]},
    "storage": {"shared_filesystem": {"kind": "lustre", "capacity_gib": 16384}},
    "secrets": {"names": ["hf-token"]},
    "budget": {"monthly_usd": 5000},
}


@pytest.fixture(scope="module")
def life(root: Path) -> Lifecycle:
    return run_lifecycle(
        root,
        "azure-dev",
        {
            "azure-native:location": "eastus",
            "azure-native:subscriptionId": SUBSCRIPTION,
            "trainfleet:platform": WHOLE,
        },
    )


NODES = "azure-native:containerservice:AgentPool"
GPU_AGENTS = "lab-infiniband-*"
CLUSTER = "azure-native:containerservice:ManagedCluster"
SUBNET = "azure-native:network:Subnet"
GROUP = "azure-native:resources:ResourceGroup"


@pytest.mark.parametrize(
    ("first", "then", "why"),
    [
        (
            "kubernetes:*",
            "lab-system",
            "pods, volumes and load balancers end while there are nodes to end them",
        ),
        (GPU_AGENTS, NODES, "the agents of GPU nodes end while there are nodes to end them"),
        (
            "kubernetes:*",
            "azure-native:managedidentity:FederatedIdentityCredential",
            "a controller cleans up with the identity it has",
        ),
        ("kubernetes:*", "lab-secrets-read", "a controller cleans up with the role it has"),
        (NODES, CLUSTER, "pools are part of the cluster"),
        (NODES, "lab-nodes-pull-images", "a node that is drained may still pull"),
        (NODES, "azure-native:network:PrivateDnsZoneGroup", "nodes are drained with a way to Azure"),
        (NODES, "azure-native:network:NatGateway", "nodes need egress while they are drained"),
        (NODES, "azure-native:compute:ProximityPlacementGroup", "a group in use cannot be deleted"),
        (NODES, f"lab-{layout.reservation_name(RESERVATION)}-use", "nodes are given back with the role"),
        (NODES, "lab-h100-placement-use", "the cluster leaves a group with the role it joined it by"),
        (CLUSTER, SUBNET, "the control plane has interfaces in its subnet"),
        (CLUSTER, "lab-cluster-joins-nodes", "AKS takes its interfaces out of the subnets with this"),
        (CLUSTER, "lab-cluster-encrypts", "the control plane reads its secrets with this to the end"),
        (CLUSTER, "lab-cluster-identity", "AKS cleans up with the identity"),
        ("azure-native:network:FlowLog", "lab-flow-account", "records are written until the end"),
        ("azure-native:storagecache:AmlFilesystem", "lab-lustre-subnet", "a subnet in use cannot be deleted"),
        ("azure-native:storagecache:AmlFilesystem", "lab-lustre-encrypts", "disks are detached with the key"),
        ("azure-native:network:PrivateEndpoint", "lab-endpoints-subnet", "a subnet in use cannot be deleted"),
        (SUBNET, "azure-native:network:NetworkSecurityGroup", "a group in use cannot be deleted"),
        (SUBNET, "azure-native:network:NatGateway", "a gateway in use cannot be deleted"),
        (
            "azure-native:network:NatGateway",
            "azure-native:network:PublicIPAddress",
            "an address in use cannot be released",
        ),
        (
            "azure-native:storage:StorageAccount",
            "lab-data-key",
            "what a key encrypts goes before the key",
        ),
        (
            "azure-native:storage:StorageAccount",
            "lab-data-encrypts",
            "an account that cannot reach its key cannot be deleted cleanly",
        ),
        (SUBNET, "azure-native:network:VirtualNetwork", "the network goes after all in it"),
        ("azure-native:network:VirtualNetwork", GROUP, "the groups go last"),
    ],
)
def test_on_destroy_all_of_one_kind_are_gone_before_the_other_goes(
    life: Lifecycle, first: str, then: str, why: str
) -> None:
    assert max(order_of(life.unmade, first)) < min(order_of(life.unmade, then)), why


@pytest.mark.parametrize(
    ("first", "then", "why"),
    [
        (GROUP, "azure-native:network:VirtualNetwork", "everything is in a group"),
        (
            "azure-native:network:PrivateDnsZoneGroup",
            CLUSTER,
            "a node that does not find the registry pulls nothing",
        ),
        (
            "azure-native:privatedns:VirtualNetworkLink",
            CLUSTER,
            "a name is answered only in a linked network",
        ),
        ("lab-cluster-encrypts", CLUSTER, "a control plane without its key stores no secret"),
        ("lab-cluster-joins-*", CLUSTER, "AKS checks at once whether it may join the subnets"),
        (
            "lab-cluster-uses-kubelet",
            CLUSTER,
            "AKS checks at once whether it may hand out the nodes' identity",
        ),
        ("lab-nodes-pull-images", NODES, "a node that may not pull never becomes ready"),
        (
            "lab-data-encrypts",
            "azure-native:storage:StorageAccount",
            "an account is made with its key or never",
        ),
        ("lab-disks-encrypt", "azure-native:compute:DiskEncryptionSet", "a set without its key is refused"),
        (
            "lab-bucket-settings",
            "azure-native:storage:BlobContainer",
            "what is deleted by mistake before soft delete is on is lost",
        ),
        (
            "azure-native:managedidentity:FederatedIdentityCredential",
            "kubernetes:*",
            "a pod asks for its token when it starts",
        ),
        ("lab-training-writes-runs", "kubernetes:*", "a run that may not save fails at its first checkpoint"),
        ("lab-system", "kubernetes:*", "the cluster layer needs a node to run on"),
    ],
)
def test_on_apply_one_kind_exists_before_the_other(life: Lifecycle, first: str, then: str, why: str) -> None:
    assert max(order_of(life.made, first)) < min(order_of(life.made, then)), why


def test_only_agents_of_gpu_nodes_wait_for_gpu_pools(life: Lifecycle) -> None:
    """A pool that is refused must hold up nothing that runs on CPU nodes."""
    assert waiting_for(life, {"lab-h100", "lab-a100-held", "lab-t4"}) == {
        "lab-infiniband-config",
        "lab-infiniband-device-plugin",
        "lab-nvidia-device-plugin",
        "lab-dcgm-exporter",
    }


def test_destroy_leaves_nothing_outside_production(life: Lifecycle) -> None:
    assert life.left == 0
    assert len(life.unmade) == len(life.made)


def test_the_outputs_are_the_contract(life: Lifecycle) -> None:
    outputs = life.outputs
    assert (outputs.kube_context, outputs.namespace, outputs.service_account) == (
        "trainfleet-lab",
        "training",
        "trainer",
    )
    assert outputs.bucket_url.startswith("az://runs@labdata")
    assert outputs.bucket_url.endswith(".blob.core.windows.net")
    assert outputs.registry.endswith(".azurecr.io/training")
    assert outputs.image.startswith(f"{outputs.registry}:")
    assert len(outputs.training_identity) == 36
    assert outputs.shared_volume == "shared"
    h100, held, t4 = outputs.pools
    assert (h100.rdma, h100.rdma_resource, h100.rdma_nics) == ("infiniband", "rdma/ib", 8)
    assert (held.rdma, held.rdma_resource, held.spot) == ("none", "", False)
    assert t4.spot
    assert {"nvidia.com/gpu", "kubernetes.azure.com/scalesetpriority"} == {
        each["key"] for each in t4.tolerations
    }
    assert h100.node_selector == {"trainfleet.io/pool": "h100"}


def test_the_kubeconfig_that_is_handed_out_names_the_cluster_and_no_credential(life: Lifecycle) -> None:
    document: dict[str, Any] = json.loads(life.outputs.kubeconfig)
    assert document["clusters"][0]["cluster"]["server"].startswith("https://")
    assert set(document["users"][0]["user"]) == {"exec"}


def test_the_cluster_layer_stays_when_endpoint_or_certificate_change_and_goes_with_the_cluster(
    life: Lifecycle,
) -> None:
    now = life.inputs["lab-kubernetes-provider"]
    moved = {**now, "kubeconfig": now["kubeconfig"].replace("https://", "https://new-")}
    assert moved != now
    assert CLOUD_MODELS["kubernetes"].config_replaces(now, moved) == []
    assert CLOUD_MODELS["kubernetes"].config_replaces(
        now, {**now, "clusterIdentifier": "trainfleet-lab@later"}
    ) == ["clusterIdentifier"]
    assert now["clusterIdentifier"].startswith("trainfleet-lab@")


def test_a_pool_that_is_bound_to_a_zone_uses_the_nat_gateway_of_that_zone(life: Lifecycle) -> None:
    h100, held, spot = (life.inputs[f"lab-{name}"] for name in ("h100", "a100-held", "t4"))
    assert (h100["availabilityZones"], held["availabilityZones"], spot["availabilityZones"]) == (
        ["1"],
        ["2"],
        ["1", "2"],
    )
    assert len({h100["vnetSubnetID"], held["vnetSubnetID"], spot["vnetSubnetID"]}) == 3
    assert [life.inputs[f"lab-nat-nodes-{zone}"]["zones"] for zone in ("1", "2")] == [["1"], ["2"]]
    assert "zones" not in life.inputs["lab-nat-nodes"]


def test_what_is_reserved_is_not_placed_and_what_is_compact_is(life: Lifecycle) -> None:
    assert life.inputs["lab-a100-held"]["capacityReservationGroupID"] == RESERVATION
    assert "proximityPlacementGroupID" not in life.inputs["lab-a100-held"]
    assert life.inputs["lab-h100"]["proximityPlacementGroupID"]
    assert (life.inputs["lab-h100"]["minCount"], life.inputs["lab-h100"]["maxCount"]) == (0, 2)
    assert "count" not in life.inputs["lab-h100"]  # it is the autoscaler's


@pytest.mark.parametrize(
    ("user", "value", "roles"),
    [
        ("aks", "securityProfile", {"cluster-encrypts", "cluster-reaches-keys"}),
        ("aks", "identityProfile", {"cluster-uses-kubelet"}),
        ("disks", "activeKey", {"disks-encrypt"}),
        ("bucket-account", "encryption", {"data-encrypts"}),
        ("a100-held", "capacityReservationGroupID", {f"{layout.reservation_name(RESERVATION)}-use"}),
    ],
)
def test_a_role_that_azure_checks_once_is_in_effect_before_its_use(
    life: Lifecycle, user: str, value: str, roles: set[str]
) -> None:
    """The value is computed from the time of the assignment (once_in_effect)."""
    assert {f"lab-{role}" for role in roles} <= life.values[f"lab-{user}"][value]


def test_every_subnet_has_a_security_group_and_no_implicit_egress(life: Lifecycle) -> None:
    subnets = {name: inputs for name, inputs in life.inputs.items() if name.endswith("-subnet")}
    assert len(subnets) == 6
    for name, inputs in subnets.items():
        assert inputs["networkSecurityGroup"]["id"], name
        assert inputs["defaultOutboundAccess"] is False, name


def test_no_role_is_given_on_more_than_one_resource(life: Lifecycle) -> None:
    scopes = [inputs["scope"] for inputs in life.inputs.values() if "roleDefinitionId" in inputs]
    assert scopes
    assert [scope for scope in scopes if "/providers/" not in scope] == []


def test_nobody_has_a_key_to_the_bucket_and_only_the_named_ranges_come_from_outside(life: Lifecycle) -> None:
    accounts = [inputs for inputs in life.inputs.values() if "allowSharedKeyAccess" in inputs]
    assert len(accounts) == 2
    for account in accounts:
        assert (account["allowSharedKeyAccess"], account["allowBlobPublicAccess"]) == (False, False)
        rules = account["networkRuleSet"]
        assert rules["defaultAction"] == "Deny"
        assert [rule["iPAddressOrRange"] for rule in rules["ipRules"]] in (
            [],
            SMALL["kubernetes"]["access"]["public_ranges"],
        )
    assert sorted(account["publicNetworkAccess"] for account in accounts) == ["Disabled", "Enabled"]
