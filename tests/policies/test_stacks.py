"""Rules of a whole stack: what is absent is named, and what exists counts whether it is known by reference or
by name.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.policies.cases.stacks import STACK_CASES, StackCase
from tests.policies.cases.table import BASES
from trainfleet.policies.catalogue import RULES
from trainfleet.policies.engine.rule import Resource, evaluate_stack
from trainfleet.policies.naming import TAGGABLE
from trainfleet.policies.resource_types import (
    AWS_BUDGET,
    AZURE_STORAGE,
    EKS_NODES,
    LAUNCH_TEMPLATE,
    S3,
    S3_BLOCK,
    S3_ENCRYPTION,
    VNET,
    VPC,
)

BY_NAME = {rule.name: rule for rule in RULES}
FIXED = [(alone, companion) for alone in STACK_CASES for companion in alone.companions]


def named(value: Any) -> str | None:
    if isinstance(value, StackCase):
        return f"{value.rule}-{value.kind}"
    return value[0] if isinstance(value, tuple) else None


def isolated(alone: StackCase) -> Resource:
    return Resource(alone.kind, "isolated", alone.props, "urn:isolated")


@pytest.mark.parametrize("alone", STACK_CASES, ids=named)
def test_a_resource_without_what_it_needs_is_named(alone: StackCase) -> None:
    found = evaluate_stack(BY_NAME[alone.rule], [isolated(alone)])
    assert [(violation.name, violation.urn) for violation in found] == [("isolated", "urn:isolated")]
    assert alone.message in found[0].message


@pytest.mark.parametrize(("alone", "companion"), FIXED, ids=named)
def test_a_companion_fixes_it_by_the_reference(
    alone: StackCase, companion: tuple[str, str, dict[str, Any]]
) -> None:
    kind, by, props = companion
    other = Resource(kind, "companion", props, "urn:companion", {by: ("urn:isolated",)} if by else {})
    assert [
        violation.name
        for violation in evaluate_stack(BY_NAME[alone.rule], [isolated(alone), other])
        if violation.name == "isolated"
    ] == []


@pytest.mark.parametrize(("alone", "companion"), [pair for pair in FIXED if pair[1][1]], ids=named)
def test_the_companion_of_another_resource_does_not(
    alone: StackCase, companion: tuple[str, str, dict[str, Any]]
) -> None:
    kind, by, props = companion
    other = Resource(kind, "companion", props, "urn:companion", {by: ("urn:another",)})
    assert "isolated" in [
        violation.name for violation in evaluate_stack(BY_NAME[alone.rule], [isolated(alone), other])
    ]


@pytest.mark.parametrize("alone", [alone for alone in STACK_CASES if alone.fixed is not None], ids=named)
def test_some_resources_need_nothing_else(alone: StackCase) -> None:
    assert (
        evaluate_stack(BY_NAME[alone.rule], [Resource(alone.kind, "whole", alone.fixed or {}, "urn:whole")])
        == ()
    )


def test_every_rule_of_a_stack_is_broken_by_each_of_its_types() -> None:
    covered = {(alone.rule, alone.kind) for alone in STACK_CASES}
    of_two_resources = {"one-platform-per-stack", "gpu-taint-and-label"}
    expected = {
        (rule.name, kind) for rule in RULES for kind in rule.stack if rule.name not in of_two_resources
    }
    assert expected - covered == set()


@pytest.mark.parametrize(("kind", "companion"), [(S3[0], S3_BLOCK), (S3[1], S3_BLOCK)])
def test_a_companion_may_name_its_bucket_in_words(kind: str, companion: str) -> None:
    bucket, other = (
        Resource(kind, "b", {"bucket": "named"}, "urn:b"),
        Resource(companion, "c", {"bucket": "named"}, "urn:c"),
    )
    assert evaluate_stack(BY_NAME["no-public-bucket"], [bucket, other]) == ()


def test_a_companion_that_does_not_do_its_work_does_not_count() -> None:
    bucket = Resource(S3[0], "b", {}, "urn:b")
    weak = Resource(
        S3_ENCRYPTION,
        "c",
        {"rules": [{"applyServerSideEncryptionByDefault": {"sseAlgorithm": "AES256"}}]},
        "urn:c",
        {"bucket": ("urn:b",)},
    )
    assert len(evaluate_stack(BY_NAME["own-key-for-buckets"], [bucket, weak])) == 1
    network = Resource(VPC, "n", {}, "urn:n")
    other = Resource(
        "aws:ec2/vpcEndpoint:VpcEndpoint",
        "e",
        {"serviceName": "com.amazonaws.us-east-2.ecr.api"},
        "urn:e",
        {"vpcId": ("urn:n",)},
    )
    assert len(evaluate_stack(BY_NAME["private-way-to-stores"], [network, other])) == 1


@pytest.mark.parametrize(
    ("kinds", "ranges", "found"), [((), ["192.0.2.1"], 0), ((), [], 1), ((VNET,), ["192.0.2.1"], 1)]
)
def test_an_account_without_nodes_needs_no_private_endpoint_if_it_lists_who_connects(
    kinds: tuple[str, ...], ranges: list[str], found: int
) -> None:
    rules = {"defaultAction": "Deny", "ipRules": [{"iPAddressOrRange": each} for each in ranges]}
    account = Resource(AZURE_STORAGE, "a", {"kind": "StorageV2", "networkRuleSet": rules}, "urn:a")
    others = [Resource(kind, kind, {}, f"urn:{kind}") for kind in kinds]
    assert len(evaluate_stack(BY_NAME["private-way-to-stores"], [account, *others])) == found


@pytest.mark.parametrize(
    ("machine", "count"), [("p5.48xlarge", 3), ("gr6.4xlarge", 3), ("m7i.large", 0), (None, 0)]
)
def test_a_gpu_pool_is_recognized_by_the_machine_of_its_launch_template(
    machine: str | None, count: int
) -> None:
    template = Resource(LAUNCH_TEMPLATE, "t", {"instanceType": machine}, "urn:t")
    pool = Resource(
        EKS_NODES, "h100", {"amiType": "AL2023_x86_64_STANDARD"}, "urn:n", {"launchTemplate": ("urn:t",)}
    )
    other = Resource(EKS_NODES, "system", {}, "urn:o", {"launchTemplate": ("urn:u",)})
    found = evaluate_stack(BY_NAME["gpu-taint-and-label"], [template, pool, other])
    assert [violation.name for violation in found] == ["h100"] * count


@pytest.mark.parametrize("kind", TAGGABLE)
def test_a_resource_of_another_platform_is_named(kind: str) -> None:
    first = Resource(AWS_BUDGET, "first", {"tags": {"trainfleet:platform": "one"}}, "urn:first")
    base = BASES[kind]
    second = Resource(kind, "second", base.props, "urn:second")
    assert [
        violation.name for violation in evaluate_stack(BY_NAME["one-platform-per-stack"], [first, second])
    ] == ["second"]
    assert evaluate_stack(BY_NAME["one-platform-per-stack"], [second, second]) == ()
