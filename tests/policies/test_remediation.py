"""Fixes that the engine makes while it plans: which rules have one, that each works, and that it is opt-in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.policies.cases.table import BASES
from tests.policies.gather import copy_props
from tests.policies.test_engine import RESOURCES_PROGRAM, engine, planned
from trainfleet.policies.catalogue import RULES
from trainfleet.policies.engine.rule import UNKNOWN, Json, Resource, evaluate
from trainfleet.policies.remediation import (
    FIXES,
    TAGGED,
    label_value,
    platform_tags,
    remediable,
    remedy,
    with_values,
)
from trainfleet.rehearsal.engine.engine_cli import Outcome

__all__ = ["engine", "planned"]  # fixtures
BY_NAME = {rule.name: rule for rule in RULES}
TAGS = platform_tags({"name": "p", "cloud": "aws", "owner": "a@b.c"})
FIXED = [(rule, kind) for rule, kinds in FIXES.items() for kind in kinds]


def without(props: Json, path: str) -> dict[str, Any]:
    head, _, rest = path.partition(".")
    if not rest:
        return {key: value for key, value in props.items() if key != head}
    return {**props, head: without(props.get(head) or {}, rest)}


def opposite(value: Json) -> Json:
    return (not value) if isinstance(value, bool) else "Enabled"


def broken(rule: str, kind: str) -> Resource:
    """A resource that violates a rule by what its fix sets."""
    props = dict(copy_props(BASES[kind].props)) if kind in BASES else {}
    for path, value in FIXES[rule][kind].items():
        props = with_values(without(props, path), {path: opposite(value)})
    return Resource(kind, "p-it", props)


@pytest.mark.parametrize(("rule", "kind"), FIXED, ids=[f"{rule}-{kind}" for rule, kind in FIXED])
def test_a_fix_makes_its_rule_hold(rule: str, kind: str) -> None:
    resource = broken(rule, kind)
    assert evaluate(BY_NAME[rule], resource)
    values = remedy(BY_NAME[rule], resource, TAGS)
    assert values == FIXES[rule][kind]
    assert not evaluate(BY_NAME[rule], Resource(kind, "p-it", with_values(resource.props, values)))


def test_every_fix_is_of_a_rule_that_checks_the_type() -> None:
    for rule, kinds in FIXES.items():
        assert set(kinds) <= set(BY_NAME[rule].checks), rule
    assert set(remediable(BY_NAME[TAGGED])) <= set(BY_NAME[TAGGED].checks)
    assert remediable(BY_NAME["no-star-role"]) == ()


@pytest.mark.parametrize(
    ("kind", "where", "expected"),
    [
        ("aws:kms/key:Key", "tags", {"trainfleet:owner": "a@b.c", "trainfleet:environment": "dev"}),
        ("gcp:storage/bucket:Bucket", "labels", {"trainfleet-owner": "a_at_b_c"}),
        ("azure-native:network:VirtualNetwork", "tags", {"trainfleet:platform": "p"}),
    ],
)
def test_missing_tags_are_those_of_the_platform(kind: str, where: str, expected: dict[str, str]) -> None:
    resource = Resource(kind, "p-it", {where: {"team": "ml"}})
    values = remedy(BY_NAME[TAGGED], resource, TAGS)
    assert values[where].items() >= {"team": "ml", **expected}.items()


def test_nothing_is_set_where_that_would_not_be_enough() -> None:
    rule, kind = BY_NAME[TAGGED], "aws:kms/key:Key"
    assert remedy(rule, Resource(kind, "k", {}), {"trainfleet:owner": "a"}) == {}
    assert remedy(rule, Resource(kind, "k", {"tags": UNKNOWN}), TAGS) == {}
    assert (
        remedy(
            BY_NAME["imdsv2"], Resource("aws:ec2/instance:Instance", "i", {"metadataOptions": UNKNOWN}), {}
        )
        == {}
    )
    assert remedy(rule, Resource(kind, "k", {"tags": TAGS}), TAGS) == {}
    assert label_value("A.B@c d") == "a_b_at_c-d"


REMEDIATED: dict[str, tuple[str, dict[str, Any], str, Json]] = {
    "aws:ec2/launchTemplate:LaunchTemplate": (
        "imdsv2",
        {"metadataOptions": {"httpTokens": "optional", "httpPutResponseHopLimit": 1}},
        "metadataOptions.httpTokens",
        "required",
    ),
    "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock": (
        "no-public-bucket",
        {"bucket": "[unknown]", "blockPublicAcls": False},
        "blockPublicAcls",
        True,
    ),
    "aws:kms/key:Key": ("keys-rotate", {"enableKeyRotation": False}, "enableKeyRotation", True),
    "aws:efs/fileSystem:FileSystem": ("encrypted-volumes", {"encrypted": False}, "encrypted", True),
    "aws:ec2/subnet:Subnet": (
        "no-public-node",
        {"vpcId": "[unknown]", "cidrBlock": "10.0.0.0/24", "mapPublicIpOnLaunch": True},
        "mapPublicIpOnLaunch",
        False,
    ),
}
"""Type to a rule, properties that violate it, and what the engine has to plan instead."""
TAGLESS = "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock"


def at_path(props: Any, path: str) -> Any:
    for part in path.split("."):
        props = props[part]
    return props


@pytest.mark.parametrize("chosen", [True, False], ids=["remediate", "not chosen"])
def test_the_engine_plans_the_fixed_resource_if_the_level_is_chosen(
    engine: Callable[..., Callable[[str], Outcome]], planned: dict[str, Any], chosen: bool
) -> None:
    resources = [
        {
            "type": kind,
            "name": f"prod-{rule}",
            "props": props if kind == TAGLESS else {**props, "tags": {"team": "ml"}},
        }
        for kind, (rule, props, _, _) in REMEDIATED.items()
    ]
    platform = {"name": "prod", "cloud": "aws", "environment": "prod", "owner": "a@b.c"}
    rules = {rule: "remediate" for rule, *_ in REMEDIATED.values()} | {TAGGED: "remediate"}
    run = engine(
        RESOURCES_PROGRAM, platform, resources, "aws", levels=rules if chosen else {"all": "advisory"}
    )
    preview = run("preview")
    assert len(planned) > len(REMEDIATED), preview.output[-3000:]
    found = [each for each in preview.violations if each.level != "remediate"]
    reported = {(each.policy, each.urn.rpartition("::")[2]) for each in found}
    for rule, _, path, value in REMEDIATED.values():
        assert (at_path(planned[f"prod-{rule}"], path) == value) is chosen, preview.output[-2000:]
        assert ((rule, f"prod-{rule}") in reported) is not chosen, rule
    tags = planned["prod-keys-rotate"]["tags"]
    assert tags.get("trainfleet:owner") == ("a@b.c" if chosen else None)
    assert tags["team"] == "ml"
