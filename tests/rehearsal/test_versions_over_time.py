"""The simulated clouds refuse a new cluster whose Kubernetes version is out of support on the day."""

from __future__ import annotations

from typing import Any

import pytest

from trainfleet.rehearsal.simulation.cloud_object import CloudObject
from trainfleet.rehearsal.simulation.state import Cloud, RefusedError

EKS, GKE = "aws:eks/cluster:Cluster", "gcp:container/cluster:Cluster"
AKS = "azure-native:containerservice:ManagedCluster"
STANDARD = {"upgradePolicy": {"supportType": "STANDARD"}}
CASES: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    (EKS, {"version": "1.34", **STANDARD}, {"version": "1.35", **STANDARD}, "2026-12-02"),
    (EKS, {"version": "1.34", **STANDARD}, {"version": "1.34"}, "2026-12-02"),
    (EKS, {"version": "1.36", **STANDARD}, {"version": "1.35", **STANDARD}, "2026-06-01"),
    (GKE, {"minMasterVersion": "1.33"}, {"minMasterVersion": "1.34.11-gke.1209000"}, "2026-11-22"),
    (
        GKE,
        {"minMasterVersion": "1.33"},
        {"minMasterVersion": "1.33", "releaseChannel": {"channel": "EXTENDED"}},
        "2026-11-22",
    ),
    (AKS, {"kubernetesVersion": "1.33.2"}, {"kubernetesVersion": "1.35"}, "2026-11-22"),
    (
        AKS,
        {"kubernetesVersion": "1.34"},
        {"kubernetesVersion": "1.34", "supportPlan": "AKSLongTermSupport"},
        "2026-12-24",
    ),
    (AKS, {"kubernetesVersion": "1.34"}, {}, "2026-12-24"),
]


def cluster(token: str, inputs: dict[str, Any]) -> CloudObject:
    return CloudObject(f"urn:pulumi:s::p::{token}::prod", token, "prod", "", inputs, {})


@pytest.mark.parametrize(("token", "wrong", "right", "day"), CASES)
def test_a_new_cluster_needs_a_version_in_support(
    token: str, wrong: dict[str, Any], right: dict[str, Any], day: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINFLEET_DATE", day)
    with pytest.raises(RefusedError, match=f"and it is {day}"):
        Cloud().create(cluster(token, wrong))
    Cloud().create(cluster(token, right))


POOL, AGENTS = "aws:eks/nodeGroup:NodeGroup", "azure-native:containerservice:AgentPool"


@pytest.mark.parametrize(
    ("token", "version", "pool", "wrong", "right"),
    [
        (EKS, {"version": "1.35"}, POOL, {"version": "1.36"}, {"version": "1.35"}),
        (EKS, {"version": "1.35"}, POOL, {"version": "1.31"}, {"version": "1.32"}),
        (
            EKS,
            {"version": "1.35"},
            POOL,
            {"version": "1.35", "releaseVersion": "1.34.1-20261112"},
            {"version": "1.35", "releaseVersion": "1.35.2-20261112"},
        ),
        (
            AKS,
            {"kubernetesVersion": "1.36"},
            AGENTS,
            {"orchestratorVersion": "1.33"},
            {"orchestratorVersion": "1.34.2"},
        ),
    ],
)
def test_a_node_pool_is_as_old_as_its_cluster_allows(
    token: str, version: dict[str, Any], pool: str, wrong: dict[str, Any], right: dict[str, Any]
) -> None:
    cloud = Cloud()
    cloud.create(cluster(token, version))
    named = {"clusterName": "prod", "resourceName": "prod"}
    with pytest.raises(RefusedError, match="nodes"):
        cloud.create(CloudObject("urn:pulumi:s::p::x::wrong", pool, "wrong", "", {**named, **wrong}, {}))
    cloud.create(CloudObject("urn:pulumi:s::p::x::right", pool, "right", "", {**named, **right}, {}))
