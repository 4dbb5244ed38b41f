"""Every rule on every type it is about: a resource that keeps it, and each way to break it. Plain functions:
no engine, no pack.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.policies.cases import address_ranges, identity, policy_documents, upkeep
from tests.policies.cases.every import CASES
from tests.policies.cases.exposure import DENY_HTTP, document
from tests.policies.cases.table import BASES, NOT_KEPT, PLANNED_RESOURCES, Base, Case, broken
from trainfleet.policies.catalogue import RULES
from trainfleet.policies.engine.accessors import Forbidden
from trainfleet.policies.engine.document import unchecked
from trainfleet.policies.engine.rule import Resource, Rule, evaluate
from trainfleet.policies.resource_types import (
    AKS,
    AZURE_STORAGE,
    EKS,
    EKS_ADDON,
    GCP_FIREWALL,
    GKE,
    GKE_NODES,
    NSG_RULE,
    RELEASE,
    S3_POLICY,
    SERVICE,
    STORAGE_CLASS,
    VAULT,
)
from trainfleet.policies.unchecked import UNCHECKED

BY_NAME = {rule.name: rule for rule in RULES}
PAIRS = [(rule, kind) for rule in RULES for kind in rule.checks]


def named(value: Any) -> str | None:
    if isinstance(value, Rule):
        return value.name
    return f"{value.rule}-{value.kind}" if isinstance(value, Case) else None


def found(rule: Rule, kind: str, base: Base, *, protect: bool = True) -> tuple[str, ...]:
    resource = Resource(kind, base.name, base.props, protect=protect)
    return tuple(violation.message for violation in evaluate(rule, resource))


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_broken_rule_names_what_is_wrong(case: Case) -> None:
    output = found(BY_NAME[case.rule], case.type, broken(case), protect=case.protect)
    assert any(case.says in what for what in output), output


@pytest.mark.parametrize(("rule", "kind"), PAIRS, ids=lambda value: named(value) or value)
def test_a_resource_that_keeps_a_rule_is_left_alone(rule: Rule, kind: str) -> None:
    for key in (kind, f"{kind}#gpu"):
        if key not in BASES:
            continue
        forbidden = isinstance(rule.checks[kind], Forbidden)
        kept = found(rule, kind, BASES[key]) == ()
        assert kept != forbidden


@pytest.mark.parametrize("kind", PLANNED_RESOURCES)
def test_a_planned_resource_of_our_stacks_keeps_every_rule_but_the_named_ones(kind: str) -> None:
    base = PLANNED_RESOURCES[kind]
    resource = Resource(kind.partition("#")[0], base.name, base.props)
    broken_rules = {rule.name for rule in RULES if evaluate(rule, resource)}
    assert broken_rules == set(NOT_KEPT.get(kind, ()))


def test_every_rule_has_both_a_kept_and_a_broken_resource_for_each_of_its_types() -> None:
    cases = {(case.rule, case.type) for case in CASES}
    assert [(rule.name, kind) for rule, kind in PAIRS if (rule.name, kind) not in cases] == []
    assert [kind for _, kind in PAIRS if kind not in BASES] == []


def test_a_case_breaks_what_was_whole() -> None:
    """A case whose base breaks the rule already shows nothing."""
    whole = {
        (rule.name, kind): found(rule, kind.partition("#")[0], BASES[kind])
        for rule in RULES
        for kind in BASES
    }
    allowed = {
        (case.rule, case.kind)
        for case in CASES
        if not isinstance(BY_NAME[case.rule].checks[case.type], Forbidden)
    }
    assert {
        (case.rule, case.kind)
        for case in CASES
        if any(case.says in what for what in whole[case.rule, case.kind])
    } & allowed == set()


NAMED_RANGE = ["203.0.113.0/24"]
COMPLIANT: list[tuple[str, str, dict[str, Any]]] = [
    (
        "no-open-control-plane",
        EKS,
        {"vpcConfig": {"endpointPublicAccess": True, "publicAccessCidrs": NAMED_RANGE}},
    ),
    (
        "no-open-control-plane",
        GKE,
        {"masterAuthorizedNetworksConfig": {"cidrBlocks": [{"cidrBlock": "203.0.113.0/24"}]}},
    ),
    (
        "no-open-control-plane",
        GKE,
        {"controlPlaneEndpointsConfig": {"ipEndpointsConfig": {"enabled": False}}},
    ),
    ("no-open-control-plane", AKS, {"apiServerAccessProfile": {"authorizedIPRanges": NAMED_RANGE}}),
    ("no-open-control-plane", AKS, {"publicNetworkAccess": "Disabled"}),
    ("tls-only-bucket", S3_POLICY, {"policy": document({"Effect": "Allow"}, DENY_HTTP)}),
    ("tls-only-bucket", S3_POLICY, {"policy": document({**DENY_HTTP, "Principal": {"AWS": ["*"]}})}),
    (
        "tls-only-bucket",
        AZURE_STORAGE,
        {
            "kind": "FileStorage",
            "publicNetworkAccess": "Disabled",
            "enableHttpsTrafficOnly": False,
            "minimumTlsVersion": "TLS1_2",
        },
    ),
    ("no-open-ingress", GCP_FIREWALL, {"sourceTags": ["web"], "allows": [{"protocol": "tcp"}]}),
    ("no-open-ingress", GCP_FIREWALL, {"direction": "EGRESS", "allows": [{"protocol": "all"}]}),
    ("no-open-ingress", GCP_FIREWALL, {"sourceRanges": ["0.0.0.0/0"], "denies": [{"protocol": "all"}]}),
    ("no-open-ingress", NSG_RULE, {"access": "Deny", "direction": "Inbound", "sourceAddressPrefix": "*"}),
    ("no-open-ingress", NSG_RULE, {"access": "Allow", "direction": "Outbound", "sourceAddressPrefix": "*"}),
    (
        "closed-stores",
        VAULT,
        {"properties": {"publicNetworkAccess": "Enabled", "networkAcls": {"defaultAction": "Deny"}}},
    ),
    (
        "no-public-service",
        SERVICE,
        {
            "metadata": {"annotations": {"networking.gke.io/load-balancer-type": "Internal"}},
            "spec": {"type": "LoadBalancer"},
        },
    ),
    (
        "no-public-service",
        SERVICE,
        {"spec": {"type": "LoadBalancer", "loadBalancerSourceRanges": NAMED_RANGE}},
    ),
    *address_ranges.COMPLIANT,
    *policy_documents.COMPLIANT,
    *upkeep.COMPLIANT,
    ("encrypted-volumes", STORAGE_CLASS, {"provisioner": "rancher.io/local-path"}),
    (
        "no-star-role",
        "aws:iam/rolePolicy:RolePolicy",
        {"policy": document({"Effect": "Deny", "Action": "*", "Resource": "*"})},
    ),
    (
        "no-star-role",
        "azure-native:authorization:RoleAssignment",
        {
            "roleDefinitionId": f"/x/{identity.CONTRIBUTOR}",
            "scope": f"{identity.SUBSCRIPTION}/resourceGroups/g/providers/Microsoft.Compute/disks/d",
        },
    ),
    ("imdsv2", "aws:ec2/instance:Instance", {"metadataOptions": {"httpEndpoint": "disabled"}}),
    ("network-policies-enforced", EKS_ADDON, {"addonName": "coredns"}),
    (
        "gpu-taint-and-label",
        "aws:eks/nodeGroup:NodeGroup",
        {"amiType": "AL2023_x86_64_STANDARD", "labels": {"pool": "system"}},
    ),
    ("nodes-repaired", GKE_NODES, {"nodeConfig": {"flexStart": True}, "management": {"autoRepair": False}}),
    (
        "flex-nodes-end",
        GKE_NODES,
        {"nodeConfig": {"flexStart": True, "maxRunDuration": "604800s"}, "management": {"autoRepair": False}},
    ),
    (
        "no-privileged-pod",
        RELEASE,
        {"chart": "nvidia-device-plugin", "namespace": "gpu-system", "values": {}},
    ),
    (
        "no-secret-in-the-clear",
        RELEASE,
        {
            "values": {
                "tokenRequired": "true",
                "tls": {"secretName": "x", "token": "/var/run/token"},
                "password": "",
            }
        },
    ),
]


@pytest.mark.parametrize(
    ("name", "kind", "props"),
    COMPLIANT,
    ids=[f"{name}-{index}" for index, (name, _, _) in enumerate(COMPLIANT)],
)
def test_another_way_to_keep_a_rule_is_left_alone_too(name: str, kind: str, props: dict[str, Any]) -> None:
    assert found(BY_NAME[name], kind, Base("p-it", props)) == ()


def test_a_rule_about_clouds_says_why_it_leaves_one_out() -> None:
    clouds = {"aws", "gcp", "azure"}
    for rule in RULES:
        checked = clouds & set(rule.clouds())
        assert set(unchecked(rule)) == (clouds - checked if checked else set()), rule.name
    assert set(UNCHECKED) <= set(BY_NAME)


def test_protection_that_is_not_known_violates_nothing() -> None:
    for rule in ("protected-from-deletion", "data-survives-destroy"):
        for kind in BY_NAME[rule].checks:
            assert evaluate(BY_NAME[rule], Resource(kind, "it", BASES[kind].props)) == ()


@pytest.mark.parametrize(
    "kind",
    [
        "azure-native:containerservice/v20240901:ManagedCluster",
        "azure-native:containerservice/v20250202preview:ManagedCluster",
        "azure-native_containerservice_v20240901:containerservice:ManagedCluster",
    ],
)
def test_a_rule_knows_an_azure_type_by_any_of_its_versions(kind: str) -> None:
    assert "disableLocalAccounts is not true" in found(BY_NAME["login-by-identity"], kind, Base("p-it", {}))


@pytest.mark.parametrize("rule", RULES, ids=named)
def test_a_resource_that_its_provider_refused_has_no_properties_and_stops_no_rule(rule: Rule) -> None:
    for kind in rule.checks:
        evaluate(rule, Resource(kind, "it", {}))


def test_a_setting_allows_one_more_named_pod_and_no_other() -> None:
    rule, kind, settings = (
        BY_NAME["no-privileged-pod"],
        "kubernetes:core/v1:Pod",
        {"allowed": ["monitoring/node-exporter"]},
    )
    allowed = {
        "metadata": {"name": "node-exporter", "namespace": "monitoring"},
        "spec": {"containers": [], "hostNetwork": True},
    }
    elsewhere = {**allowed, "metadata": {"name": "node-exporter", "namespace": "training"}}
    assert evaluate(rule, Resource(kind, "p", allowed, settings=settings)) == ()
    assert evaluate(rule, Resource(kind, "p", allowed)) != ()
    assert evaluate(rule, Resource(kind, "p", elsewhere, settings=settings)) != ()


def test_a_workload_that_may_run_as_root_may_not_become_more() -> None:
    rule, kind = BY_NAME["no-root-in-pods"], "kubernetes:batch/v1:Job"
    for name, escalates, count in (
        ("shared-folders", False, 0),
        ("shared-folders", True, 1),
        ("other", False, 1),
    ):
        container = {"securityContext": {"runAsUser": 0, "allowPrivilegeEscalation": escalates}}
        props = {
            "metadata": {"name": name, "namespace": "training"},
            "spec": {"template": {"spec": {"containers": [container]}}},
        }
        assert len(evaluate(rule, Resource(kind, "j", props))) == count, (name, escalates)


def test_a_setting_requires_one_more_tag() -> None:
    (violation,) = evaluate(
        BY_NAME["required-tags"],
        Resource(
            "aws:s3/bucket:Bucket",
            "b",
            {"tags": {f"trainfleet:{key}": "x" for key in ("platform", "environment", "owner")}},
            settings={"required": ["team"]},
        ),
    )
    assert violation.message == "tags lack team"


def test_a_setting_moves_the_largest_size_and_the_oldest_version() -> None:
    nodes = Resource(
        "aws:eks/nodeGroup:NodeGroup", "n", {"scalingConfig": {"maxSize": 300}}, settings={"most_nodes": 400}
    )
    assert evaluate(BY_NAME["pools-have-a-limit"], nodes) == ()
    cluster = Resource(EKS, "c", {"version": "1.34"}, settings={"oldest": "1.35"})
    assert [violation.message for violation in evaluate(BY_NAME["supported-version"], cluster)] == [
        "version is `1.34`, expected 1.35 or newer"
    ]


def test_a_document_may_be_text_or_an_object() -> None:
    star = {"Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}
    for policy in (star, json.dumps(star)):
        assert (
            evaluate(BY_NAME["no-star-role"], Resource("aws:iam/policy:Policy", "p", {"policy": policy}))
            != ()
        )
