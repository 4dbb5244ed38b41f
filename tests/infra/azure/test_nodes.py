"""How nodes, their cluster and related resources are configured: the pure functions."""

from __future__ import annotations

import base64
import json
import uuid
from datetime import date
from ipaddress import IPv4Network
from typing import Any

import pytest

from tests.infra.azure.platforms import RESERVATION, SUBSCRIPTION, machine, platform
from trainfleet.infra.azure import (
    budget,
    cluster,
    filesystem,
    firewall,
    identity,
    node_config,
    node_pools,
    permissions,
    sizes,
    storage,
)
from trainfleet.infra.catalog.machines import machines_of
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.spec.node_group import NodeGroup, groups_of_capacity
from trainfleet.infra.spec.schema import Budget, Capacity, GpuPool

H100, A100, T4, D4 = (
    "Standard_ND96isr_H100_v5",
    "Standard_NC96ads_A100_v4",
    "Standard_NC4as_T4_v3",
    "Standard_D4s_v5",
)


def pool(**more: Any) -> NodeGroup:
    written = {"name": "big", "accelerator": "H100", "per_node": 8, **more}
    return groups_of_capacity(GpuPool.model_validate(written))[0]


@pytest.mark.parametrize(
    ("capacity", "reservation", "expected"),
    [
        (Capacity.ON_DEMAND, "", node_config.PurchaseOptions("Regular")),
        (Capacity.SPOT, "", node_config.PurchaseOptions("Spot", "Delete", -1.0)),
        (Capacity.RESERVED, RESERVATION, node_config.PurchaseOptions("Regular", reservation=RESERVATION)),
    ],
)
def test_each_kind_of_capacity_is_asked_for_in_its_own_way(
    capacity: Capacity, reservation: str, expected: node_config.PurchaseOptions
) -> None:
    assert node_config.purchase_options(capacity, reservation) == expected


def test_the_name_of_a_released_pool_never_changes() -> None:
    """The name has a digest of the purchase options' text; AKS replaces a pool with another name."""
    regular, spot = (
        node_config.purchase_options(Capacity.ON_DEMAND, ""),
        node_config.PurchaseOptions("Spot", "Delete"),
    )
    assert repr(regular) == "Market(priority='Regular', eviction=None, price=None, reservation=None)"
    assert repr(spot) == "Market(priority='Spot', eviction='Delete', price=None, reservation=None)"


@pytest.mark.parametrize(
    ("instance_type", "disk_gib", "where"),
    [
        (H100, 200, "Ephemeral"),
        (H100, 1000, "Ephemeral"),
        (H100, 1001, "Managed"),
        (A100, 200, "Ephemeral"),
        (T4, 200, "Managed"),
        (D4, 50, "Managed"),
    ],
)
def test_the_root_disk_lives_on_the_machine_where_it_fits(
    instance_type: str, disk_gib: int, where: str
) -> None:
    assert sizes.os_disk(machine(instance_type), disk_gib) == where


def test_every_gpu_machine_of_the_catalogue_has_its_temporary_disk_known() -> None:
    assert {each.instance_type for each in machines_of(Cloud.AZURE)} == set(sizes.TEMPORARY_DISK_GIB)


def test_spot_nodes_carry_akss_own_taint_and_label_and_pods_tolerate_them() -> None:
    spot = pool(capacity="spot")
    assert node_config.taints(Capacity.SPOT) == [
        "nvidia.com/gpu=present:NoSchedule",
        "kubernetes.azure.com/scalesetpriority=spot:NoSchedule",
    ]
    assert node_pools.labels(spot, machine(H100))["kubernetes.azure.com/scalesetpriority"] == "spot"
    (tolerated,) = node_config.tolerations(Capacity.SPOT)
    assert f"{tolerated['key']}={tolerated['value']}:{tolerated['effect']}" in node_config.taints(
        Capacity.SPOT
    )
    assert node_config.taints(Capacity.ON_DEMAND) == ["nvidia.com/gpu=present:NoSchedule"]
    assert node_config.tolerations(Capacity.RESERVED) == ()


def test_own_labels_never_hide_the_platforms() -> None:
    labels = node_pools.labels(
        pool(labels={"skypilot.co/accelerator": "H100", "trainfleet.io/pool": "other", "team": "speech"}),
        machine(H100),
    )
    assert labels == {
        "skypilot.co/accelerator": "h100",
        "trainfleet.io/pool": "big",
        "nvidia.com/gpu.present": "true",
        "team": "speech",
    }


@pytest.mark.parametrize(
    ("pool_spec", "instance_type", "fabric", "placed"),
    [
        ({}, H100, False, False),
        ({"compact": True}, H100, False, True),
        ({"interconnect": "best", "compact": True}, H100, True, True),
        ({"interconnect": "best"}, A100, False, False),
        ({"capacity": "reserved", "reservation": RESERVATION, "compact": True}, A100, False, False),
    ],
)
def test_fabric_and_placement_follow_the_spec_and_the_machine(
    pool_spec: dict[str, Any], instance_type: str, *, fabric: bool, placed: bool
) -> None:
    assert node_pools.uses_infiniband(pool(**pool_spec), machine(instance_type)) is fabric
    assert node_pools.needs_placement_group(pool(**pool_spec)) is placed


def test_the_autoscaler_knows_the_adapters_of_a_pool_without_nodes() -> None:
    fast = pool(interconnect="best")
    tag = "k8s.io_cluster-autoscaler_node-template_resources_rdma_ib"
    assert node_pools.scale_from_zero(fast, machine(H100)).keys() == {tag}
    assert int(node_pools.scale_from_zero(fast, machine(H100))[tag]) >= machine(H100).rdma_nics
    assert node_pools.scale_from_zero(pool(), machine(H100)) == {}
    assert node_pools.scale_from_zero(fast, machine(A100)) == {}


@pytest.mark.parametrize(
    ("instance_type", "reservable"),
    [(H100, False), ("Standard_NC40ads_H100_v5", False), (A100, True), (T4, True)],
)
def test_capacity_of_the_newest_machines_cannot_be_reserved(instance_type: str, *, reservable: bool) -> None:
    assert sizes.reservable(machine(instance_type)) is reservable


@pytest.mark.parametrize(("environment", "count"), [("dev", (1, 2)), ("prod", (2, 3))])
def test_the_inline_pool_takes_akss_own_pods_only(environment: str, count: tuple[int, int]) -> None:
    spec = platform(environment=environment)
    inline = cluster.inline_pool(spec, machine(D4), "subnet", {})
    assert inline.get("mode") == "System"
    assert inline.get("node_taints") == ["CriticalAddonsOnly=true:NoSchedule"]
    assert (inline.get("min_count"), inline.get("max_count")) == count
    assert inline.get("enable_node_public_ip") is False


def test_container_insights_follows_the_layers_switch() -> None:
    on, off = (
        cluster.add_ons(platform(), "w")["omsagent"],
        cluster.add_ons(platform(layer={"logs": False}), "w")["omsagent"],
    )
    assert on == {"enabled": True, "config": {"logAnalyticsWorkspaceResourceID": "w", "useAADAuth": "true"}}
    assert off == {"enabled": False}


def credentials(document: dict[str, Any]) -> str:
    return base64.b64encode(json.dumps(document).encode()).decode()


def test_of_azures_kubeconfig_only_address_and_certificate_are_kept() -> None:
    handed = {
        "clusters": [
            {"name": "c", "cluster": {"server": "https://x:443", "certificate-authority-data": "Y2E="}}
        ],
        "users": [{"name": "u", "user": {"token": "secret-token", "client-key-data": "c2VjcmV0"}}],
    }
    reached = cluster.cluster_address([credentials(handed)])
    assert reached == {"server": "https://x:443", "certificate": "Y2E="}
    written = json.dumps(cluster.kubeconfig("trainfleet-lab", reached["server"], reached["certificate"]))
    assert "secret" not in written
    assert "token" not in written.replace("get-token", "")


def test_a_kubeconfig_without_address_or_certificate_is_an_error_and_not_a_hole() -> None:
    handed = {"clusters": [{"name": "c", "cluster": {"server": "https://x:443"}}]}
    with pytest.raises(LookupError, match="address and certificate"):
        cluster.cluster_address([credentials(handed)])


def test_the_kubeconfig_logs_in_as_its_user() -> None:
    document = cluster.kubeconfig("trainfleet-lab", "https://x", "Y2E=")
    (user,) = document["users"]
    assert set(user["user"]) == {"exec"}
    assert user["user"]["exec"]["command"] == "kubelogin"
    assert document["current-context"] == "trainfleet-lab"


def test_an_assignments_name_is_a_guid_made_of_what_it_says() -> None:
    one = permissions.assignment_name("/subscriptions/S/x", "principal", "AcrPull")
    assert uuid.UUID(one)
    assert permissions.assignment_name("/SUBSCRIPTIONS/s/X", "principal", "AcrPull") == one
    changed = [
        ("/other", "principal", "AcrPull"),
        ("/subscriptions/S/x", "other", "AcrPull"),
        ("/subscriptions/S/x", "principal", "Reader"),
    ]
    assert len({one, *(permissions.assignment_name(*each) for each in changed)}) == 4


@pytest.mark.parametrize("role", permissions.ROLES)
def test_every_role_is_a_guid_of_its_own(role: str) -> None:
    assert uuid.UUID(permissions.ROLES[role])
    assert permissions.role_definition(SUBSCRIPTION, role).startswith(
        f"/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Authorization/"
    )
    assert len(set(permissions.ROLES.values())) == len(permissions.ROLES)


def test_no_identity_may_give_roles_away() -> None:
    assert not {"Owner", "User Access Administrator", "Role Based Access Control Administrator"} & set(
        permissions.ROLES
    )


def test_a_missing_issuer_is_an_error() -> None:
    with pytest.raises(LookupError, match="OIDC issuer"):
        identity.issuer_url(None)


def test_a_credential_is_for_exactly_one_account() -> None:
    assert identity.subject("training", "trainer") == "system:serviceaccount:training:trainer"


@pytest.mark.parametrize(
    "rules",
    [
        [firewall.balancer(), firewall.deny_all()],
        [firewall.https(IPv4Network("10.0.0.0/16"), "10.244.0.0/14")],
    ],
)
def test_security_rules_have_priorities_of_their_own_and_one_way_to_say_each_thing(
    rules: list[firewall.Rule],
) -> None:
    written = firewall.in_order(rules)
    priorities = [rule["priority"] for rule in written]
    assert len(set(priorities)) == len(priorities)
    for rule in written:
        assert (rule.get("source_address_prefix") is None) != (rule.get("source_address_prefixes") is None)
        assert (rule.get("destination_port_range") is None) != (rule.get("destination_port_ranges") is None)


def test_everything_else_is_denied_last() -> None:
    clients = firewall.lustre_clients("10.0.0.0/17", "10.0.0.0/17")
    written = firewall.in_order([clients, firewall.lustre_servers("10.0.176.0/20"), firewall.deny_all()])
    assert [rule["access"] for rule in written] == ["Allow", "Allow", "Deny"]
    assert written[2]["priority"] == 4096
    assert written[0].get("destination_port_ranges") == ["988", "1019-1023"]
    assert written[1].get("destination_port_range") == "*", "Azure sets the servers up over SSH"


def test_objects_never_expire_and_old_versions_do() -> None:
    versioned = storage.lifecycle(30, versioned=True)
    plain = storage.lifecycle(30, versioned=False)
    assert [set(rule["definition"]["actions"]) for rule in versioned] == [{"snapshot"}, {"version"}]
    assert [set(rule["definition"]["actions"]) for rule in plain] == [{"snapshot"}]


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ((0.5, 1.0), [("Actual", 50.0), ("Actual", 100.0), ("Forecasted", 100.0)]),
        (
            (0.1, 0.2, 0.3, 0.4, 0.5),
            [("Actual", 10.0), ("Actual", 20.0), ("Actual", 30.0), ("Actual", 40.0), ("Actual", 50.0)],
        ),
    ],
)
def test_a_budget_has_an_alert_per_share_and_a_forecast_if_azure_allows_one_more(
    shares: tuple[float, ...], expected: list[tuple[str, float]]
) -> None:
    alerts = budget.alerts(Budget(monthly_usd=100, alert_at=shares), "owner@example.com")
    assert [(alert.get("threshold_type"), alert["threshold"]) for alert in alerts.values()] == expected
    assert all(alert["contact_emails"] == ["owner@example.com"] for alert in alerts.values())


@pytest.mark.parametrize(
    ("today", "first"),
    [(date(2026, 11, 21), "2026-11-01T00:00:00Z"), (date(2027, 1, 1), "2027-01-01T00:00:00Z")],
)
def test_a_budget_begins_with_a_month(today: date, first: str) -> None:
    assert budget.first_of_month(today) == first


@pytest.mark.parametrize("throughput", sizes.LUSTRE_STEPS_TIB)
def test_every_speed_of_lustre_that_a_spec_may_name_is_a_product(throughput: int) -> None:
    assert filesystem.product(throughput) == f"AMLFS-Durable-Premium-{throughput}"
