"""Every rule of Google Cloud, with specs that break it and specs that keep it."""

from __future__ import annotations

import copy
import re
from typing import Any, NamedTuple

import pytest

from trainfleet.infra.gcp.validation import RULES
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.validation.finding import Finding
from trainfleet.infra.validation.rules import rules_of, violations
from trainfleet.pydantic_messages import path_text

BASE: dict[str, Any] = {
    "name": "demo",
    "cloud": "gcp",
    "region": "us-central1",
    "account": "my-project-123456",
    "owner": "ml-platform@example.com",
    "gpu_pools": [{"name": "l4", "accelerator": "L4", "max_nodes": 2}],
}
POOL = "gpu_pools[0]"
FACTS = {"vcpu": 48, "memory_gib": 192, "gpu_memory_gib": 24}
SHARED = "storage.shared_filesystem"
H100 = {f"{POOL}.accelerator": "H100", f"{POOL}.per_node": 8}
H200 = {f"{POOL}.accelerator": "H200", f"{POOL}.per_node": 8, f"{POOL}.capacity": "spot"}
ULTRA = {"accelerator": "H200", "per_node": 8, "capacity": "spot", "interconnect": "best"}
B200 = {"accelerator": "B200", "per_node": 8, "capacity": "spot", "interconnect": "best"}
LUSTRE = {"kind": "lustre", "capacity_gib": 18000, "throughput_mbps_per_tib": 500}


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
        {"region": "us-centrall1"},
        "region",
        "did you mean `us-central1`?",
        {"region": "me-west1"},
    ),
    Case(
        "region_is_known",
        {"region": "us-east1-b"},
        "region",
        "its region is us-east1",
        {"region": "us-east1"},
    ),
    Case("region_is_known", {"region": "mars"}, "region", "for example us-central1"),
    Case("region_has_zones", {"network.zones": 5}, "network.zones", "at most 4", {"network.zones": 4}),
    Case(
        "region_has_zones",
        {"network.zones": 4, "region": "us-east1"},
        "network.zones",
        "at most 3",
        {"network.zones": 1},
    ),
    Case(
        "zones_are_in_the_region",
        {f"{POOL}.zone": "us-east4-a"},
        f"{POOL}.zone",
        "us-central1-f",
        {f"{POOL}.zone": "us-central1-f"},
    ),
    Case(
        "zones_are_in_the_region",
        {f"{POOL}.zone": "us-east1-a", "region": "us-east1"},
        f"{POOL}.zone",
        "us-east1-b, us-east1-c, us-east1-d",
        {f"{POOL}.zone": "us-east1-b", "region": "us-east1"},
    ),
    Case(
        "machines_are_in_the_region",
        {**H200, "region": "europe-west9"},
        f"{POOL}.accelerator",
        "in europe-west9 is not in this catalogue -> it is in",
        H200,
    ),
    Case(
        "machines_are_in_the_region",
        {**H200, f"{POOL}.zone": "us-central1-a"},
        f"{POOL}.zone",
        "zone: us-central1-b",
        H200,
    ),
    Case(
        "machines_are_in_the_region",
        {**H200, "network.zones": 1},
        f"{POOL}.zone",
        "zone: us-central1-b",
        {**H200, "network.zones": 2},
    ),
    Case(
        "network_can_be_divided",
        {"network.cidr": "10.0.0.0/21"},
        "network.cidr",
        "too small",
        {"network.cidr": "10.0.0.0/20"},
    ),
    Case(
        "network_can_be_divided",
        {"network.cidr": "0.0.0.0/4"},
        "network.cidr",
        "a /8 to a /20",
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
        {"network.cidr": "172.16.0.0/12"},
        "network.cidr",
        "172.17.0.0/16",
        {"network.cidr": "172.20.0.0/16"},
    ),
    Case(
        "network_is_private",
        {"network.cidr": "100.64.0.0/16", SHARED: LUSTRE},
        "network.cidr",
        "RFC 1918",
        {SHARED: LUSTRE},
    ),
    Case(
        "nodes_have_pod_ranges",
        {"network.cidr": "10.0.0.0/20", f"{POOL}.max_nodes": 4},
        "network.cidr",
        "a /19 or larger",
        {"network.cidr": "10.0.0.0/20"},
    ),
    Case(
        "nodes_have_pod_ranges",
        {f"{POOL}.max_nodes": 200},
        "network.cidr",
        "a /15 or larger",
        {f"{POOL}.max_nodes": 120},
    ),
    Case("nodes_have_pod_ranges", {f"{POOL}.max_nodes": 90000}, "network.cidr", "-> fewer nodes"),
    Case(
        "fabric_has_addresses",
        {**H100, f"{POOL}.interconnect": "best", "network.cidr": "10.0.0.0/20", f"{POOL}.max_nodes": 12},
        "network.cidr",
        "of 13 nodes",
        {**H100, f"{POOL}.interconnect": "best", "network.cidr": "10.0.0.0/20", f"{POOL}.max_nodes": 11},
    ),
    Case(
        "services_have_addresses",
        {"network.cidr": "10.0.0.0/18", SHARED: LUSTRE},
        "network.cidr",
        "a /17",
        {"network.cidr": "10.0.0.0/17", SHARED: LUSTRE},
    ),
    Case(
        "rdma_is_in_one_zone",
        {
            "region": "us-west3",
            "gpu_pools": [
                {"name": "a", **B200, "zone": "us-west3-b"},
                {"name": "b", **B200, "zone": "us-west3-c"},
            ],
        },
        "gpu_pools[1].zone",
        "zone: us-west3-b",
        {"gpu_pools": [{"name": "a", **B200}, {"name": "b", **ULTRA}]},
    ),
    Case(
        "compact_is_not_queued",
        {f"{POOL}.capacity": "queued", f"{POOL}.compact": True},
        f"{POOL}.compact",
        "false",
        {f"{POOL}.compact": True},
    ),
    Case(
        "queued_pools_have_the_queue",
        {f"{POOL}.capacity": "queued"},
        "queue.enabled",
        "nothing else requests the nodes of pool `l4`",
        {f"{POOL}.capacity": "queued", "queue.enabled": True},
    ),
    Case(
        "queued_is_the_only_capacity",
        {f"{POOL}.capacity": ["queued", "spot"], "queue.enabled": True},
        f"{POOL}.capacity",
        "flex-start in the list, or a pool of its own",
    ),
    Case(
        "requested_pools_start_empty",
        {f"{POOL}.capacity": "flex-start", f"{POOL}.min_nodes": 1},
        f"{POOL}.min_nodes",
        "only on request",
        {f"{POOL}.capacity": "flex-start"},
    ),
    Case(
        "requested_pools_start_empty",
        {f"{POOL}.capacity": "queued", f"{POOL}.min_nodes": 1},
        f"{POOL}.min_nodes",
        "0",
        {f"{POOL}.min_nodes": 1},
    ),
    Case(
        "run_hours_have_effect",
        {f"{POOL}.max_run_hours": 24},
        f"{POOL}.max_run_hours",
        "capacity: flex-start",
        {f"{POOL}.max_run_hours": 24, f"{POOL}.capacity": "queued"},
    ),
    Case(
        "accelerators_have_a_name",
        {f"{POOL}.accelerator": "B400", f"{POOL}.instance_type": "a9-highgpu-1g", f"{POOL}.machine": FACTS},
        f"{POOL}.accelerator",
        "the name of `B400` on GKE is not in this catalogue",
        {f"{POOL}.instance_type": "a9-highgpu-1g", f"{POOL}.machine": FACTS},
    ),
    Case(
        "machines_are_bought_as_sold",
        {f"{POOL}.accelerator": "H100", f"{POOL}.per_node": 2},
        f"{POOL}.capacity",
        "spot, flex-start or queued",
        {f"{POOL}.accelerator": "H100", f"{POOL}.per_node": 2, f"{POOL}.capacity": "spot"},
    ),
    Case(
        "machines_are_bought_as_sold",
        {**H200, f"{POOL}.capacity": "on-demand"},
        f"{POOL}.capacity",
        "Google does not offer a3-ultragpu-8g on demand",
        H200,
    ),
    Case(
        "reservations_are_named",
        {f"{POOL}.capacity": "reserved", f"{POOL}.reservation": "A B"},
        f"{POOL}.reservation",
        "projects/PROJECT",
        {
            f"{POOL}.capacity": "reserved",
            f"{POOL}.reservation": "projects/other-project/reservations/block-1",
        },
    ),
    Case(
        "labels_of_nodes_are_free",
        {f"{POOL}.labels": {"cloud.google.com/gke-spot": "true"}},
        f'{POOL}.labels["cloud.google.com/gke-spot"]',
        "set by GKE",
        {f"{POOL}.labels": {"example.com/team": "ml"}},
    ),
    Case(
        "logs_are_kept_as_offered",
        {"kubernetes.log_retention_days": 4000},
        "kubernetes.log_retention_days",
        "at most 3650",
    ),
    Case(
        "people_are_emails",
        {"kubernetes.admins": ["role/x"]},
        "kubernetes.admins[0]",
        "e-mail",
        {"kubernetes.admins": ["a@example.com"]},
    ),
    Case(
        "people_are_emails",
        {"kubernetes.launchers": ["group:x"]},
        "kubernetes.launchers[0]",
        "e-mail",
        {"kubernetes.launchers": ["group:ml@example.com", "ci@p.iam.gserviceaccount.com"]},
    ),
    Case(
        "people_are_emails",
        {"kubernetes.admins": ["domain:example.com"]},
        "kubernetes.admins[0]",
        "e-mail",
        {"kubernetes.admins": ["serviceAccount:ci@p.iam.gserviceaccount.com", "user:a@example.com"]},
    ),
    Case(
        "launcher_groups_share_a_domain",
        {"kubernetes.launchers": ["group:a@example.com", "b@example.org", "group:c@example.org"]},
        "kubernetes.launchers[2]",
        "another launcher is one of example.com",
        {"kubernetes.launchers": ["group:a@example.com", "b@example.org", "group:c@example.com"]},
    ),
    Case(
        "filesystem_is_sold",
        {SHARED: {**LUSTRE, "capacity_gib": 20000}},
        f"{SHARED}.capacity_gib",
        "36000, and more in steps of 18000",
        {SHARED: LUSTRE},
    ),
    Case(
        "filesystem_is_sold",
        {SHARED: {"kind": "lustre"}},
        f"{SHARED}.capacity_gib",
        "72000",
        {SHARED: {"kind": "nfs"}},
    ),
    Case(
        "filesystem_is_sold",
        {SHARED: {**LUSTRE, "capacity_gib": 18_000_000}},
        f"{SHARED}.capacity_gib",
        "at most 1908000",
    ),
    Case(
        "filesystem_is_sold",
        {SHARED: {"kind": "nfs", "capacity_gib": 11000}},
        f"{SHARED}.capacity_gib",
        "12800, and more in steps of 2560",
        {SHARED: {"kind": "nfs", "capacity_gib": 10240}},
    ),
    Case(
        "budget_has_few_channels",
        {"budget": {"monthly_usd": 9000, "emails": [f"a{index}@example.com" for index in range(6)]}},
        "budget.emails",
        "a mailing list",
        {"budget": {"monthly_usd": 9000, "emails": [f"a{index}@example.com" for index in range(5)]}},
    ),
    Case(
        "tags_fit_labels",
        {"tags": {"x" * 64: "y"}},
        f"tags.{'x' * 64}",
        "63",
        {"tags": {"Cost-Center": "CC 12"}},
    ),
    Case("tags_fit_labels", {"tags": {"1st": "y"}}, "tags.1st", "starts with a letter"),
    Case("tags_fit_labels", {"tags": {"trainfleet-owner": "y"}}, "tags.trainfleet-owner", "sets itself"),
    Case(
        "tags_fit_labels",
        {"tags": {"team": "a", "Team": "b"}},
        "tags.Team",
        "as `team` does",
        {"tags": {"team": "a", "unit": "b"}},
    ),
    Case("tags_fit_labels", {"tags": {f"t{index}": "x" for index in range(60)}}, "tags", "at most 59"),
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
    (found,) = [each for each in RULES if each.__name__ == f"gcp_{rule}"]
    return list(found(spec))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}:{case.where}")
def test_a_rule_says_where_a_spec_breaks_it_and_what_would_be_right(case: Case) -> None:
    findings = findings_of(case.rule, changed(case.bad))
    assert [path_text(finding.where) for finding in findings] == [case.where]
    assert case.says in f"{findings[0].what} -> {findings[0].fix}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}:{case.where}")
def test_a_rule_is_silent_where_a_spec_keeps_it(case: Case) -> None:
    assert findings_of(case.rule, changed(case.good)) == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}:{case.where}")
def test_no_rule_raises_on_a_spec_that_breaks_another(case: Case) -> None:
    assert case.where in [path_text(finding.where) for finding in violations(changed(case.bad))]


def test_no_rule_of_this_cloud_applies_to_another() -> None:
    assert set(RULES) <= set(rules_of(changed({})))
    assert not set(RULES) & set(rules_of(changed({"cloud": "aws"})))


def test_every_rule_has_a_case_and_a_reason_with_its_source() -> None:
    assert {f"gcp_{case.rule}" for case in CASES} == {rule.__name__ for rule in RULES}
    assert [rule.__name__ for rule in RULES if "(" not in (rule.__doc__ or "")] == []


def test_the_base_breaks_no_rule() -> None:
    assert list(violations(changed({}))) == []


def test_no_rule_raises_where_the_region_is_unknown() -> None:
    spec = changed({"region": "mars", "gpu_pools": [{"name": "a", **B200}, {"name": "b", **ULTRA}]})
    assert [path_text(finding.where) for finding in violations(spec)] == ["region"]
