"""A value that a preview does not know neither stops a rule with an error nor counts as a violation; what is known still does."""

from __future__ import annotations

from typing import Any

import pytest

from policies import encryption, identity, network, nodes, storage
from policies.pack import RULES
from policies.rule import UNKNOWN, Resource, Rule, StillUnknown, judge, judge_stack

CLUSTER, GROUP = "aws:eks/cluster:Cluster", "aws:eks/nodeGroup:NodeGroup"
PAIRS = [(rule, kind) for rule in RULES for kind in rule.checks]


class AllUnknown(dict[str, Any]):
    """Properties each of which is there and unknown."""

    def get(self, key: str, default: Any = None) -> Any:
        return UNKNOWN

    def __getitem__(self, key: str) -> Any:
        return UNKNOWN

    def __contains__(self, key: object) -> bool:
        return True


@pytest.mark.parametrize(("rule", "kind"), PAIRS, ids=lambda value: value.name if isinstance(value, Rule) else str(value))
def test_no_rule_fails_or_condemns_what_is_unknown(rule: Rule, kind: str) -> None:
    assert judge(rule, Resource(kind, "it", AllUnknown())) == ()


@pytest.mark.parametrize(
    ("rule", "kind", "props"),
    [
        (network.NO_OPEN_CONTROL_PLANE, CLUSTER, {"vpcConfig": {"endpointPublicAccess": UNKNOWN}}),
        (network.NO_OPEN_CONTROL_PLANE, CLUSTER, {"vpcConfig": {"publicAccessCidrs": UNKNOWN}}),
        (encryption.SECRETS_ENCRYPTED, CLUSTER, {"encryptionConfig": {"resources": ["secrets"], "provider": {"keyArn": UNKNOWN}}}),
        (identity.NO_STAR_ROLE, "aws:iam/rolePolicy:RolePolicy", {"policy": UNKNOWN}),
        (storage.TLS_ONLY_BUCKET, storage.POLICY, {"policy": UNKNOWN}),
        (nodes.IMDSV2, GROUP, {"launchTemplate": UNKNOWN}),
        (nodes.GPU_TAINT_AND_LABEL, GROUP, {"amiType": UNKNOWN, "labels": {}, "taints": []}),
    ],
)
def test_an_unknown_value_is_left_for_the_apply(rule: Rule, kind: str, props: dict[str, Any]) -> None:
    assert judge(rule, Resource(kind, "it", props)) == ()


def test_what_is_known_beside_an_unknown_value_still_counts() -> None:
    disks = {"blockDeviceMappings": [{"ebs": {"encrypted": "false"}}, UNKNOWN]}
    (violation,) = judge(encryption.ENCRYPTED_VOLUMES, Resource("aws:ec2/launchTemplate:LaunchTemplate", "it", disks))
    assert "[0]" in violation.what


def test_a_bucket_of_unknown_name_is_found_by_the_reference_to_it() -> None:
    bucket = Resource("aws:s3/bucket:Bucket", "b", {"bucket": UNKNOWN, "id": UNKNOWN}, "urn:b")
    block = Resource(storage.BLOCK, "c", {"bucket": UNKNOWN}, "urn:c", {"bucket": ("urn:b",)})
    assert judge_stack(storage.NO_PUBLIC_BUCKET, [bucket, block]) == ()
    assert [violation.name for violation in judge_stack(storage.NO_PUBLIC_BUCKET, [bucket])] == ["b"]


@pytest.mark.parametrize("use", [bool, str, len, list, float, lambda value: value == 1, lambda value: value.lower(), lambda value: "x" in value])
def test_using_an_unknown_value_raises(use: Any) -> None:
    with pytest.raises(StillUnknown):
        use(UNKNOWN)
