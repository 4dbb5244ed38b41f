"""The pack as Pulumi sees it: its list, the bridge from Pulumi's types, unknown values, secrets, exceptions
from the spec.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pulumi
import pulumi_policy
import pytest
import yaml
from google.protobuf import struct_pb2
from pulumi.runtime.proto import analyzer_pb2
from pulumi_policy import proxy
from pulumi_policy.policy import _PolicyAnalyzerServicer

from trainfleet.dates import today
from trainfleet.policies.catalogue import RULES, THEMES, theme_of
from trainfleet.policies.engine.environment import environment_of
from trainfleet.policies.engine.exceptions import Waiver, in_force, waivers, why_not
from trainfleet.policies.engine.pack import SECRET_KEY, SECRET_VALUE, plain, policies
from trainfleet.policies.engine.rule import ENVIRONMENTS, UNKNOWN
from trainfleet.policies.naming import GCP_LABELLED, TAGGABLE
from trainfleet.policies.resource_types import CLOUD_CONTROL
from trainfleet.rehearsal.simulation.schema import packages

CLUSTER = "aws:eks/cluster:Cluster"
BUCKET = "aws:s3/bucket:Bucket"
OPEN = {
    "vpcConfig": {"endpointPublicAccess": True, "publicAccessCidrs": ["0.0.0.0/0"]},
    "encryptionConfig": {"resources": ["secrets"]},
}
TODAY = date(2026, 6, 1)


@pytest.fixture
def servicer() -> _PolicyAnalyzerServicer:
    return _PolicyAnalyzerServicer(
        "trainfleet", "0.1.0", policies(), pulumi_policy.EnforcementLevel.MANDATORY
    )


@pytest.fixture
def stack_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Hand a platform to the pack as the engine does: the stack's settings in the environment."""
    yield lambda platform: monkeypatch.setenv("PULUMI_CONFIG", json.dumps({"trainfleet:platform": platform}))
    pulumi.runtime.set_all_config({})


def request(kind: str, props: dict[str, Any], name: str = "it") -> analyzer_pb2.AnalyzeRequest:
    struct = struct_pb2.Struct()
    struct.update(props)
    return analyzer_pb2.AnalyzeRequest(
        type=kind, urn=f"urn:pulumi:s::p::{kind}::{name}", name=name, properties=struct
    )


def diagnostics_of(call: Callable[..., Any], message: Any) -> Any:
    """What one of the pack's calls, which carry no types, answers to the engine."""
    return call(message, None).diagnostics


def diagnoses(
    servicer: _PolicyAnalyzerServicer, kind: str, props: dict[str, Any]
) -> list[tuple[str, str, int]]:
    return [
        (found.policyName, found.message, found.enforcementLevel)
        for found in diagnostics_of(servicer.Analyze, request(kind, props))
    ]


def test_there_are_at_least_forty_rules_each_once_and_in_one_theme() -> None:
    names = [rule.name for rule in RULES]
    assert len(names) == len(set(names)) >= 40
    assert list(THEMES) == [
        "exposure",
        "encryption",
        "identity",
        "network",
        "gpu",
        "cost",
        "naming",
        "kubernetes",
        "reliability",
    ]
    assert [theme_of(rule) for rule in RULES] == [
        theme for theme, (_, rules) in THEMES.items() for _ in rules
    ]


@pytest.mark.parametrize(
    "name",
    [
        "no-open-control-plane",
        "secrets-encrypted",
        "encrypted-volumes",
        "no-public-bucket",
        "tls-only-bucket",
        "imdsv2",
        "no-star-role",
        "required-tags",
        "gpu-taint-and-label",
        "no-privileged-pod",
    ],
)
def test_a_rule_that_exceptions_may_name_already_keeps_its_name_and_is_mandatory_everywhere(
    name: str,
) -> None:
    (rule,) = [rule for rule in RULES if rule.name == name]
    assert {rule.level(environment) for environment in (*ENVIRONMENTS, None)} == {"mandatory"}


def test_a_rule_says_what_it_is_why_how_to_fix_it_and_where_it_comes_from() -> None:
    for rule in RULES:
        assert rule.statement.endswith("."), rule.name
        assert rule.reason.endswith("."), rule.name
        assert rule.fix, rule.name
        assert rule.references, rule.name
        assert rule.checks or rule.stack, rule.name


def test_what_is_critical_is_mandatory_everywhere_and_nothing_is_weaker_in_production_than_before_it() -> (
    None
):
    order = ("off", "advisory", "mandatory")
    for rule in RULES:
        ranks = [order.index(rule.level(environment)) for environment in ENVIRONMENTS]
        assert ranks == sorted(ranks), rule.name
        assert rule.severity != "critical" or ranks[0] == 2, rule.name


def test_every_rule_is_mandatory_without_an_environment() -> None:
    assert {rule.level(None) for rule in RULES} == {"mandatory"}
    assert {policy.enforcement_level for policy in policies()} == {pulumi_policy.EnforcementLevel.MANDATORY}


@pytest.mark.parametrize(
    ("environment", "level"), [("dev", "DISABLED"), ("staging", "ADVISORY"), ("prod", "MANDATORY")]
)
def test_the_environment_of_the_stack_decides_how_strict_a_policy_is(
    stack_settings: Callable[[str], None], environment: str, level: str
) -> None:
    stack_settings(json.dumps({"cloud": "aws", "environment": environment}))
    (policy,) = [policy for policy in policies() if policy.name == "protected-from-deletion"]
    assert policy.enforcement_level is pulumi_policy.EnforcementLevel[level]


def test_a_newer_engine_configures_the_pack_after_it_has_started(
    servicer: _PolicyAnalyzerServicer, stack_settings: Callable[[str], None]
) -> None:
    def levels() -> dict[str, int]:
        info: Any = servicer.GetAnalyzerInfo(None, None)  # type: ignore[no-untyped-call]
        return {each.name: each.enforcementLevel for each in info.policies}

    spec = json.loads(platform(today())) | {"cloud": "aws", "environment": "dev"}
    configured = analyzer_pb2.AnalyzerStackConfigureRequest(
        config={"trainfleet:platform": json.dumps(spec)}, tags={"owner": "me"}
    )
    assert set(levels().values()) == {analyzer_pb2.MANDATORY}
    servicer.ConfigureStack(configured, None)
    assert levels()["protected-from-deletion"] == analyzer_pb2.DISABLED
    assert levels()["no-open-control-plane"] == analyzer_pb2.MANDATORY
    assert "no-open-control-plane" not in {name for name, *_ in diagnoses(servicer, CLUSTER, OPEN)}
    servicer.ConfigureStack(analyzer_pb2.AnalyzerStackConfigureRequest(), None)
    assert set(levels().values()) == {analyzer_pb2.MANDATORY}


@pytest.mark.parametrize(
    ("platform", "environment"),
    [
        (None, None),
        ("", None),
        ("{}", None),
        ("[]", None),
        ("not json", None),
        ('{"cloud": "local"}', "dev"),
        ('{"cloud": "aws", "environment": "prod"}', "prod"),
        ('{"environment": "staging"}', "staging"),
        ('{"cloud": "aws", "environment": "qa"}', None),
    ],
)
def test_the_environment_of_a_platform_defaults_to_dev(platform: str | None, environment: str | None) -> None:
    assert environment_of(platform) == environment


def test_every_type_a_rule_checks_exists_in_an_sdk(root: Path) -> None:
    known = {token for package in packages().values() for token in package.classes}
    checked = {
        kind for rule in RULES for kind in rule.resource_types() if not kind.startswith("kubernetes:ray.io/")
    }
    assert checked - known == set()


def test_every_type_that_must_be_tagged_can_carry_tags() -> None:
    for kind in TAGGABLE:
        resource = packages()[kind.partition(":")[0]].resource(kind)
        assert resource is not None
        expected = (
            "desiredState" if kind == CLOUD_CONTROL else GCP_LABELLED.get(kind, "tags").partition(".")[0]
        )
        assert expected in resource.inputs, kind


def test_a_violation_blocks_and_says_how_to_fix_it(servicer: _PolicyAnalyzerServicer) -> None:
    found = {name: (message, level) for name, message, level in diagnoses(servicer, CLUSTER, OPEN)}
    message, level = found["no-open-control-plane"]
    assert level == analyzer_pb2.MANDATORY
    assert "it: vpcConfig.publicAccessCidrs includes 0.0.0.0/0" in message
    assert "To fix: list the ranges in kubernetes.access" in message
    assert "CKV_AWS_38" in message
    assert "secrets-encrypted" in found


def test_a_resource_no_rule_is_about_passes(servicer: _PolicyAnalyzerServicer) -> None:
    assert diagnoses(servicer, "random:index/randomPet:RandomPet", {"privileged": True}) == []


def test_a_value_unknown_in_a_preview_is_checked_once_it_is_known(servicer: _PolicyAnalyzerServicer) -> None:
    def checked(document: str) -> list[str]:
        return [
            name for name, _, _ in diagnoses(servicer, "aws:iam/rolePolicy:RolePolicy", {"policy": document})
        ]

    assert checked(proxy.UNKNOWN_STRING_VALUE) == []
    assert checked(json.dumps({"Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]})) == [
        "no-star-role"
    ]


def test_a_stack_rule_finds_a_bucket_without_its_companions(servicer: _PolicyAnalyzerServicer) -> None:
    struct = struct_pb2.Struct()
    struct.update({"bucket": proxy.UNKNOWN_STRING_VALUE})
    bucket = analyzer_pb2.AnalyzerResource(
        type=BUCKET, urn=f"urn:pulumi:s::p::{BUCKET}::b", name="b", properties=struct
    )
    block = analyzer_pb2.AnalyzerResource(
        type="aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock",
        urn="urn:c",
        name="c",
        properties=struct,
    )
    block.propertyDependencies["bucket"].urns.append(bucket.urn)
    found = diagnostics_of(servicer.AnalyzeStack, analyzer_pb2.AnalyzeStackRequest(resources=[bucket, block]))
    assert ("tls-only-bucket-everywhere", bucket.urn) in [(one.policyName, one.urn) for one in found]
    assert "no-public-bucket-everywhere" not in [one.policyName for one in found]


def test_proxies_become_plain_data_with_unknown_values_and_open_secrets() -> None:
    secret = {SECRET_KEY: SECRET_VALUE, "value": "hidden"}
    props = proxy.unknown_checking_proxy(
        {"a": [1, {"b": proxy.UNKNOWN_STRING_VALUE}], "s": secret, "n": None}
    )
    found = plain(props)
    assert found["a"][0] == 1
    assert found["a"][1]["b"] is UNKNOWN
    assert found["s"] == "hidden"
    assert found["n"] is None


def platform(until: date, resource: str = "it") -> str:
    entry = {
        "policy": "no-open-control-plane",
        "resource": resource,
        "reason": "migration window",
        "until": until.isoformat(),
    }
    return json.dumps({"exceptions": [entry]})


def test_an_exception_in_the_spec_silences_its_policy_for_its_resource(
    servicer: _PolicyAnalyzerServicer, stack_settings: Callable[[str], None]
) -> None:
    stack_settings(platform(today() + timedelta(days=1)))
    before = {name for name, _, _ in diagnoses(servicer, CLUSTER, OPEN)}
    stack_settings(json.dumps({}))
    assert {name for name, _, _ in diagnoses(servicer, CLUSTER, OPEN)} - before == {"no-open-control-plane"}


def test_an_expired_exception_has_no_effect_and_the_message_reports_it(
    servicer: _PolicyAnalyzerServicer, stack_settings: Callable[[str], None]
) -> None:
    yesterday = today() - timedelta(days=1)
    stack_settings(platform(yesterday))
    (message,) = [
        message for name, message, _ in diagnoses(servicer, CLUSTER, OPEN) if name == "no-open-control-plane"
    ]
    assert f"expired on {yesterday.isoformat()}" in message


@pytest.mark.parametrize(
    ("entry", "day", "why"),
    [
        ({}, TODAY, ""),
        ({"type": CLUSTER}, TODAY, ""),
        ({"resource": "*", "type": CLUSTER}, TODAY, ""),
        ({}, TODAY + timedelta(days=1), "its exception expired on 2026-06-01"),
        ({"resource": "*"}, TODAY, "covers every resource"),
        ({"resource": "other"}, TODAY, None),
        ({"type": BUCKET}, TODAY, None),
        ({"policy": "imdsv2"}, TODAY, None),
    ],
)
def test_an_exception_holds_to_the_end_of_its_day_for_what_it_names(
    entry: dict[str, str], day: date, why: str | None
) -> None:
    document = json.loads(platform(TODAY))
    document["exceptions"][0] |= entry
    (waiver,) = waivers(json.dumps(document))
    covers = waiver.covers("no-open-control-plane", "it", CLUSTER)
    assert covers is (why is not None)
    if why is not None:
        assert in_force([waiver], day) is (why == "")
        assert why in why_not([waiver], day)


def test_a_type_in_an_exception_matches_every_version_of_it() -> None:
    kind = "azure-native:containerservice:ManagedCluster"
    version = "azure-native:containerservice/v20240901:ManagedCluster"
    assert Waiver("p", "*", "r", TODAY, kind).covers("p", "it", version)
    assert Waiver("p", "*", "r", TODAY, version).covers("p", "it", kind)


@pytest.mark.parametrize(
    "text", [None, "", "[]", "{}", "not json", '{"exceptions": [{"policy": "x"}]}', '{"exceptions": null}']
)
def test_a_stack_without_readable_exceptions_has_none(text: str | None) -> None:
    assert waivers(text) == ()


def test_a_date_may_carry_a_time() -> None:
    document = json.loads(platform(TODAY))
    document["exceptions"][0]["until"] += "T00:00:00Z"
    assert waivers(json.dumps(document)) == (
        Waiver("no-open-control-plane", "it", "migration window", TODAY),
    )


def test_the_pack_runs_in_the_checkouts_environment(root: Path) -> None:
    document = yaml.safe_load((root / "policies" / "PulumiPolicy.yaml").read_text())
    project = yaml.safe_load((root / "Pulumi.yaml").read_text())
    folders = [
        (root / "policies" / document["runtime"]["options"]["virtualenv"]),
        root / project["runtime"]["options"]["virtualenv"],
    ]
    assert [folder.resolve() for folder in folders] == [(root / ".venv").resolve()] * 2
