"""A value that a preview does not know neither stops a rule with an error nor counts as a violation; what is
known still does.
"""

from __future__ import annotations

from typing import Any

import pytest

from trainfleet.policies.catalogue import RULES
from trainfleet.policies.engine.accessors import Forbidden
from trainfleet.policies.engine.rule import UNKNOWN, Resource, Rule, StillUnknown, evaluate, evaluate_stack
from trainfleet.policies.resource_types import EKS, EKS_NODES, GKE, LAUNCH_TEMPLATE, S3, S3_BLOCK, S3_POLICY

BY_NAME = {rule.name: rule for rule in RULES}
PAIRS = [
    (rule, kind) for rule in RULES for kind in rule.checks if not isinstance(rule.checks[kind], Forbidden)
]


class AllUnknown(dict[str, Any]):
    """Properties that all exist with an unknown value."""

    def get(self, key: str, default: Any = None) -> Any:
        return UNKNOWN

    def __getitem__(self, key: str) -> Any:
        return UNKNOWN

    def __contains__(self, key: object) -> bool:
        return True


@pytest.mark.parametrize(
    ("rule", "kind"), PAIRS, ids=lambda value: value.name if isinstance(value, Rule) else str(value)
)
def test_no_rule_fails_or_reports_a_violation_on_unknown_values(rule: Rule, kind: str) -> None:
    assert evaluate(rule, Resource(kind, "it", AllUnknown())) == ()


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.stack], ids=lambda rule: rule.name)
def test_no_rule_of_a_whole_stack_fails_on_what_is_unknown(rule: Rule) -> None:
    evaluate_stack(
        rule,
        [
            Resource(kind, f"it-{index}", AllUnknown(), f"urn:{index}")
            for index, kind in enumerate(rule.stack)
        ],
    )


@pytest.mark.parametrize(
    ("name", "kind", "props"),
    [
        ("no-open-control-plane", EKS, {"vpcConfig": {"endpointPublicAccess": UNKNOWN}}),
        ("no-open-control-plane", EKS, {"vpcConfig": {"publicAccessCidrs": UNKNOWN}}),
        ("no-open-control-plane", GKE, {"masterAuthorizedNetworksConfig": {"cidrBlocks": UNKNOWN}}),
        (
            "secrets-encrypted",
            EKS,
            {"encryptionConfig": {"resources": ["secrets"], "provider": {"keyArn": UNKNOWN}}},
        ),
        ("secrets-encrypted", GKE, {"databaseEncryption": {"state": "ENCRYPTED", "keyName": UNKNOWN}}),
        ("no-star-role", "aws:iam/rolePolicy:RolePolicy", {"policy": UNKNOWN}),
        (
            "no-star-role",
            "azure-native:authorization:RoleAssignment",
            {"roleDefinitionId": "/b24988ac-6180-42a0-ab88-20f7382dd24c", "scope": UNKNOWN},
        ),
        ("tls-only-bucket", S3_POLICY, {"policy": UNKNOWN}),
        ("imdsv2", EKS_NODES, {"launchTemplate": UNKNOWN}),
        ("gpu-taint-and-label", EKS_NODES, {"amiType": UNKNOWN, "labels": {}, "taints": []}),
        (
            "trust-names-its-subject",
            "gcp:serviceaccount/iAMMember:IAMMember",
            {"role": "roles/iam.workloadIdentityUser", "member": UNKNOWN},
        ),
    ],
)
def test_an_unknown_value_is_left_for_the_apply(name: str, kind: str, props: dict[str, Any]) -> None:
    assert evaluate(BY_NAME[name], Resource(kind, "it", props)) == ()


def test_what_is_known_next_to_an_unknown_value_still_counts() -> None:
    disks = {"blockDeviceMappings": [{"ebs": {"encrypted": "false"}}, UNKNOWN]}
    (violation,) = evaluate(BY_NAME["encrypted-volumes"], Resource(LAUNCH_TEMPLATE, "it", disks))
    assert "[0]" in violation.message


def test_an_unknown_value_does_not_hide_what_another_check_finds() -> None:
    cluster = {
        "oidcIssuerProfile": {"enabled": UNKNOWN},
        "securityProfile": {"workloadIdentity": {"enabled": False}},
    }
    (violation,) = evaluate(
        BY_NAME["workload-identity"], Resource("azure-native:containerservice:ManagedCluster", "it", cluster)
    )
    assert "workloadIdentity" in violation.message


def test_a_bucket_of_unknown_name_is_found_by_the_reference_to_it() -> None:
    bucket = Resource(S3[0], "b", {"bucket": UNKNOWN, "id": UNKNOWN}, "urn:b")
    block = Resource(S3_BLOCK, "c", {"bucket": UNKNOWN}, "urn:c", {"bucket": ("urn:b",)})
    assert evaluate_stack(BY_NAME["no-public-bucket"], [bucket, block]) == ()
    assert [violation.name for violation in evaluate_stack(BY_NAME["no-public-bucket"], [bucket])] == ["b"]


@pytest.mark.parametrize(
    "use",
    [
        bool,
        str,
        len,
        list,
        float,
        int,
        lambda value: value == 1,
        lambda value: value > 1,
        lambda value: value.lower(),
        lambda value: "x" in value,
    ],
)
def test_using_an_unknown_value_raises(use: Any) -> None:
    with pytest.raises(StillUnknown):
        use(UNKNOWN)
