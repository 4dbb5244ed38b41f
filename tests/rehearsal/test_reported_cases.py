"""Ten reviews that were wrong once: each now says what the provider or the API does, or that it is unknown.

The simulated provider compares old and new inputs, and `compare` turns its answer into what a reviewer reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pulumi.runtime.proto import provider_pb2 as pb

from tests.rehearsal.diff.test_data_loss import NOT_SETTINGS
from trainfleet.policies.catalogue import RULES
from trainfleet.policies.engine.rule import Resource, evaluate
from trainfleet.rehearsal.diff.change import Change
from trainfleet.rehearsal.diff.compare import changes, deletions
from trainfleet.rehearsal.diff.model import Diff, Verdict
from trainfleet.rehearsal.diff.worktrees import Revision
from trainfleet.rehearsal.simulation.provider import CLOUD_MODELS, SimulatedProvider
from trainfleet.rehearsal.simulation.pulumi_values import to_struct
from trainfleet.rehearsal.simulation.replacement import table
from trainfleet.rehearsal.simulation.schema import packages
from trainfleet.rehearsal.simulation.state import Cloud

NODE_GROUP = "aws:eks/nodeGroup:NodeGroup"
LUSTRE = "aws:fsx/lustreFileSystem:LustreFileSystem"
LASTING = {"deploymentType": "PERSISTENT_2"}
CLUSTER = "aws:eks/cluster:Cluster"
POLICY = "aws:iam/policy:Policy"
_KINDS = {0: "add", 1: "add-replace", 2: "delete", 3: "delete-replace", 4: "update", 5: "update-replace"}


def urn(token: str) -> str:
    return f"urn:pulumi:one::tiny::{token}::it"


def reviewed(token: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Change | None:
    """What a reviewer reads of a resource whose inputs go from `old` to `new`; None: nothing changes."""
    provider = SimulatedProvider(packages()[token.split(":", 1)[0]], Cloud(), table())
    answer = provider.Diff(
        pb.DiffRequest(urn=urn(token), type=token, old_inputs=to_struct(old), news=to_struct(new)), None
    )
    if answer.changes == pb.DiffResponse.DIFF_NONE:
        return None

    def state(inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {"urn": urn(token), "type": token, "custom": True, "id": "x", "inputs": inputs, "outputs": {}}

    event = {
        "op": "replace" if answer.replaces else "update",
        "urn": urn(token),
        "type": token,
        "old": state(old),
        "new": state(new),
        "detailedDiff": {
            path: {"diffKind": _KINDS[each.kind], "inputDiff": True}
            for path, each in answer.detailedDiff.items()
        },
    }
    (found,), _ = changes([event], [])
    return found


def verdict(change: Change) -> Verdict:
    side = Revision("r", "abc", "t")
    return Diff("one", side, side, "there", (change,), None, None).verdict


@pytest.mark.parametrize(
    ("token", "old", "new", "forced_by"),
    [
        (
            LUSTRE,
            {**LASTING, "storageCapacity": 4800},
            {**LASTING, "storageCapacity": 1200},
            "storageCapacity",
        ),
        (CLUSTER, {"encryptionConfig": {"resources": ["secrets"]}}, {}, "encryptionConfig"),
        (
            "gcp:secretmanager/secret:Secret",
            {"replication": {"auto": {}}},
            {"replication": {"userManaged": {"replicas": [{"location": "europe-west4"}]}}},
            "replication",
        ),
    ],
    ids=["a file system shrinks", "encryption is removed", "a secret gets other replication"],
)
def test_a_change_that_replaces_in_some_cases_is_destructive_in_them(
    token: str, old: Mapping[str, Any], new: Mapping[str, Any], forced_by: str
) -> None:
    found = reviewed(token, old, new)
    assert found is not None
    assert any(path.startswith(forced_by) for path in (*found.forced_by, *found.may_replace)), found
    assert verdict(found) in (Verdict.DESTRUCTIVE, Verdict.UNKNOWN)


def test_a_file_system_that_grows_is_updated_in_place() -> None:
    found = reviewed(LUSTRE, {**LASTING, "storageCapacity": 1200}, {**LASTING, "storageCapacity": 4800})
    assert found is not None
    assert (verdict(found), found.may_replace) == (Verdict.CHANGE, ())


def test_another_engine_and_identifier_of_a_database_may_replace() -> None:
    found = reviewed(
        "aws:rds/instance:Instance",
        {"engine": "mysql", "identifier": "a"},
        {"engine": "postgres", "identifier": "b"},
    )
    assert found is not None
    assert "engine" in (*found.forced_by, *found.may_replace)
    assert verdict(found) is not Verdict.CHANGE


@pytest.mark.parametrize("token", NOT_SETTINGS)
def test_a_deletion_of_what_holds_data_or_capacity_is_destructive(token: str) -> None:
    (found,) = deletions([{"urn": urn(token), "type": token, "custom": True, "id": "x"}])
    assert verdict(found) is Verdict.DESTRUCTIVE


@pytest.mark.parametrize(
    ("token", "path", "value"),
    [
        ("aws:ec2/launchTemplate:LaunchTemplate", "instanceType", "p7.48xlarge"),
        (NODE_GROUP, "amiType", "BOTTLEROCKET_x86_64_NEURON"),
    ],
)
def test_a_machine_or_image_that_is_newer_than_the_knowledge_is_a_warning(
    token: str, path: str, value: str
) -> None:
    known = {"clusterName": "c", "nodeRoleArn": "arn:aws:iam::111122223333:role/r", "subnetIds": ["subnet-1"]}
    known |= {"scalingConfig": {"minSize": 0, "maxSize": 1, "desiredSize": 0}}  # type: ignore[dict-item]
    inputs = {path: value, **(known if token == NODE_GROUP else {})}
    found = CLOUD_MODELS["aws"].check(packages()["aws"], token, inputs)
    assert [(each.path, each.open) for each in found] == [(path, True)]


FORGOTTEN = {
    "instanceTypes": ["p5.48xlarge"],
    "amiType": "AL2023_x86_64_STANDARD",
    "scalingConfig": {"minSize": 4, "maxSize": 4, "desiredSize": 4},
}


def violated(token: str, props: Mapping[str, Any]) -> set[str]:
    resource = Resource(token, "it", dict(props))
    return {rule.name for rule in RULES if evaluate(rule, resource)}


def test_a_gpu_pool_without_taint_labels_or_driver_is_known_by_its_machine() -> None:
    found = violated(NODE_GROUP, FORGOTTEN)
    assert {"gpu-taint-and-label", "gpu-pools-from-zero"} <= found
    assert any("driver" in name for name in found), found


@pytest.mark.parametrize("ranges", [["0.0.0.0/1"], ["::0/0"], ["0000:0000::/0"]], ids=str)
def test_ingress_from_the_world_is_open_however_it_is_written(ranges: list[str]) -> None:
    rule = {"fromPort": 22, "toPort": 22, "protocol": "tcp"}
    key = "ipv6CidrBlocks" if ":" in ranges[0] else "cidrBlocks"
    props = {"ingress": [{**rule, key: ranges}]}
    assert "no-open-ingress" in violated("aws:ec2/securityGroup:SecurityGroup", props)


def test_a_control_plane_for_both_halves_of_the_world_is_open() -> None:
    config = {"endpointPublicAccess": True, "publicAccessCidrs": ["0.0.0.0/1", "128.0.0.0/1"]}
    assert "no-open-control-plane" in violated(CLUSTER, {"vpcConfig": config})


@pytest.mark.parametrize(
    ("token", "old", "new"),
    [
        (NODE_GROUP, {"subnetIds": ["a", "b", "c"]}, {"subnetIds": ["c", "a", "b"]}),
        (LUSTRE, {"securityGroupIds": ["a", "b"]}, {"securityGroupIds": ["b", "a"]}),
        (
            CLUSTER,
            {"vpcConfig": {"publicAccessCidrs": ["192.0.2.0/24", "198.51.100.0/24"]}},
            {"vpcConfig": {"publicAccessCidrs": ["198.51.100.0/24", "192.0.2.0/24"]}},
        ),
        (
            POLICY,
            {"policy": '{"Version": "x", "Statement": []}'},
            {"policy": '{"Statement":[],"Version":"x"}'},
        ),
    ],
    ids=["subnets", "security groups", "ranges", "policy"],
)
def test_another_order_changes_nothing(token: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    assert reviewed(token, old, new) is None
