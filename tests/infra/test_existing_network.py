"""A platform in an existing network uses its subnets, and creates neither a network nor its routes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.infra.aws.platforms import SMALL as AWS
from tests.infra.azure.platforms import SMALL as AZURE
from tests.infra.azure.platforms import SUBSCRIPTION
from tests.infra.gcp.platforms import SMALL as GCP
from tests.infra.lifecycle import run_lifecycle
from trainfleet.infra.catalog.cost import bill
from trainfleet.infra.spec.load import parse_spec

# The simulated provider reads every class of the SDK, the old ones too, and those warn.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

VNET = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/net/providers/Microsoft.Network/virtualNetworks/shared"
BLOB = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/dns/providers/Microsoft.Network/privateDnsZones/blob"
NETWORKS: dict[str, dict[str, Any]] = {
    "aws": {
        "id": "vpc-0123456789abcdef0",
        "subnets": {
            "us-east-2a": "subnet-0123456789abcdef0",
            "us-east-2b": "subnet-0123456789abcdef1",
            "us-east-2c": "subnet-0123456789abcdef2",
        },
        "control_plane_subnets": ["subnet-0123456789abcdef3", "subnet-0123456789abcdef4"],
    },
    "gcp": {
        "id": "projects/my-host/global/networks/shared",
        "subnets": {"nodes": "projects/my-host/regions/us-central1/subnetworks/training"},
        "ranges": {"pods": "training-pods", "services": "training-services"},
    },
    "azure": {
        "id": VNET,
        "subnets": {name: f"{VNET}/subnets/{name}" for name in ("nodes", "endpoints", "control-plane")},
        "dns_zones": {"blob": BLOB},
    },
}
STACKS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "aws": ("aws-dev", AWS, {"aws:region": "us-east-2"}),
    "gcp": ("gcp-dev", GCP, {"gcp:project": GCP["account"], "gcp:region": "us-central1"}),
    "azure": (
        "azure-dev",
        AZURE,
        {"azure-native:location": "eastus", "azure-native:subscriptionId": SUBSCRIPTION},
    ),
}
OWN = {
    "aws": (
        "ec2/vpc:",
        "ec2/subnet:",
        "ec2/route:",
        "ec2/routeTable:",
        "ec2/natGateway:",
        "ec2/vpcEndpoint:",
    ),
    "gcp": ("compute/network:", "compute/subnetwork:", "compute/routerNat:", "compute/firewall:"),
    "azure": (
        "network:VirtualNetwork",
        "network:Subnet",
        "network:NatGateway",
        "network:NetworkSecurityGroup",
    ),
}
USED = {
    "aws": (
        "lab-eks",
        lambda cluster: cluster["vpcConfig"]["subnetIds"],
        NETWORKS["aws"]["control_plane_subnets"],
    ),
    "gcp": (
        "lab-gke",
        lambda cluster: [cluster["subnetwork"], *cluster["ipAllocationPolicy"].values()],
        [NETWORKS["gcp"]["subnets"]["nodes"], "training-pods", "training-services"],
    ),
    "azure": (
        "lab-aks",
        lambda cluster: [cluster["apiServerAccessProfile"]["subnetId"]],
        [NETWORKS["azure"]["subnets"]["control-plane"]],
    ),
}


def document(cloud: str) -> dict[str, Any]:
    pool = {"name": "gpu", "accelerator": {"azure": "T4"}.get(cloud, "L4"), "max_nodes": 2}
    if cloud == "aws":
        pool["per_node"] = 4
    network = {"cidr": "10.50.0.0/16", "existing": NETWORKS[cloud]}
    return {**STACKS[cloud][1], "network": network, "gpu_pools": [pool]}


@pytest.mark.deep
@pytest.mark.parametrize("cloud", NETWORKS)
def test_the_platform_is_built_in_the_network_and_leaves_it_as_it_was(root: Path, cloud: str) -> None:
    stack, _, settings = STACKS[cloud]
    life = run_lifecycle(root, stack, {**settings, "trainfleet:platform": document(cloud)})
    assert [each.token for each in life.made if any(own in each.token for own in OWN[cloud])] == []
    name, used, expected = USED[cloud]
    assert [str(each) for each in used(life.inputs[name])] == expected
    assert life.left == 0


@pytest.mark.deep
def test_a_private_dns_zone_of_the_owner_is_used_and_the_others_are_created(root: Path) -> None:
    stack, _, settings = STACKS["azure"]
    life = run_lifecycle(root, stack, {**settings, "trainfleet:platform": document("azure")})
    zones = {
        config["privateDnsZoneId"]
        for inputs in life.inputs.values()
        for config in inputs.get("privateDnsZoneConfigs") or ()
    }
    assert BLOB in zones
    created = [name for name in life.inputs if name.startswith("lab-dns-") and not name.endswith("-link")]
    assert sorted(created) == ["lab-dns-registry", "lab-dns-vault"]


@pytest.mark.parametrize("cloud", NETWORKS)
def test_what_the_owner_pays_is_not_in_the_bill(cloud: str) -> None:
    names = {part.name for part in bill(parse_spec(document(cloud))).parts}
    assert not names & {"nat", "address"}
    assert ("endpoint" in names) == (cloud == "azure")
