"""Updates that replace the nodes of a pool count as lost work, and others do not."""

from __future__ import annotations

from typing import Any

import pytest

from trainfleet.rehearsal.diff.change import Verb
from trainfleet.rehearsal.diff.compare import changes
from trainfleet.rehearsal.diff.data_loss import loss_of, weight
from trainfleet.rehearsal.simulation.aws.model import AwsModel

EKS, GKE = "aws:eks/nodeGroup:NodeGroup", "gcp:container/nodePool:NodePool"
AKS = "azure-native:containerservice:AgentPool"


def updated(token: str, path: str, old: Any, new: Any) -> Any:
    """The change that an update of one property is."""

    def inputs(value: Any) -> dict[str, Any]:
        for step in reversed(path.split(".")):
            value = {step: value}
        return {"inputs": value}

    event = {
        "op": "update",
        "urn": f"urn:pulumi:s::p::{token}::pool",
        "type": token,
        "old": inputs(old),
        "new": inputs(new),
        "detailedDiff": {path: {"diffKind": "update"}},
    }
    (found,) = changes([event], [])[0]
    return found


@pytest.mark.parametrize(
    ("token", "path", "rolls"),
    [
        (EKS, "version", True),
        (EKS, "releaseVersion", True),
        (EKS, "launchTemplate.version", True),
        (EKS, "tags.team", False),
        (EKS, "scalingConfig.maxSize", False),
        (GKE, "version", True),
        (GKE, "nodeConfig.imageType", True),
        (GKE, "nodeConfig.resourceLabels.team", False),
        (GKE, "autoscaling.totalMaxNodeCount", False),
        (AKS, "orchestratorVersion", True),
        (AKS, "maxCount", False),
        ("gcp:container/cluster:Cluster", "minMasterVersion", True),
        ("gcp:container/cluster:Cluster", "resourceLabels.team", False),
        ("aws:eks/cluster:Cluster", "version", False),
        ("aws:s3/bucket:Bucket", "tags.team", False),
    ],
)
def test_an_update_that_rolls_nodes_is_an_interruption(token: str, path: str, rolls: bool) -> None:
    change = updated(token, path, "1", "2")
    assert change.verb is Verb.UPDATE
    assert change.destructive is rolls
    assert (change.loss is not None and change.loss.kinds == ("work",)) is rolls


def test_the_nodes_that_gke_upgrades_by_itself_are_in_the_review() -> None:
    change = updated("gcp:container/cluster:Cluster", "minMasterVersion", "1.35", "1.36")
    assert change.loss is not None
    assert "GKE then upgrades the nodes of every pool by itself" in change.loss.why
    deleted = loss_of("gcp:container/cluster:Cluster")
    assert deleted is not None
    assert weight(change.loss) == weight(deleted), "and not as an unknown loss"


@pytest.mark.parametrize(
    ("new", "version"),
    [
        ({"userData": "a", "tags": {"owner": "old"}}, 3),
        ({"userData": "a", "tags": {"owner": "new"}}, 3),
        ({"userData": "b", "tags": {"owner": "old"}}, 4),
        ({"userData": "a", "tags": {"owner": "old"}, "tagSpecifications": [{"resourceType": "instance"}]}, 4),
    ],
)
def test_a_launch_template_has_a_version_per_change_but_of_its_own_tags(
    new: dict[str, Any], version: int
) -> None:
    old = {"userData": "a", "tags": {"owner": "old"}}
    token = "aws:ec2/launchTemplate:LaunchTemplate"
    found = AwsModel().updated(token, old, new, {"latestVersion": 3})
    assert found == {"latestVersion": version, "defaultVersion": version}
