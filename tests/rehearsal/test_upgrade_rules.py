"""Upgrades in the simulated clouds: which steps of a version are refused, by record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from trainfleet.rehearsal.simulation.cloud_object import CloudObject
from trainfleet.rehearsal.simulation.state import Cloud, RefusedError


@dataclass(frozen=True)
class Managed:
    """The types of a managed Kubernetes, and the properties that hold versions."""

    cluster: str
    version: str
    pool: str
    nodes: str
    by: str

    def at(self, version: str) -> dict[str, Any]:
        return {self.version: version}

    def nodes_at(self, version: str) -> dict[str, Any]:
        return {self.by: "prod", **({self.nodes: version} if version else {})}


EKS = Managed("aws:eks/cluster:Cluster", "version", "aws:eks/nodeGroup:NodeGroup", "version", "clusterName")
GKE = Managed(
    "gcp:container/cluster:Cluster",
    "minMasterVersion",
    "gcp:container/nodePool:NodePool",
    "version",
    "cluster",
)
AKS = Managed(
    "azure-native:containerservice:ManagedCluster",
    "kubernetesVersion",
    "azure-native:containerservice:AgentPool",
    "orchestratorVersion",
    "resourceName",
)
CLOUDS = [pytest.param(EKS, id="eks"), pytest.param(GKE, id="gke"), pytest.param(AKS, id="aks")]
POOL = "pools/gpu"


def cloud_with(managed: Managed, version: str, nodes: str = "") -> Cloud:
    """A control plane and one node pool; without `nodes`, the cloud chooses the nodes' version."""
    cloud = Cloud()
    cloud.create(CloudObject("u::prod", managed.cluster, "prod", "", managed.at(version), {}))
    cloud.create(CloudObject("u::gpu", managed.pool, POOL, "", managed.nodes_at(nodes), {}))
    return cloud


def upgrade(cloud: Cloud, managed: Managed, version: str) -> None:
    cloud.update(managed.cluster, "prod", "u::prod", managed.at(version), {})


def upgrade_nodes(cloud: Cloud, managed: Managed, version: str) -> None:
    cloud.update(managed.pool, POOL, "u::gpu", managed.nodes_at(version), {})


@pytest.mark.parametrize("managed", CLOUDS)
def test_a_control_plane_rises_by_one_minor_version(managed: Managed) -> None:
    cloud = cloud_with(managed, "1.34", "1.34")
    with pytest.raises(RefusedError, match=r"from 1\.34 to 1\.36: one minor version at a time, so 1\.35"):
        upgrade(cloud, managed, "1.36")
    upgrade(cloud, managed, "1.35")
    upgrade_nodes(cloud, managed, "1.35")
    upgrade(cloud, managed, "1.36")


@pytest.mark.parametrize(
    ("managed", "lower"), [(EKS, "1.33"), (GKE, "1.34"), (AKS, "1.34")], ids=["eks", "gke", "aks"]
)
def test_a_control_plane_is_not_downgraded(managed: Managed, lower: str) -> None:
    cloud = cloud_with(managed, "1.35", lower)
    with pytest.raises(RefusedError, match=rf"the control plane goes from 1\.35 to {lower}: (EKS|GKE|AKS)"):
        upgrade(cloud, managed, lower)


def test_eks_goes_back_by_one_minor_version_after_its_nodes() -> None:
    cloud = cloud_with(EKS, "1.35", "1.35")
    with pytest.raises(
        RefusedError, match=r"the nodes of gpu have 1\.35, and the control plane would have 1\.34"
    ):
        upgrade(cloud, EKS, "1.34")
    upgrade_nodes(cloud, EKS, "1.34")
    upgrade(cloud, EKS, "1.34")


@pytest.mark.parametrize("managed", CLOUDS)
def test_nodes_are_not_upgraded_before_their_control_plane(managed: Managed) -> None:
    cloud = cloud_with(managed, "1.35", "1.35")
    with pytest.raises(RefusedError, match=r"nodes of 1\.36 with a control plane of 1\.35"):
        upgrade_nodes(cloud, managed, "1.36")
    upgrade(cloud, managed, "1.36")
    upgrade_nodes(cloud, managed, "1.36")


@pytest.mark.parametrize(("managed", "oldest"), [(EKS, 32), (GKE, 33), (AKS, 33)], ids=["eks", "gke", "aks"])
def test_a_control_plane_does_not_leave_its_nodes_behind(managed: Managed, oldest: int) -> None:
    """Also nodes for which the program states no version: they keep the one with which they were created."""
    for stated in (f"1.{oldest - 1}", ""):
        cloud = cloud_with(managed, f"1.{oldest - 1}", stated)
        for minor in range(oldest, 35):
            upgrade(cloud, managed, f"1.{minor}")
        with pytest.raises(RefusedError, match=rf"1\.{oldest - 1}, and the control plane would have 1\.35"):
            upgrade(cloud, managed, "1.35")


def test_aks_keeps_the_version_of_an_inline_pool() -> None:
    cloud = cloud_with(AKS, "1.32", "1.32")
    for version in ("1.33", "1.34"):
        upgrade(cloud, AKS, version)
        upgrade_nodes(cloud, AKS, version)
    with pytest.raises(RefusedError, match=r"inline pool \(az aks nodepool upgrade\) have 1\.32"):
        upgrade(cloud, AKS, "1.35")
    cloud.records[AKS.cluster, "prod", ""].version = "1.34"  # az aks nodepool upgrade
    upgrade(cloud, AKS, "1.35")


def test_aks_upgrades_a_node_pool_by_one_minor_version_and_never_back() -> None:
    cloud = cloud_with(AKS, "1.36", "1.34")
    with pytest.raises(RefusedError, match=r"the node pool goes from 1\.34 to 1\.36: one minor version"):
        upgrade_nodes(cloud, AKS, "1.36")
    upgrade_nodes(cloud, AKS, "1.35")
    with pytest.raises(RefusedError, match=r"the node pool goes from 1\.35 to 1\.34: AKS downgrades none"):
        upgrade_nodes(cloud, AKS, "1.34")


def test_kube_proxy_is_not_newer_than_its_control_plane() -> None:
    def addon(name: str, version: str) -> CloudObject:
        inputs = {"clusterName": "prod", "addonName": name, "addonVersion": version}
        return CloudObject(f"u::{name}", "aws:eks/addon:Addon", f"prod:{name}", "", inputs, {})

    cloud = cloud_with(EKS, "1.35")
    with pytest.raises(RefusedError, match=r"kube-proxy of 1\.36 with a control plane of 1\.35"):
        cloud.create(addon("kube-proxy", "v1.36.0-eksbuild.25"))
    cloud.create(addon("kube-proxy", "v1.35.0-eksbuild.2"))
    cloud.create(addon("vpc-cni", "v1.40.0-eksbuild.1"))
    upgrade(cloud, EKS, "1.36")


@pytest.mark.parametrize("managed", CLOUDS)
def test_a_version_may_stay_as_it_is(managed: Managed) -> None:
    cloud = cloud_with(managed, "1.35", "1.34")
    upgrade(cloud, managed, "1.35")
    upgrade_nodes(cloud, managed, "1.34")
