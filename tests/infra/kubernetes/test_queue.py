"""The queue's quotas are the pools at their largest, in one group of the same resources, and a head finds a
place next to the GPUs.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.infra.kubernetes.planned import H100, L4, Planned, plan, pool, spec
from trainfleet.infra.catalog.machines import Machine, catalogue, system_machine
from trainfleet.infra.cloud_support import support
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.kubernetes.names import PRIORITIES, QUEUE
from trainfleet.infra.platform import Pool
from trainfleet.infra.program import pool_output
from trainfleet.infra.spec.node_group import groups_of_capacity
from trainfleet.infra.spec.node_groups import node_groups
from trainfleet.infra.spec.schema import GpuPool
from trainfleet.infra.spec.topology_levels import PREFERRED, REQUIRED

PLACED = {**H100, "min_nodes": 4, "topology": {}}


def quotas(planned: Planned) -> dict[str, dict[str, str]]:
    (group,) = planned.custom("ClusterQueue")[QUEUE]["spec"]["resourceGroups"]
    for flavor in group["flavors"]:
        assert [each["name"] for each in flavor["resources"]] == group["coveredResources"], (
            "the same resources in the same order"
        )
    return {
        flavor["name"]: {each["name"]: each["nominalQuota"] for each in flavor["resources"]}
        for flavor in group["flavors"]
    }


def test_quotas_are_what_the_pools_hold_at_their_largest() -> None:
    system = system_machine(spec())
    assert quotas(plan()) == {
        "system": {
            "cpu": str(system.vcpu * 4),
            "memory": f"{int(system.memory_gib * 4)}Gi",
            "nvidia.com/gpu": "0",
            "vpc.amazonaws.com/efa": "0",
        },
        # 4 p5.48xlarge: 192 vCPU, 2048 GiB, 8 GPUs and 32 adapters each.
        "h100": {"cpu": "768", "memory": "8192Gi", "nvidia.com/gpu": "32", "vpc.amazonaws.com/efa": "128"},
        # 16 g6.12xlarge: 48 vCPU, 192 GiB, 4 GPUs.
        "l4": {"cpu": "768", "memory": "3072Gi", "nvidia.com/gpu": "64", "vpc.amazonaws.com/efa": "0"},
    }


def test_a_pool_without_a_fabric_adds_no_resource_to_the_group() -> None:
    found = quotas(plan({"gpu_pools": [{"name": "l4", "accelerator": "L4", "per_node": 4, "max_nodes": 3}]}))
    assert found["l4"].keys() == {"cpu", "memory", "nvidia.com/gpu"}
    assert found["l4"]["nvidia.com/gpu"] == "12"


def test_where_nothing_is_known_of_the_machines_only_gpus_are_counted() -> None:
    unknown = Machine(
        cloud=Cloud.LOCAL,
        instance_type="",
        accelerator="L4",
        accelerators_per_node=2,
        vcpu=0,
        memory_gib=0,
        rdma="none",
        rdma_nics=0,
        price_region="",
        source="test",
    )
    mine = {"name": "mine", "accelerator": "L4", "per_node": 4, "max_nodes": 3}
    (group,) = node_groups(spec(gpu_pools=[mine]))
    found = quotas(plan({"gpu_pools": [mine]}, pools=(Pool(group, unknown, {"gpu": "yes"}, (), None),)))
    assert found["mine"] == {"cpu": "1000000", "memory": "1000000Gi", "nvidia.com/gpu": "12"}


def test_a_pool_with_several_capacities_is_one_flavor_that_tolerates_the_taints_of_all() -> None:
    of = spec(gpu_pools=[{**L4, "capacity": ["reserved", "spot"], "reservation": "cr-0123456789abcdef0"}])
    taint = {"key": "spot", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}
    groups = [pool(of, each) for each in node_groups(of)]
    tainted = tuple(
        replace(each, tolerations=(taint,)) if each.spec.capacity == "spot" else each for each in groups
    )
    planned = plan({"gpu_pools": [L4]}, pools=tainted)
    assert list(planned.custom("ResourceFlavor")) == ["system", "l4"]
    flavor = planned.custom("ResourceFlavor")["l4"]["spec"]
    assert flavor["nodeLabels"] == {"trainfleet.io/pool": "l4"}, "the label that all groups share"
    assert flavor["tolerations"][1:] == [taint]
    assert quotas(planned)["l4"]["nvidia.com/gpu"] == str(L4["per_node"] * L4["max_nodes"])


def test_a_flavour_names_its_pools_nodes_and_tolerates_their_taints() -> None:
    of = spec()
    base = next(pool_spec for pool_spec in node_groups(of) if pool_spec.name == "l4")
    taint = {"key": "spot", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}
    made = pool(of, base)
    spot = Pool(base, made.machine, made.labels, (), None, selector={"healthy": "yes"}, tolerations=(taint,))
    flavors: dict[str, Any] = plan({"gpu_pools": [L4]}, pools=(spot,)).custom("ResourceFlavor")
    assert flavors["system"]["spec"] == {"nodeLabels": {}, "tolerations": []}
    assert flavors["l4"]["spec"]["nodeLabels"] == {"trainfleet.io/pool": "l4", "healthy": "yes"}
    assert flavors["l4"]["spec"]["tolerations"] == [
        {"operator": "Exists", "key": "nvidia.com/gpu", "effect": "NoSchedule"},
        taint,
    ]


def test_the_local_queue_and_the_priorities_carry_the_names_that_launchers_use() -> None:
    planned = plan()
    local = planned.custom("LocalQueue")[QUEUE]
    assert (local["metadata"]["namespace"], local["spec"]) == ("training", {"clusterQueue": QUEUE})
    found = planned.custom("WorkloadPriorityClass")
    assert {name: inputs["value"] for name, inputs in found.items()} == PRIORITIES


def test_kueue_queues_ray_jobs_and_pods_but_not_their_own_clusters() -> None:
    configuration = json.loads(plan().values("lab-kueue")["managerConfig"]["controllerManagerConfigYaml"])
    assert configuration["integrations"]["frameworks"] == [
        "batch/job",
        "ray.io/rayjob",
        "ray.io/raycluster",
        "pod",
    ]
    assert configuration["managedJobsNamespaceSelector"] == {
        "matchLabels": {"kubernetes.io/metadata.name": "training"}
    }
    assert configuration["manageJobsWithoutQueueName"] is False


def test_a_pool_that_is_provisioned_on_request_has_an_admission_check() -> None:
    of = spec()
    h100, l4 = (pool(of, each) for each in node_groups(of))
    requested = replace(l4, provisioning_class="queued.example.com")
    planned = plan(pools=(h100, requested))
    checks = planned.custom("ClusterQueue")[QUEUE]["spec"]["admissionChecksStrategy"]["admissionChecks"]
    assert checks == [{"name": "queued", "onFlavors": ["l4"]}]
    check = planned.custom("AdmissionCheck")["queued"]["spec"]
    assert check["controllerName"] == "kueue.x-k8s.io/provisioning-request"
    config = planned.custom(check["parameters"]["kind"])[check["parameters"]["name"]]["spec"]
    assert config == {
        "provisioningClassName": "queued.example.com",
        "managedResources": ["nvidia.com/gpu"],
    }
    assert "admissionChecksStrategy" not in plan().custom("ClusterQueue")[QUEUE]["spec"]


@pytest.mark.parametrize(("capacity", "limit"), [("spot", "45m"), ("flex-start", "168h")])
def test_a_job_waits_as_long_as_its_capacity_may_take(capacity: str, limit: str) -> None:
    l4 = {"name": "l4", "accelerator": "L4", "per_node": 4, "max_nodes": 3}
    (group,) = groups_of_capacity(GpuPool.model_validate({**l4, "capacity": capacity}))
    made = pool(spec(), group)
    values = plan({"gpu_pools": [l4]}, pools=(made,)).values("lab-kueue")
    configuration = json.loads(values["managerConfig"]["controllerManagerConfigYaml"])
    assert configuration["waitForPodsReady"]["timeout"] == limit


def test_there_is_no_queue_without_a_gpu_pool() -> None:
    assert "lab-kueue" not in plan({"gpu_pools": []}).types


def test_a_pool_with_a_topology_is_a_flavor_of_its_levels_with_the_node_as_the_lowest() -> None:
    planned = plan({"gpu_pools": [PLACED, L4]})
    (topology,) = planned.custom("Topology").values()
    name = topology["metadata"]["name"]
    assert name.startswith("h100-")
    assert topology["spec"]["levels"] == [
        {"nodeLabel": "topology.k8s.aws/network-node-layer-1"},
        {"nodeLabel": "topology.k8s.aws/network-node-layer-2"},
        {"nodeLabel": "topology.k8s.aws/network-node-layer-3"},
        {"nodeLabel": "kubernetes.io/hostname"},
    ]
    flavors = planned.custom("ResourceFlavor")
    assert set(flavors) == {"system", name, "l4"}
    assert flavors[name]["spec"]["topologyName"] == name
    assert flavors[name]["spec"]["nodeLabels"], "a flavor with a topology selects its nodes"
    assert "topologyName" not in flavors["l4"]["spec"]
    assert list(quotas(planned)) == ["system", name, "l4"]


@pytest.mark.deep
def test_a_change_of_an_immutable_topology_creates_another() -> None:
    def name(**changes: Any) -> str:
        topology = {"levels": ["example.com/block", "example.com/rack"], **changes}
        (found,) = plan({"gpu_pools": [{**PLACED, "topology": topology}]}).custom("Topology")
        return str(found)

    assert name() == name()
    assert name() == name(required="example.com/block"), "pods ask for it, not the topology"
    assert name() != name(levels=["example.com/block"])


def test_the_admission_check_of_a_provisioned_pool_is_on_the_flavor_of_its_topology() -> None:
    of = spec(gpu_pools=[{**PLACED, "topology": {"levels": ["example.com/block"]}}])
    (group,) = node_groups(of)
    queued = replace(pool(of, group), provisioning_class="queued-provisioning.gke.io")
    planned = plan(
        {"gpu_pools": [{**PLACED, "topology": {"levels": ["example.com/block"]}}]}, pools=(queued,)
    )
    (name,) = planned.custom("Topology")
    checks = planned.custom("ClusterQueue")[QUEUE]["spec"]["admissionChecksStrategy"]["admissionChecks"]
    assert checks == [{"name": "queued-provisioning", "onFlavors": [name]}]


@pytest.mark.parametrize(
    ("cloud", "machine", "levels"),
    [
        ("aws", "p5.48xlarge", 3),
        ("aws", "ml.p5en.48xlarge", 3),
        ("aws", "p6-b200.48xlarge", 4),
        ("aws", "g6e.12xlarge", 3),
        ("aws", "p5.4xlarge", 0),
        ("aws", "g5.48xlarge", 0),
        ("gcp", "a3-ultragpu-8g", 3),
        ("gcp", "a4-highgpu-8g", 3),
        ("gcp", "a3-megagpu-8g", 0),
        ("azure", "Standard_ND96isr_H100_v5", 0),
    ],
)
def test_only_some_machines_are_labelled_with_their_place_in_the_network(
    cloud: str, machine: str, levels: int
) -> None:
    (found, *_) = [each for each in catalogue() if (each.cloud, each.instance_type) == (cloud, machine)]
    assert len(support(found.cloud).topology_levels(found)) == levels


@pytest.mark.parametrize(
    ("topology", "annotations"),
    [
        (None, {}),
        ({}, {PREFERRED: "topology.k8s.aws/network-node-layer-3"}),
        (
            {"required": "topology.k8s.aws/network-node-layer-1"},
            {REQUIRED: "topology.k8s.aws/network-node-layer-1"},
        ),
        ({"levels": ["example.com/block", "example.com/rack"]}, {PREFERRED: "example.com/rack"}),
    ],
)
def test_the_contract_tells_launchers_how_pods_are_placed(
    topology: dict[str, Any] | None, annotations: dict[str, str]
) -> None:
    of = spec(gpu_pools=[{**PLACED, "topology": topology}])
    assert pool_output((pool(of, node_groups(of)[0]),))["queue_annotations"] == annotations
