"""How nodes, pools and the things around them are made: the parts that follow from a spec alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.infra.gcp.platforms import machine, platform, unchecked
from trainfleet.infra.catalog.machines import machines_of
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.gcp import (
    apis,
    budget,
    cluster,
    fabric,
    filesystem,
    layout,
    node_config,
    node_pools,
    registry,
    storage,
)
from trainfleet.infra.gcp.build import METADATA_ENDPOINTS, has_core_dns, provided
from trainfleet.infra.gcp.machine_zones import ACCELERATORS
from trainfleet.infra.spec.node_group import NodeGroup, groups_of_capacity
from trainfleet.infra.spec.schema import Budget, Capacity, GpuPool


def pool(accelerator: str = "H100", per_node: int = 8, **more: Any) -> NodeGroup:
    return groups_of_capacity(GpuPool(name="big", accelerator=accelerator, per_node=per_node, **more))[0]


@pytest.mark.parametrize(
    ("instance_type", "disks"),
    [
        ("e2-standard-8", 0),
        ("g2-standard-48", 0),
        ("a2-highgpu-8g", 0),
        ("a2-ultragpu-1g", 1),
        ("a2-ultragpu-8g", 8),
        ("a3-highgpu-1g", 2),
        ("a3-highgpu-8g", 16),
        ("a3-megagpu-8g", 16),
        ("a3-ultragpu-8g", 32),
        ("a4-highgpu-8g", 32),
    ],
)
def test_local_disks_are_counted_as_the_machine_has_them(instance_type: str, disks: int) -> None:
    assert node_config.local_ssds(machine(instance_type)) == disks


@pytest.mark.parametrize(
    ("instance_type", "disk", "driver"),
    [
        ("e2-standard-8", "pd-balanced", "DEFAULT"),
        ("g2-standard-4", "pd-ssd", "DEFAULT"),
        ("a3-megagpu-8g", "pd-ssd", "DEFAULT"),
        ("a3-ultragpu-8g", "hyperdisk-balanced", "LATEST"),
        ("a4-highgpu-8g", "hyperdisk-balanced", "LATEST"),
    ],
)
def test_the_newest_machines_boot_from_hyperdisk_with_the_newest_driver(
    instance_type: str, disk: str, driver: str
) -> None:
    assert (layout.disk_type(machine(instance_type)), node_config.driver(machine(instance_type))) == (
        disk,
        driver,
    )


def test_gke_has_a_name_for_every_accelerator_of_the_catalogue() -> None:
    assert {each.accelerator for each in machines_of(Cloud.GCP)} == set(ACCELERATORS)


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [
        (Capacity.ON_DEMAND, None),
        (Capacity.SPOT, None),
        (Capacity.FLEX_START, {"consume_reservation_type": "NO_RESERVATION"}),
        (Capacity.QUEUED, {"consume_reservation_type": "NO_RESERVATION"}),
        (
            Capacity.RESERVED,
            {
                "consume_reservation_type": "SPECIFIC_RESERVATION",
                "key": "compute.googleapis.com/reservation-name",
                "values": ["block-1"],
            },
        ),
    ],
)
def test_a_pool_takes_from_its_own_reservation_or_from_none(
    capacity: Capacity, expected: dict[str, Any] | None
) -> None:
    assert node_config.reservation(capacity, "block-1") == expected


def test_skypilots_label_is_on_no_node() -> None:
    pool_spec, big = pool(labels={"example.com/team": "ml"}, capacity=Capacity.SPOT), machine("a3-highgpu-8g")
    assert node_pools.labels(pool_spec) == {
        "example.com/team": "ml",
        "nvidia.com/gpu.present": "true",
        "trainfleet.io/pool": "big",
    }
    found = node_pools.all_labels(pool_spec, big)
    assert (found["cloud.google.com/gke-accelerator"], found["cloud.google.com/gke-spot"]) == (
        "nvidia-h100-80gb",
        "true",
    )
    assert not any(key.startswith("skypilot.co/") for key in found)
    assert "cloud.google.com/gke-spot" not in node_pools.all_labels(pool(), big)


@pytest.mark.parametrize(
    ("pool_spec", "instance_type", "compact"),
    [
        (pool(), "a3-highgpu-8g", False),
        (pool(compact=True), "a3-highgpu-8g", True),
        (pool("H200", compact=True, capacity=Capacity.SPOT), "a3-ultragpu-8g", True),
        (pool("H200", compact=True, capacity=Capacity.RESERVED, reservation="r"), "a3-ultragpu-8g", False),
        (pool("H100-MEGA", compact=True, capacity=Capacity.RESERVED, reservation="r"), "a3-megagpu-8g", True),
    ],
)
def test_nodes_are_placed_together_unless_their_reservation_is(
    pool_spec: NodeGroup, instance_type: str, compact: bool
) -> None:
    assert node_pools.is_compact(pool_spec, machine(instance_type)) is compact


@pytest.mark.parametrize(
    ("instance_type", "last"),
    [
        ("a3-highgpu-8g", "vpc4"),
        ("a3-megagpu-8g", "vpc8"),
        ("a3-ultragpu-8g", "rdma-7"),
        ("a4-highgpu-8g", "rdma-7"),
    ],
)
def test_a_pod_names_every_interface_of_its_machine_in_order(instance_type: str, last: str) -> None:
    big = machine(instance_type)
    annotations = fabric.pod_annotations(big)
    links = json.loads(annotations["networking.gke.io/interfaces"])
    assert annotations["networking.gke.io/default-interface"] == "eth0"
    assert links[0] == {"interfaceName": "eth0", "network": "default"}
    assert [link["interfaceName"] for link in links] == [f"eth{index}" for index in range(len(links))]
    assert [link["network"] for link in links[1:]] == list(fabric.link_names(big))
    assert links[-1]["network"] == last
    assert len(links) - 1 - (big.rdma == "roce") == big.rdma_nics


def test_nccl_gets_the_fabric_where_it_needs_no_daemon() -> None:
    ultra, four = fabric.environment(machine("a3-ultragpu-8g")), fabric.environment(machine("a4-highgpu-8g"))
    assert ultra["NCCL_NET"] == "gIB"
    assert ultra["NCCL_TUNER_CONFIG_PATH"].endswith("a3u.txtpb")
    assert four["NCCL_TUNER_CONFIG_PATH"].endswith("a4.txtpb")
    assert fabric.environment(machine("a3-megagpu-8g")) == {}


def test_the_kubeconfig_asks_gcloud_for_a_token_and_holds_none() -> None:
    document = cluster.kubeconfig("gke_p_r_c", "10.0.0.1", "Y2E=")
    (user,), (context,) = document["users"], document["contexts"]
    assert set(user["user"]) == {"exec"}
    assert user["user"]["exec"]["command"] == "gke-gcloud-auth-plugin"
    assert document["current-context"] == context["name"] == "gke_p_r_c"
    assert document["clusters"][0]["cluster"]["certificate-authority-data"] == "Y2E="


def test_ranges_that_may_reach_the_control_plane_are_the_networks_own_and_those_of_the_spec() -> None:
    closed = cluster.allowed(platform())
    opened = cluster.allowed(
        platform(
            kubernetes={"access": {"public_ranges": ["203.0.113.0/24"]}},
            network={"cidr": "10.0.0.0/16"},
        )
    )
    assert [each["cidr_block"] for each in closed] == ["10.50.0.0/16"]
    assert [each["cidr_block"] for each in opened] == ["10.0.0.0/16", "203.0.113.0/24"]


def test_what_is_logged_and_measured_follows_the_switches() -> None:
    quiet = platform(layer={"logs": False, "gpu_metrics": False})
    assert (
        {"APISERVER", "SCHEDULER", "CONTROLLER_MANAGER"}
        <= set(cluster.logged(quiet))
        < set(cluster.logged(platform()))
    )
    assert set(cluster.measured(platform())) - set(cluster.measured(quiet)) == {"DCGM"}
    assert cluster.measured(platform(monitoring={"enabled": False})) == ["SYSTEM_COMPONENTS"]


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({}, set()),
        ({"layer": {"logs": False}}, {"logs"}),
        ({"layer": {"gpu_metrics": False}}, {"gpu-metrics"}),
        ({"monitoring": {"enabled": False}}, {"gpu-metrics"}),
    ],
)
def test_gke_provides_what_the_layer_does_not_install(changes: dict[str, Any], missing: set[str]) -> None:
    everything = {
        "gpu-plugin",
        "gpu-metrics",
        "autoscaler",
        "network-metadata-guard",
        "logs",
        "node-problems",
    }
    assert provided(platform(**changes)) == everything - missing


def test_gkes_dns_is_coredns_since_1_36() -> None:
    found = {each: has_core_dns(platform(kubernetes={"version": each})) for each in ("1.35", "1.36")}
    assert found == {"1.35": False, "1.36": True}


def test_pods_reach_gkes_metadata_server_and_nothing_else_of_its_range() -> None:
    assert {(address.endswith("/32"), port) for address, port in METADATA_ENDPOINTS} == {
        (True, 988),
        (True, 80),
    }


@pytest.mark.parametrize(("days", "kept"), [(1, 7), (30, 30), (365, 90)])
def test_deleted_objects_can_be_restored_as_long_as_google_allows(days: int, kept: int) -> None:
    assert storage.soft_delete_days(days) == kept


def test_the_bucket_forgets_old_versions_and_unfinished_uploads_and_never_what_is_live() -> None:
    runs, logs = storage.lifecycle(30, None), storage.lifecycle(30, 365)
    assert [rule["action"]["type"] for rule in runs] == ["Delete", "AbortIncompleteMultipartUpload"]
    assert all(rule["condition"].get("with_state") != "LIVE" for rule in runs)
    assert logs[2]["condition"] == {"age": 365, "with_state": "LIVE"}


def test_untagged_images_expire_and_tagged_ones_stay() -> None:
    (rule,) = registry.cleanup_policy()
    assert rule["action"] == "DELETE"
    assert rule["condition"] == {"tag_state": "UNTAGGED", "older_than": "604800s"}


@pytest.mark.parametrize(
    ("usd", "units", "nanos"), [(2000, "2000", 0), (0.5, "0", 500_000_000), (19.99, "19", 990_000_000)]
)
def test_the_limit_is_written_in_units_and_billionths(usd: float, units: str, nanos: int) -> None:
    assert budget.amount(usd) == {
        "specified_amount": {"currency_code": "USD", "units": units, "nanos": nanos}
    }


def test_a_budget_warns_at_each_share_and_before_the_month_ends_above_it() -> None:
    found = budget.alerts(Budget(monthly_usd=100, alert_at=(0.5, 1.0)))
    assert [(each["threshold_percent"], each.get("spend_basis")) for each in found] == [
        (0.5, "CURRENT_SPEND"),
        (1.0, "CURRENT_SPEND"),
        (1.0, "FORECASTED_SPEND"),
    ]


def test_only_the_apis_that_are_called_are_switched_on() -> None:
    plain = set(apis.services(platform()))
    assert {"compute", "container", "cloudkms", "storage"} <= plain
    whole = unchecked(
        secrets={"names": ["a"]}, budget={"monthly_usd": 9}, storage={"shared_filesystem": {"kind": "nfs"}}
    )
    assert set(apis.services(whole)) - plain == {
        "secretmanager",
        "billingbudgets",
        "cloudbilling",
        "servicenetworking",
        "file",
    }


def test_the_server_is_before_the_at_sign_of_a_mount_point() -> None:
    assert filesystem.server("10.0.0.3@tcp:/shared") == "10.0.0.3"
