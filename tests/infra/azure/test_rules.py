"""Every rule of Azure, with specs that break it and specs that keep it."""

from __future__ import annotations

import copy
import re
from typing import Any, NamedTuple

import pytest

from tests.infra.azure.platforms import ADMINS, LAUNCHERS, RESERVATION, SUBSCRIPTION
from trainfleet.infra.azure.validation import RULES
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.validation.finding import Finding
from trainfleet.infra.validation.node_pools import price_is_known
from trainfleet.infra.validation.rules import notices, rules_of, violations
from trainfleet.pydantic_messages import path_text

BASE: dict[str, Any] = {
    "name": "demo",
    "cloud": "azure",
    "region": "eastus",
    "account": SUBSCRIPTION,
    "owner": "ml-platform@example.com",
    "kubernetes": {"admins": [ADMINS], "access": {"public_ranges": ["203.0.113.0/24"]}},
    "gpu_pools": [{"name": "t4", "accelerator": "T4", "max_nodes": 2}],
}
POOL = "gpu_pools[0]"
SHARED = "storage.shared_filesystem"
LUSTRE = {"kind": "lustre", "capacity_gib": 16384}
RESERVED = {f"{POOL}.capacity": "reserved", f"{POOL}.reservation": RESERVATION}
H100 = {f"{POOL}.accelerator": "H100", f"{POOL}.per_node": 8}
_NET = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/net/providers/Microsoft.Network/virtualNetworks/v"
VNET = {"id": _NET, "subnets": {name: f"{_NET}/subnets/{name}" for name in ("nodes", "endpoints")}}
PUBLIC = "kubernetes.access.public_ranges"


class Case(NamedTuple):
    """A rule, changes that break it, where it must say so, a part of what it must say or advise, and changes
    that keep it.
    """

    rule: str
    bad: dict[str, Any]
    where: str
    says: str
    good: dict[str, Any] = {}


CASES = [
    Case(
        "region_is_known",
        {"region": "eastuss"},
        "region",
        "did you mean `eastus`?",
        {"region": "swedencentral"},
    ),
    Case("region_is_known", {"region": "East US"}, "region", "did you mean `eastus`?"),
    Case("region_is_known", {"region": "us-east-2"}, "region", "is not a region of azure"),
    Case(
        "api_server_is_in_the_network",
        {"region": "qatarcentral"},
        "region",
        "AKS does not place API servers in a network in qatarcentral",
        {"region": "uaenorth"},
    ),
    Case("region_has_zones", {"network.zones": 4}, "network.zones", "at most 3", {"network.zones": 3}),
    Case(
        "region_has_zones",
        {"region": "westus", "network.zones": 2},
        "network.zones",
        "has no zones",
        {"region": "westus", "network.zones": 1},
    ),
    Case(
        "zone_is_a_number",
        {f"{POOL}.zone": "eastus-1"},
        f"{POOL}.zone",
        '"1", "2" or "3"',
        {f"{POOL}.zone": "3"},
    ),
    Case("zone_is_a_number", {f"{POOL}.zone": "4"}, f"{POOL}.zone", "is not a zone"),
    Case(
        "zone_is_a_number",
        {"region": "westus", "network.zones": 1, f"{POOL}.zone": "1"},
        f"{POOL}.zone",
        "westus has no zones",
    ),
    Case(
        "network_size",
        {"network.cidr": "10.0.0.0/21"},
        "network.cidr",
        "a /8 to a /20",
        {"network.cidr": "10.0.0.0/20"},
    ),
    Case(
        "network_size",
        {"network.cidr": "0.0.0.0/4"},
        "network.cidr",
        "larger than a virtual network",
        {"network.cidr": "10.0.0.0/8"},
    ),
    Case(
        "network_is_private",
        {"network.cidr": "52.0.0.0/16"},
        "network.cidr",
        "10.0.0.0/8",
        {"network.cidr": "100.64.0.0/16"},
    ),
    Case(
        "network_is_private",
        {"network.cidr": "172.30.0.0/16"},
        "network.cidr",
        "AKS reserves",
        {"network.cidr": "172.29.0.0/16"},
    ),
    Case(
        "network_is_private",
        {"network.cidr": "172.16.0.0/12"},
        "network.cidr",
        "AKS reserves",
        {"network.cidr": "172.16.0.0/13"},
    ),
    Case(
        "nodes_have_addresses",
        {f"{POOL}.max_nodes": 900},
        "gpu_pools",
        "serves 1024",
        {f"{POOL}.max_nodes": 700},
    ),
    Case(
        "nodes_have_addresses",
        {"network.cidr": "10.0.0.0/20", f"{POOL}.zone": "2", f"{POOL}.max_nodes": 200},
        "network.cidr",
        "a /19 or larger",
        {"network.cidr": "10.0.0.0/20", f"{POOL}.zone": "2", f"{POOL}.max_nodes": 180},
    ),
    Case(
        "pool_sizes",
        {f"{POOL}.max_nodes": 1001},
        f"{POOL}.max_nodes",
        "at most 1000",
        {f"{POOL}.max_nodes": 1000},
    ),
    Case(
        "pool_sizes",
        {"system_pool.max_nodes": 1001},
        "system_pool.max_nodes",
        "at most 1000",
        {"system_pool.max_nodes": 1000},
    ),
    Case(
        "pool_names", {f"{POOL}.name": "addons"}, f"{POOL}.name", "another name", {f"{POOL}.name": "addons2"}
    ),
    Case(
        "capacity_can_be_reserved",
        {**H100, **RESERVED},
        f"{POOL}.capacity",
        "does not reserve capacity of Standard_ND96isr_H100_v5",
        RESERVED,
    ),
    Case(
        "capacity_can_be_reserved",
        {**RESERVED, f"{POOL}.accelerator": "H100"},
        f"{POOL}.capacity",
        "Standard_NC40ads_H100_v5",
        H100,
    ),
    Case(
        "reservation_is_a_group",
        {**RESERVED, f"{POOL}.reservation": "my-group"},
        f"{POOL}.reservation",
        "capacityReservationGroups",
        {**RESERVED, f"{POOL}.reservation": RESERVATION.replace("a100", "other")},
    ),
    Case(
        "reserved_is_not_compact",
        {**RESERVED, f"{POOL}.compact": True},
        f"{POOL}.compact",
        "leave it out",
        {f"{POOL}.compact": True},
    ),
    Case(
        "root_disk",
        {f"{POOL}.disk_gib": 2049},
        f"{POOL}.disk_gib",
        "at most 2048",
        {f"{POOL}.disk_gib": 2048},
    ),
    Case(
        "labels_are_free",
        {f"{POOL}.labels": {"kubernetes.azure.com/mode": "x"}},
        f'{POOL}.labels["kubernetes.azure.com/mode"]',
        "set by AKS",
        {f"{POOL}.labels": {"azure.company.com/mode": "x"}},
    ),
    Case(
        "people_are_groups",
        {"kubernetes.admins": []},
        "kubernetes.admins",
        "nobody could log in",
        {"kubernetes.launchers": [LAUNCHERS]},
    ),
    Case(
        "people_are_groups",
        {"kubernetes.admins": ["me@example.com"]},
        "kubernetes.admins[0]",
        "az ad group show",
    ),
    Case(
        "people_are_groups",
        {"kubernetes.launchers": [LAUNCHERS, "team"]},
        "kubernetes.launchers[1]",
        "object id",
    ),
    Case(
        "logs_are_kept_as_sold",
        {"kubernetes.log_retention_days": 29},
        "kubernetes.log_retention_days",
        "30 to 730",
        {"kubernetes.log_retention_days": 30},
    ),
    Case(
        "logs_are_kept_as_sold",
        {"kubernetes.log_retention_days": 731},
        "kubernetes.log_retention_days",
        "for 731 days",
        {"kubernetes.log_retention_days": 730},
    ),
    Case(
        "objects_come_back",
        {"storage.retention_days": 366},
        "storage.retention_days",
        "at most 365",
        {"storage.retention_days": 365},
    ),
    Case(
        "filesystem_is_sold",
        {SHARED: {"kind": "nfs", "capacity_gib": 102401}},
        f"{SHARED}.capacity_gib",
        "102400",
        {SHARED: {"kind": "nfs", "capacity_gib": 100}},
    ),
    Case(
        "filesystem_is_sold",
        {SHARED: {**LUSTRE, "throughput_mbps_per_tib": 1000}},
        f"{SHARED}.throughput_mbps_per_tib",
        "125, 250, 500",
        {SHARED: LUSTRE},
    ),
    Case("filesystem_is_sold", {SHARED: {**LUSTRE, "capacity_gib": 1200}}, f"{SHARED}.capacity_gib", "16384"),
    Case(
        "filesystem_is_sold",
        {SHARED: {**LUSTRE, "capacity_gib": 5000, "throughput_mbps_per_tib": 500}},
        f"{SHARED}.capacity_gib",
        "8192",
        {SHARED: {**LUSTRE, "capacity_gib": 4096, "throughput_mbps_per_tib": 500}},
    ),
    Case(
        "filesystem_is_sold",
        {SHARED: {**LUSTRE, "capacity_gib": 147456}},
        f"{SHARED}.capacity_gib",
        "at most 131072",
        {SHARED: {**LUSTRE, "capacity_gib": 131072}},
    ),
    Case(
        "ranges_are_few",
        {PUBLIC: [f"203.0.{part}.0/24" for part in range(101)]},
        PUBLIC,
        "at most 100",
        {PUBLIC: [f"203.0.{part}.0/24" for part in range(100)]},
    ),
    Case(
        "owner_encrypts_an_existing_network",
        {"network.encryption": True, "network.existing": VNET},
        "network.encryption",
        "is a setting of the existing network -> leave it out, and set it there",
        {"network.existing": VNET},
    ),
    Case(
        "tags_are_free",
        {"tags": {"team/part": "x"}},
        "tags.team/part",
        "without <",
        {"tags": {"team:part": "x"}},
    ),
    Case(
        "tags_are_free",
        {"tags": {"AzureTeam": "x"}},
        "tags.AzureTeam",
        "reserved by Azure",
        {"tags": {"team-azure": "x"}},
    ),
    Case(
        "tags_are_free",
        {"tags": {"team": "x", "Team": "y"}},
        "tags.Team",
        "ignores case",
        {"tags": {"team": "x", "teams": "y"}},
    ),
    Case("tags_are_free", {"tags": {"NAME": "x"}}, "tags.NAME", "same tag as `Name`"),
]


def changed(changes: dict[str, Any]) -> PlatformSpec:
    """The base spec with a value put at each path."""
    document: Any = copy.deepcopy(BASE)
    for path, value in changes.items():
        place = document
        steps = [int(step[1:]) if step.startswith("[") else step for step in re.findall(r"\[\d+|\w+", path)]
        for step in steps[:-1]:
            place = place.setdefault(step, {}) if isinstance(place, dict) else place[step]
        place[steps[-1]] = value
    return PlatformSpec.model_validate(document)


def findings_of(rule: str, spec: PlatformSpec) -> list[Finding]:
    (found,) = [each for each in RULES if each.__name__ == f"azure_{rule}"]
    return list(found(spec))


def name(case: Case) -> str:
    return f"{case.rule}:{case.where}"


@pytest.mark.parametrize("case", CASES, ids=name)
def test_a_rule_says_where_a_spec_breaks_it_and_what_would_be_right(case: Case) -> None:
    findings = findings_of(case.rule, changed(case.bad))
    assert [path_text(finding.where) for finding in findings] == [case.where]
    assert case.says in f"{findings[0].what} -> {findings[0].fix}"


@pytest.mark.parametrize("case", CASES, ids=name)
def test_a_rule_is_silent_where_a_spec_keeps_it(case: Case) -> None:
    assert findings_of(case.rule, changed(case.good)) == []


@pytest.mark.parametrize("case", CASES, ids=name)
def test_no_rule_raises_on_a_spec_that_breaks_another(case: Case) -> None:
    assert case.where in [path_text(finding.where) for finding in violations(changed(case.bad))]


def test_no_rule_of_this_cloud_applies_to_another() -> None:
    assert set(RULES) <= set(rules_of(changed({})))
    assert not set(RULES) & set(rules_of(changed({"cloud": "aws"})))


def test_every_rule_has_a_case_and_a_reason_with_its_source() -> None:
    assert {f"azure_{case.rule}" for case in CASES} == {rule.__name__ for rule in RULES}
    assert [rule.__name__ for rule in RULES if "(" not in (rule.__doc__ or "")] == []


def test_the_base_breaks_no_rule() -> None:
    assert list(violations(changed({}))) == []


def test_a_budget_goes_with_spot_pools_because_their_worst_price_is_known() -> None:
    spec = changed({f"{POOL}.capacity": "spot", "budget": {"monthly_usd": 5000}})
    assert list(price_is_known(spec)) == []


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ({**H100, f"{POOL}.interconnect": "best"}, True),
        ({f"{POOL}.compact": True}, True),
        ({**H100, f"{POOL}.interconnect": "best", f"{POOL}.zone": "2"}, False),
        (H100, False),
        ({f"{POOL}.compact": True, "network.zones": 1}, False),
        ({f"{POOL}.compact": True, "region": "westus", "network.zones": 1}, False),
    ],
)
def test_a_pool_of_one_zone_is_warned_about_until_the_zone_is_chosen(
    changes: dict[str, Any], warned: bool
) -> None:
    found = list(notices(changed(changes)))
    assert [path_text(each.where) for each in found] == ([f"{POOL}.zone"] if warned else [])
    assert all("az vm list-skus -l eastus" in each.fix for each in found)
