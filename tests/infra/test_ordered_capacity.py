"""A pool with several capacities on the real engine over each simulated cloud: what its nodes, the autoscaler's
order and the contract say of one another.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.infra.lifecycle import Lifecycle, run_lifecycle
from tests.infra.test_node_groups import PLACES, POOL, RESERVATION
from trainfleet.infra.outputs.contract import PoolOutput

# The simulated provider reads every class of the SDK, the old ones too, and those warn.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

ROOT = Path(__file__).resolve().parents[2]
ORDER = {
    "aws": ["reserved", "capacity-block", "spot", "on-demand"],
    "gcp": ["reserved", "spot", "flex-start", "on-demand"],
    "azure": ["reserved", "spot", "on-demand"],
}
SETTINGS = {
    "aws": {"aws:region": "us-east-2"},
    "gcp": {"gcp:project": "my-project-123456", "gcp:region": "us-central1"},
    "azure": {
        "azure-native:location": "eastus",
        "azure-native:subscriptionId": "00000000-1111-2222-3333-444444444444",
    },
}
CLOUDS = tuple(ORDER)
MACHINES = {**POOL, "aws": {"accelerator": "H200", "per_node": 8}, "gcp": {"accelerator": "L4"}}
GROUPS = {
    "aws": "aws:eks/nodeGroup:NodeGroup",
    "gcp": "gcp:container/nodePool:NodePool",
    "azure": "azure-native:containerservice:AgentPool",
}
CLASS = "cloud.google.com/compute-class"


@cache
def life(cloud: str) -> Lifecycle:
    block = {"capacity_block": "cr-0fedcba9876543210"} if cloud == "aws" else {}
    listed = {"name": "big", "max_nodes": 2, **MACHINES[cloud], "capacity": ORDER[cloud], **block}
    platform = {
        "name": "lab",
        "cloud": cloud,
        "owner": "ml@example.com",
        "network": {"zones": 2, "nat": "single"},
        "monitoring": {"enabled": False},
        "gpu_pools": [
            {**listed, "reservation": RESERVATION[cloud]},
            {"name": "plain", "max_nodes": 1, **MACHINES[cloud], "capacity": "spot"},
        ],
        **PLACES[cloud],
    }
    return run_lifecycle(ROOT, f"{cloud}-dev", {**SETTINGS[cloud], "trainfleet:platform": platform})


def groups(cloud: str) -> dict[str, dict[str, Any]]:
    """Inputs of the node groups of the pool, by name."""
    named = {urn.urn.rsplit("::", 1)[-1] for urn in life(cloud).made if urn.token == GROUPS[cloud]}
    return {
        name.removeprefix("lab-"): life(cloud).inputs[name]
        for name in sorted(named)
        if name.startswith("lab-big")
    }


def labels(cloud: str, inputs: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {
        "aws": lambda: inputs["labels"],
        "gcp": lambda: inputs["nodeConfig"]["labels"],
        "azure": lambda: inputs["nodeLabels"],
    }[cloud]()
    return found


def taints(cloud: str, inputs: dict[str, Any]) -> set[tuple[str, str]]:
    """Key and value of each taint."""
    if cloud == "azure":
        return {tuple(taint.rpartition(":")[0].split("=")) for taint in inputs["nodeTaints"]}
    held = inputs["taints"] if cloud == "aws" else inputs["nodeConfig"]["taints"]
    return {(taint["key"], taint["value"]) for taint in held}


def pool(cloud: str) -> PoolOutput:
    (found,) = [each for each in life(cloud).outputs.pools if each.name == "big"]
    return found


@pytest.mark.deep
@pytest.mark.parametrize("cloud", CLOUDS)
def test_each_capacity_has_its_nodes_and_all_have_the_label_of_the_pool(cloud: str) -> None:
    made = groups(cloud)
    assert {labels(cloud, each)["trainfleet.io/pool"] for each in made.values()} == {"big"}
    assert {labels(cloud, each)["trainfleet.io/capacity"] for each in made.values()} == set(ORDER[cloud])
    plain = life(cloud).inputs["lab-plain"]
    assert "trainfleet.io/capacity" not in labels(cloud, plain), "other pools stay as they were"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("cloud", CLOUDS)
def test_the_contract_lists_the_groups_in_order_and_selects_and_tolerates_all_of_them(cloud: str) -> None:
    contract, made = pool(cloud), groups(cloud)
    assert list(dict.fromkeys(group.capacity for group in contract.groups)) == ORDER[cloud]
    assert {group.name for group in contract.groups} == set(made)
    for group in contract.groups:
        inputs = made[group.name]
        required = contract.node_selector | group.node_selector
        assert required.items() <= labels(cloud, inputs).items()
        for key, value in taints(cloud, inputs):
            assert any(
                each["key"] == key and (each["operator"] == "Exists" or each["value"] == value)
                for each in contract.tolerations
            ), f"{group.name}: {key}"


@pytest.mark.parametrize("cloud", ["aws", "azure"])
def test_the_autoscaler_prefers_the_groups_in_the_order_of_the_list(cloud: str) -> None:
    order = life(cloud).inputs["lab-cluster-autoscaler-priority-expander"]
    assert order["metadata"]["name"] == "cluster-autoscaler-priority-expander"
    assert order["metadata"]["namespace"] == "kube-system"
    table: dict[int, list[str]] = yaml.safe_load(order["data"]["priorities"])

    def priority(name: str) -> int:
        return max(key for key, patterns in table.items() if any(re.search(each, name) for each in patterns))

    found = {
        labels(cloud, inputs)["trainfleet.io/capacity"]: priority(scaling_group(cloud, inputs))
        for inputs in groups(cloud).values()
    }
    assert sorted(found, key=found.__getitem__, reverse=True) == ORDER[cloud]
    assert len(set(found.values())) == len(found), "no two capacities compete"
    assert priority(scaling_group(cloud, life(cloud).inputs["lab-plain"])) < min(found.values())


def scaling_group(cloud: str, inputs: dict[str, Any]) -> str:
    """The name by which the autoscaler knows a node group, as the cloud makes it."""
    if cloud == "aws":
        return f"eks-{inputs['nodeGroupNamePrefix']}{'20261123' * 3}01-40c1a8f2-0000-0000-0000-000000000000"
    return f"aks-{inputs['agentPoolName']}-29141059-vmss"


def test_on_eks_the_autoscaler_uses_the_order_and_does_not_spread_a_run_over_zones() -> None:
    values = life("aws").inputs["lab-cluster-autoscaler"]["values"]
    assert values["extraArgs"]["expander"] == "priority,least-waste"
    assert values["extraArgs"]["balance-similar-node-groups"] is False
    assert "lab-cluster-autoscaler-priority-expander" in life("aws").needs["lab-cluster-autoscaler"]


def test_on_aks_the_autoscaler_uses_the_order() -> None:
    assert life("azure").inputs["lab-aks"]["autoScalerProfile"]["expander"] == "priority"


def test_on_gke_a_compute_class_has_the_order_and_its_pools_the_label_and_the_taint() -> None:
    inputs = life("gcp").inputs["lab-class-big"]
    assert inputs["metadata"]["name"] == "trainfleet-big"
    named = [each["nodepools"] for each in inputs["spec"]["priorities"]]
    assert named == [[f"lab-big-{capacity}"] for capacity in ORDER["gcp"]], (
        "as the simulated cloud names them"
    )
    for group in groups("gcp").values():
        assert labels("gcp", group)[CLASS] == "trainfleet-big"
        assert (CLASS, "trainfleet-big") in taints("gcp", group)
    assert pool("gcp").node_selector[CLASS] == "trainfleet-big"
    assert CLASS not in labels("gcp", life("gcp").inputs["lab-plain"])


def test_on_eks_groups_of_one_capacity_share_a_template_and_are_in_one_zone_each() -> None:
    made = groups("aws")
    spot = {name: inputs for name, inputs in made.items() if "-spot-" in name}
    assert sorted(spot) == ["big-spot-a", "big-spot-b"]
    assert [len(inputs["subnetIds"]) for inputs in spot.values()] == [1, 1]
    assert len({str(inputs["launchTemplate"]) for inputs in spot.values()}) == 1
    assert len(life("aws").inputs["lab-plain"]["subnetIds"]) == 2
    block = made["big-capacity-block"]
    assert block["capacityType"] == "CAPACITY_BLOCK"
    reserved = life("aws").inputs["lab-big-reserved-template"]["capacityReservationSpecification"]
    assert reserved["capacityReservationTarget"]["capacityReservationId"] == RESERVATION["aws"]
