"""What preflight lists for a stack: computed from the spec, with the request that answers what is open."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from datetime import date, timedelta
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from trainfleet.dates import as_of
from trainfleet.infra.aws.preflight import quota_name
from trainfleet.infra.preflight import PLACES, TOPICS, api_server, decided_problems, preflight_checks
from trainfleet.infra.spec.load import load_stack
from trainfleet.infra.spec.schema import Access, PlatformSpec
from trainfleet.kubernetes_support import versions_of

Trainfleet = Callable[..., subprocess.CompletedProcess[str]]
PROD = ("aws-prod", "gcp-prod", "azure-prod")
OWN = {"caller", "quota", "zones", "reservation", "names"}
PRIVATE = Access(endpoint="private", private_ranges=(IPv4Network("10.8.0.0/16"),))


def with_access(stack: str, access: Access) -> PlatformSpec:
    spec = load_stack(stack)
    return spec.model_copy(update={"kubernetes": spec.kubernetes.model_copy(update={"access": access})})


def needs(stack: str, topic: str) -> list[str]:
    return [each.needs for each in preflight_checks(load_stack(stack)) if each.topic == topic]


@pytest.mark.parametrize("stack", PROD)
def test_every_cloud_lists_the_same_topics_and_only_what_is_open_names_a_request(stack: str) -> None:
    checks = preflight_checks(load_stack(stack))
    assert {each.topic for each in checks} - {"apis", "budget", "members"} == OWN | {"api-server", "version"}
    assert ("apis" in {each.topic for each in checks}) == (not stack.startswith("aws"))
    for each in checks:
        assert bool(each.request) == (each.status == "open"), each
        assert (each.answer is not None) == (bool(each.request) and each.topic != "api-server"), each
    assert [each.needs.partition(":")[0] for each in checks if each.topic == "api-server"] == [
        f"from {place}" for place in PLACES
    ]


def test_an_existing_cluster_needs_nothing() -> None:
    assert preflight_checks(load_stack("local")) == ()


def test_quotas_count_what_the_pools_can_grow_to() -> None:
    # h100: 4 x 192, a10g: 8 x 4, l4: 16 x 48 as spot; h200 is a capacity block, which no quota limits.
    assert needs("aws-prod", "quota") == [
        "32 vCPUs of `Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances` in us-east-2",
        "768 vCPUs of `Running On-Demand P instances` in us-east-2",
        "768 vCPUs of `All G and VT Spot Instance Requests` in us-east-2",
        "32 vCPUs of `Running On-Demand G and VT instances` in us-east-2",
    ]
    assert "64 preemptible L4 GPUs in us-central1" in needs("gcp-prod", "quota")
    assert "144 GPUs in all regions" in needs("gcp-prod", "quota")
    # The system pool and AKS's pool for add-ons have one size: (4 + 3) x 8.
    assert needs("azure-prod", "quota") == [
        "56 vCPUs of the family of Standard_D8s_v5 in eastus",
        "384 vCPUs of the family of Standard_ND96isr_H100_v5 in eastus",
        "384 vCPUs of the family of Standard_NC96ads_A100_v4 in eastus",
        "384 low-priority vCPUs in eastus",
        "824 vCPUs in total (Total Regional vCPUs) in eastus",
    ]


def test_metrics_on_azure_need_their_provider() -> None:
    assert "Microsoft.Monitor is registered" in needs("azure-prod", "apis")
    spec = load_stack("azure-prod")
    without = spec.model_copy(update={"monitoring": spec.monitoring.model_copy(update={"enabled": False})})
    assert "Microsoft.Monitor is registered" not in [each.needs for each in preflight_checks(without)]


def test_the_tag_by_which_aws_counts_the_budget_must_be_active() -> None:
    (tag,) = [each for each in preflight_checks(load_stack("aws-prod")) if each.topic == "budget"]
    assert tag.needs.startswith("cost allocation tag trainfleet:platform is active in the payer account")
    assert (tag.request, tag.status) == ("ce:ListCostAllocationTags", "open")
    without = load_stack("aws-prod").model_copy(update={"budget": None})
    assert not [each for each in preflight_checks(without) if each.topic == "budget"]


@pytest.mark.parametrize(
    ("machine", "quota"),
    [
        ("p4d.24xlarge", "All P4, P3 and P2 Spot Instance Requests"),
        ("p5.48xlarge", "All P5 Spot Instance Requests"),
        ("g6.xlarge", "All G and VT Spot Instance Requests"),
    ],
)
def test_spot_instances_have_quotas_by_generation(machine: str, quota: str) -> None:
    assert quota_name(machine, spot=True) == quota
    assert quota_name(machine, spot=False).startswith("Running On-Demand ")


def test_names_are_those_that_the_stack_uses() -> None:
    assert "no cluster trainfleet-prod in us-east-2" in needs("aws-prod", "names")
    assert "no log group /aws/eks/trainfleet-prod/cluster" in needs("aws-prod", "names")
    assert "no cluster trainfleet-prod in us-central1" in needs("gcp-prod", "names")


@pytest.mark.parametrize("stack", PROD)
def test_a_private_endpoint_is_a_problem_outside_the_network(stack: str) -> None:
    spec = with_access(stack, PRIVATE)
    assert [api_server(spec, place).status for place in PLACES] == ["problem", "problem", "open"]
    checks = preflight_checks(spec)
    assert [each.topic for each in decided_problems(checks, "laptop")] == ["api-server"]
    assert decided_problems(checks, "runner") == []
    assert "10.8.0.0/16" in api_server(spec, "runner").needs


def test_a_public_endpoint_depends_on_the_callers_address_and_a_dns_endpoint_does_not() -> None:
    public = with_access("gcp-prod", Access(public_ranges=(IPv4Network("203.0.113.0/24"),)))
    assert {api_server(public, place).status for place in PLACES} == {"open"}
    assert "203.0.113.0/24" in api_server(public, "ci").needs
    dns = with_access("gcp-prod", Access(endpoint="dns"))
    assert {api_server(dns, place).status for place in PLACES} == {"ok"}


def test_a_version_is_checked_as_of_the_day() -> None:
    spec = load_stack("aws-prod")
    (row,) = [each for each in versions_of("aws") if each.version == spec.kubernetes.version]
    for day, status in (
        (row.ends - timedelta(days=200), "ok"),
        (row.ends - timedelta(days=30), "warning"),
        (row.ends, "problem"),
    ):
        with as_of(day):
            checks = preflight_checks(spec)
        assert [each.status for each in checks if each.topic == "version"] == [status, "open"], day
        assert bool(decided_problems(checks, "laptop")) == (status == "problem")
    assert isinstance(row.ends, date)


def test_the_command_prints_a_table_or_a_document(trainfleet: Trainfleet) -> None:
    shown = trainfleet("preflight", "gcp-prod", "--offline")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "container.clusters.get" in shown.stdout
    document = json.loads(trainfleet("preflight", "gcp-prod", "--offline", "--json", "--from", "ci").stdout)
    assert (document["stack"], document["from"]) == ("gcp-prod", "ci")
    assert len(document["checks"]) == len(preflight_checks(load_stack("gcp-prod")))
    assert "nothing is created" in trainfleet("preflight", "local", "--offline").stdout


def test_the_exit_code_is_1_where_the_spec_shows_a_problem(trainfleet: Trainfleet, tmp_path: Path) -> None:
    (tmp_path / "Pulumi.yaml").write_text("name: theirs\nruntime: python\n")
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "Pulumi.demo.yaml").write_text(
        """config:
  aws:region: us-east-2
  trainfleet:platform:
    name: demo
    cloud: aws
    region: us-east-2
    owner: ml-platform@example.com
    network: {hub: {id: tgw-0123456789abcdef0}}
    kubernetes: {access: {private_ranges: [10.8.0.0/16]}}
"""
    )
    outside = trainfleet("preflight", "demo", "--offline", cwd=tmp_path)
    assert outside.returncode == 1, outside.stderr
    assert "problem" in outside.stdout
    assert trainfleet("preflight", "demo", "--offline", "--from", "runner", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["aws-prod", "--offline", "--from", "moon"], "laptop, ci, runner"),
        (["aws-prd", "--offline"], "aws-prod"),
    ],
)
def test_what_is_wrong_is_rejected_with_what_is_right(
    trainfleet: Trainfleet, arguments: list[str], says: str
) -> None:
    done = trainfleet("preflight", *arguments)
    assert done.returncode == 2
    assert says in done.stderr


def test_topics_are_left_out_by_name(trainfleet: Trainfleet) -> None:
    done = trainfleet("preflight", "gcp-prod", "--offline", "--skip", "names", "--skip", "caller", "--json")
    topics = {each["topic"] for each in json.loads(done.stdout)["checks"]}
    assert {"quota", "zones"} <= topics <= set(TOPICS) - {"names", "caller"}
    refused = trainfleet("preflight", "gcp-prod", "--offline", "--skip", "nmaes")
    assert refused.returncode == 2
    assert "nmaes" in refused.stderr
