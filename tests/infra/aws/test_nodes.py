"""How a node is made: fabric interfaces, first boot, market, labels and what a pool says of itself at zero
nodes.
"""

from __future__ import annotations

import base64
import email
import json
from dataclasses import replace
from typing import Any

import pulumi
import pytest

from tests.infra.aws.platforms import machine, platform
from trainfleet.dates import today
from trainfleet.infra.aws import addons, budget, node_config, node_pools, registry
from trainfleet.infra.aws.cluster import applier_login, kubeconfig
from trainfleet.infra.catalog.machines import Machine
from trainfleet.infra.spec.node_group import NodeGroup, groups_of_capacity
from trainfleet.infra.spec.schema import Budget, Capacity, GpuPool
from trainfleet.kubernetes_support import supported_versions

ROLE = "arn:aws:iam::111122223333:role/applier"


def pool(accelerator: str = "H100", per_node: int = 8, **more: Any) -> NodeGroup:
    return groups_of_capacity(GpuPool(name="big", accelerator=accelerator, per_node=per_node, **more))[0]


@pytest.mark.parametrize(
    ("instance_type", "interfaces"),
    [
        ("p5.48xlarge", 32),
        ("p5en.48xlarge", 16),
        ("p4d.24xlarge", 4),
        ("p6-b200.48xlarge", 8),
        ("g6.12xlarge", 1),
        ("g5.xlarge", 0),
    ],
)
def test_a_node_has_one_fabric_interface_per_card_and_an_address_on_the_first(
    instance_type: str, interfaces: int
) -> None:
    cards = node_config.network_cards(machine(instance_type))
    assert [card.card for card in cards] == list(range(interfaces))
    assert [(card.device, card.kind) for card in cards[:1]] == [(0, "efa")] * bool(interfaces)
    assert {(card.device, card.kind) for card in cards[1:]} <= {(1, "efa-only")}


def test_where_card_0_has_no_fabric_it_carries_addresses_and_the_others_the_fabric() -> None:
    first, *others = node_config.network_cards(machine("p6-b300.48xlarge"))
    assert first == node_config.NetworkCard(0, 0, "interface")
    assert others == [node_config.NetworkCard(card, 0, "efa-only") for card in range(1, 17)]


def test_user_data_joins_the_local_disks_in_a_form_that_eks_merges() -> None:
    user_data = node_config.user_data(machine("p5.48xlarge"))
    assert user_data is not None
    message = email.message_from_bytes(base64.b64decode(user_data))
    (part,) = message.get_payload()
    assert part.get_content_type() == "application/node.eks.aws"
    assert json.loads(part.get_payload())["spec"] == {"instance": {"localStorage": {"strategy": "RAID0"}}}


def test_a_machine_without_local_disks_boots_as_it_is() -> None:
    assert node_config.user_data(machine("m7i.2xlarge")) is None


@pytest.mark.parametrize(("instance_type", "others"), [("g6.xlarge", set()), ("p5.48xlarge", {"instance"})])
def test_a_pool_with_fast_image_pull_selects_nodeadms_feature_gate(
    instance_type: str, others: set[str]
) -> None:
    known = machine(instance_type)
    user_data = node_config.user_data(
        known if others else replace(known, local_nvme_gb=0), fast_image_pull=True
    )
    assert user_data is not None
    (part,) = email.message_from_bytes(base64.b64decode(user_data)).get_payload()
    spec = json.loads(part.get_payload())["spec"]
    assert spec["featureGates"] == {"FastImagePull": True}
    assert spec.keys() - {"featureGates"} == others


def test_the_root_disk_of_fast_image_pull_is_fast_enough_for_it() -> None:
    """EBS: gp3 has at most 0.25 MiB/s per IOPS and 500 IOPS per GiB; the smallest disk of a pool has 50."""
    fast = node_config._root_volume(50, "key", fast=True)
    slow = node_config._root_volume(50, "key", fast=False)
    assert (fast["throughput"], slow["throughput"]) == (1000, 500)
    assert fast["throughput"] / fast["iops"] <= 0.25
    assert fast["iops"] <= 500 * 50
    assert "iops" not in slow


def test_containers_of_a_fabric_node_may_lock_memory_and_keep_their_open_files() -> None:
    user_data = node_config.user_data(machine("p5.48xlarge"), fabric=True)
    assert user_data is not None
    (part,) = email.message_from_bytes(base64.b64decode(user_data)).get_payload()
    spec = json.loads(part.get_payload())["spec"]
    assert spec["instance"] == {"localStorage": {"strategy": "RAID0"}}
    limits = {each["type"]: each for each in spec["containerd"]["baseRuntimeSpec"]["process"]["rlimits"]}
    assert limits["RLIMIT_NOFILE"] == {"type": "RLIMIT_NOFILE", "soft": 65536, "hard": 1048576}
    locked = limits["RLIMIT_MEMLOCK"]
    assert locked["soft"] == locked["hard"] >= machine("p5.48xlarge").memory_gib * 2**30
    assert locked["hard"] < 1 << 53, "nodeadm reads numbers as floats"


@pytest.mark.parametrize(
    ("capacity", "reservation", "expected"),
    [
        (Capacity.ON_DEMAND, "", ("ON_DEMAND", None, None)),
        (Capacity.SPOT, "", ("SPOT", None, None)),
        (Capacity.RESERVED, "cr-1", ("ON_DEMAND", None, "cr-1")),
        (Capacity.CAPACITY_BLOCK, "cr-2", ("CAPACITY_BLOCK", "capacity-block", "cr-2")),
    ],
)
def test_each_kind_of_capacity_is_asked_for_in_its_own_way(
    capacity: Capacity, reservation: str, expected: tuple[str, str | None, str | None]
) -> None:
    assert node_config.purchase_options(capacity, reservation) == expected


P5 = "p5.48xlarge"


@pytest.mark.parametrize(
    ("pool_spec", "efa", "group"),
    [
        (pool(), False, False),
        (pool(compact=True), False, True),
        (pool(interconnect="best"), True, True),
        (pool(interconnect="best", capacity="capacity-block", reservation="cr-1"), True, False),
        (pool(compact=True, capacity="reserved", reservation="cr-1"), False, False),
        (pool(interconnect="best", capacity="reserved", reservation="cr-1"), True, False),
    ],
)
def test_fabric_and_placement_follow_the_spec(pool_spec: NodeGroup, *, efa: bool, group: bool) -> None:
    assert node_pools.uses_efa(pool_spec, machine(P5)) is efa
    assert node_pools.needs_placement_group(pool_spec, machine(P5)) is group


def test_a_machine_without_efa_gets_none_even_if_requested() -> None:
    assert not node_pools.uses_efa(pool("A10G", 1, interconnect="best"), machine("g5.xlarge"))


def test_a_pool_at_zero_nodes_says_all_that_schedulers_ask_for() -> None:
    pool_spec = pool(interconnect="best", labels={"team": "speech"})
    tags = node_pools.scale_from_zero(pool_spec, machine(P5))
    prefix = "k8s.io/cluster-autoscaler/node-template"
    assert tags == {
        f"{prefix}/label/team": "speech",
        f"{prefix}/label/nvidia.com/gpu.present": "true",
        f"{prefix}/label/skypilot.co/accelerator": "h100",
        f"{prefix}/label/k8s.amazonaws.com/accelerator": "h100",
        f"{prefix}/label/trainfleet.io/pool": "big",
        f"{prefix}/resources/nvidia.com/gpu": "8",
        f"{prefix}/resources/vpc.amazonaws.com/efa": "32",
        f"{prefix}/resources/hugepages-2Mi": "10256Mi",
        f"{prefix}/resources/ephemeral-storage": "28880G",
        f"{prefix}/taint/nvidia.com/gpu": "present:NoSchedule",
    }


def test_own_labels_never_hide_the_platforms() -> None:
    labels = node_pools.labels(
        pool(labels={"skypilot.co/accelerator": "H100", "trainfleet.io/pool": "other"}), machine(P5)
    )
    assert labels["skypilot.co/accelerator"] == "h100"
    assert labels["trainfleet.io/pool"] == "big"


@pytest.mark.parametrize("version", [row.version for row in supported_versions("aws", today())])
def test_every_kubernetes_version_that_a_spec_may_name_has_its_add_ons_pinned(version: str) -> None:
    shared = {"shared_filesystem": {"kind": "lustre", "capacity_gib": 1200}}
    for name in addons.names(platform(kubernetes={"version": version}, storage=shared)):
        assert addons.version(version, name).startswith("v"), name


def test_a_version_without_pinned_add_ons_is_refused_with_those_that_have() -> None:
    with pytest.raises(addons.InputError, match=r"1\.20.*known: .*1\.34"):
        addons.version("1.20", "coredns")


def test_the_network_plug_in_enforces_policies_and_saves_addresses() -> None:
    settings = addons.configuration("vpc-cni", {})
    assert settings["enableNetworkPolicy"] == "true"
    assert settings["env"]["ENABLE_PREFIX_DELEGATION"] == "true"


def test_what_nodes_need_to_start_is_installed_before_them() -> None:
    names = addons.names(platform())
    assert names[:3] == ("vpc-cni", "kube-proxy", "eks-pod-identity-agent")
    assert {"coredns", "aws-ebs-csi-driver", "eks-node-monitoring-agent", "metrics-server"} == set(names[3:])


@pytest.mark.parametrize(
    ("settings", "arguments"),
    [
        ({}, []),
        ({"aws:profile": "ops"}, ["--profile", "ops"]),
        ({"aws:assumeRoles": f'[{{"roleArn": "{ROLE}"}}]'}, ["--role-arn", ROLE]),
        (
            {"aws:profile": "ops", "aws:assumeRole": f'{{"roleArn": "{ROLE}"}}'},
            ["--profile", "ops", "--role-arn", ROLE],
        ),
    ],
)
def test_the_layer_is_installed_as_the_identity_of_the_provider(
    settings: dict[str, str], arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulumi.config.get_config", settings.get)
    login = applier_login(pulumi.Config("aws"))
    assert login == arguments
    document = kubeconfig("lab", "us-east-2", "https://x", "Y2E=", *login)
    command = document["users"][0]["user"]["exec"]["args"]
    assert command[len(command) - len(arguments) :] == arguments


def test_a_chain_of_roles_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = f'[{{"roleArn": "{ROLE}"}}, {{"roleArn": "{ROLE}2"}}]'
    monkeypatch.setattr("pulumi.config.get_config", {"aws:assumeRoles": chain}.get)
    with pytest.raises(pulumi.RunError, match="aws:assumeRoles has several roles"):
        applier_login(pulumi.Config("aws"))


def test_the_kubeconfig_holds_no_credential() -> None:
    document = kubeconfig("trainfleet-lab", "us-east-2", "https://x", "Y2E=")
    (user,) = document["users"]
    assert set(user["user"]) == {"exec"}
    assert user["user"]["exec"]["args"][-4:] == ["--cluster-name", "trainfleet-lab", "--region", "us-east-2"]
    assert document["current-context"] == "trainfleet-lab"


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ((0.5, 1.0), [("ACTUAL", 50.0), ("ACTUAL", 100.0), ("FORECASTED", 100.0)]),
        (
            (0.1, 0.2, 0.3, 0.4, 0.5),
            [("ACTUAL", 10.0), ("ACTUAL", 20.0), ("ACTUAL", 30.0), ("ACTUAL", 40.0), ("ACTUAL", 50.0)],
        ),
    ],
)
def test_a_budget_has_an_alert_per_share_and_a_forecast_if_aws_allows_one_more(
    shares: tuple[float, ...], expected: list[tuple[str, float]]
) -> None:
    alerts = budget.alerts(Budget(monthly_usd=100, alert_at=shares), "owner@example.com")
    assert [(alert["notification_type"], alert["threshold"]) for alert in alerts] == expected
    assert all(alert.get("subscriber_email_addresses") == ["owner@example.com"] for alert in alerts)


def test_tagged_images_never_expire() -> None:
    assert [rule["selection"]["tagStatus"] for rule in registry.cleanup_policy()["rules"]] == ["untagged"]


def test_every_gpu_machine_of_the_catalogue_can_be_made_a_node() -> None:
    from trainfleet.infra.catalog.machines import machines_of
    from trainfleet.infra.clouds import Cloud

    found: tuple[Machine, ...] = machines_of(Cloud.AWS)
    assert found
    for each in found:
        assert (
            sum(card.kind.startswith("efa") for card in node_config.network_cards(each)) == each.rdma_nics
        ), each.instance_type
