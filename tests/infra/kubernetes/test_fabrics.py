"""Each fabric gets its own agent, on its own pools' nodes only, from a pinned image."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.infra.kubernetes.planned import Planned, plan
from trainfleet.infra.aws import node_pools as aws_pools
from trainfleet.infra.azure import node_pools as azure_pools
from trainfleet.infra.catalog.machines import catalogue, machines_of
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.gcp import fabric, layout
from trainfleet.infra.kubernetes.fabrics import INSTALLERS

POOLS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "roce": ("gcp", "us-central1", {"accelerator": "H200", "per_node": 8}),
    "gpudirect-tcpxo": ("gcp", "us-central1", {"accelerator": "H100-MEGA-80GB", "per_node": 8}),
    "gpudirect-tcpx": ("gcp", "us-central1", {"accelerator": "H100", "per_node": 8}),
    "infiniband": ("azure", "eastus", {"accelerator": "H100", "per_node": 8}),
}
AGENTS = {
    "roce": {"lab-nccl-roce"},
    "gpudirect-tcpxo": {"lab-nccl-gpudirect-tcpxo", "lab-devices-gpudirect-tcpxo"},
    "gpudirect-tcpx": {"lab-nccl-gpudirect-tcpx", "lab-devices-gpudirect-tcpx"},
    "infiniband": {"lab-infiniband-device-plugin"},
}


def planned(fabric: str, **more: Any) -> Planned:
    cloud, region, machine = POOLS[fabric]
    found = next(each for each in catalogue() if each.cloud == cloud and each.rdma == fabric)
    pool = {
        **machine,
        "accelerator": found.accelerator,
        "name": "fast",
        "max_nodes": 2,
        "interconnect": "best",
        "compact": True,
        "capacity": "spot",
        "instance_type": found.instance_type,
    }
    admin = "ml@example.com" if cloud == "gcp" else "11112222-3333-4444-5555-666677778888"
    account = "my-project-123456" if cloud == "gcp" else "11112222-3333-4444-5555-666677778888"
    return plan(
        {
            "cloud": cloud,
            "region": region,
            "account": account,
            "kubernetes": {"admins": [admin], "access": {"public_ranges": ["203.0.113.7/32"]}},
            "gpu_pools": [pool],
            **more,
        }
    )


@pytest.mark.parametrize("fabric", AGENTS)
def test_a_fabric_installs_its_agents_and_no_other(fabric: str) -> None:
    found = planned(fabric).of("DaemonSet")
    assert found.keys() == AGENTS[fabric]
    for inputs in found.values():
        spec = inputs["spec"]["template"]["spec"]
        (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        assert {each["key"]: each["values"] for each in term["matchExpressions"]} == {
            "nvidia.com/gpu.present": ["true"],
            "trainfleet.io/pool": ["fast"],
        }
        assert inputs["spec"]["selector"]["matchLabels"] == inputs["spec"]["template"]["metadata"]["labels"]
        assert inputs["metadata"]["namespace"] == "gpu-system"
        for container in [*spec["containers"], *spec.get("initContainers", ())]:
            tag = container["image"].rpartition("/")[2]
            assert "@sha256:" in tag or (":" in tag and not tag.endswith(":latest")), container["image"]
            assert {mount["name"] for mount in container.get("volumeMounts", ())} <= {
                volume["name"] for volume in spec.get("volumes", ())
            }


@pytest.mark.parametrize("fabric", AGENTS)
def test_gke_admits_the_agents_by_a_quota_for_their_class(fabric: str) -> None:
    found = planned(fabric)
    quotas = {
        (inputs["metadata"]["namespace"], name)
        for inputs in found.of("ResourceQuota").values()
        for term in inputs["spec"].get("scopeSelector", {}).get("matchExpressions", ())
        for name in term["values"]
    }
    needed = {
        (inputs["metadata"]["namespace"], inputs["spec"]["template"]["spec"]["priorityClassName"])
        for inputs in found.of("DaemonSet").values()
    }
    assert needed == {("gpu-system", "system-node-critical")}
    assert needed <= quotas if POOLS[fabric][0] == "gcp" else not quotas


def test_every_path_in_the_environment_is_in_a_folder_that_pods_see() -> None:
    """What an installer copies to the node is in the pod only below the folder that GKE mounts."""
    paths = {
        (machine.rdma, value)
        for machine in machines_of(Cloud.GCP)
        for value in fabric.environment(machine).values()
        if value.startswith("/")
    }
    assert paths
    for name, path in paths:
        assert path.startswith(f"{layout.DRIVER_MOUNT}/")
        on_node = path.replace(layout.DRIVER_MOUNT, layout.DRIVER_FOLDER, 1)
        assert any(on_node.startswith(f"{folder}/") for folder, _ in INSTALLERS[name].folders), path


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param(aws_pools.FABRIC_ENVIRONMENT, id="aws"),
        pytest.param(fabric.RDMA_ENVIRONMENT, id="gcp"),
        pytest.param(azure_pools.FABRIC_ENVIRONMENT, id="azure"),
    ],
)
def test_nccl_uses_the_named_network_or_fails(environment: dict[str, str]) -> None:
    assert environment["NCCL_NET"] in {"AWS Libfabric", "gIB", "IB"}


@pytest.mark.parametrize("fabric_name", AGENTS)
def test_only_an_agent_that_prepares_the_host_sees_its_processes(fabric_name: str) -> None:
    for inputs in planned(fabric_name).of("DaemonSet").values():
        spec = inputs["spec"]["template"]["spec"]
        entered = [
            each for each in spec.get("initContainers", ()) if each.get("command", [""])[0] == "nsenter"
        ]
        assert bool(spec.get("hostPID")) is bool(entered)


def test_infiniband_is_announced_after_containers_may_lock_memory() -> None:
    (plugin,) = planned("infiniband").of("DaemonSet").values()
    spec = plugin["spec"]["template"]["spec"]
    (first,) = spec["initContainers"]
    assert spec["hostPID"] is True, "nsenter enters the host's first process"
    assert first["command"][:4] == ["nsenter", "-at", "1", "--"]
    script = first["command"][-1]
    assert "LimitMEMLOCK=infinity" in script
    assert "prlimit --memlock=unlimited:unlimited --pid" in script


def test_infinibands_plugin_announces_the_resource_that_pods_ask_for() -> None:
    config = json.loads(planned("infiniband").inputs["lab-infiniband-config"]["data"]["config.json"])
    (entry,) = config["configList"]
    assert f"{entry['resourcePrefix']}/{entry['resourceName']}" == "rdma/ib"
    assert entry["selectors"]["linkTypes"] == ["infiniband"], (
        "not the machine's Ethernet card, which is of the same vendor"
    )


def test_the_switch_and_the_request_are_both_needed() -> None:
    assert not planned("roce", layer={"rdma_plugin": False}).of("DaemonSet")
    slow = {"name": "slow", "accelerator": "H100", "per_node": 8}
    assert "lab-efa-device-plugin" not in plan({"gpu_pools": [slow]}).types


def test_device_plugins_and_the_exporter_run_on_gpu_nodes_under_every_taint() -> None:
    found = plan()
    for name in ("lab-nvidia-device-plugin", "lab-dcgm-exporter"):
        (term,) = found.values(name)["affinity"]["nodeAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]["nodeSelectorTerms"]
        assert term["matchExpressions"] == [
            {"key": "nvidia.com/gpu.present", "operator": "In", "values": ["true"]}
        ]
        assert found.values(name)["tolerations"] == [{"operator": "Exists"}]
