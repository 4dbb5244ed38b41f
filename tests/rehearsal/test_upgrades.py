"""Platforms are upgraded from version to version: a stack is applied, its version raised, and applied again in the
same simulated cloud, on the real engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainfleet.rehearsal.engine.find import Engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.rehearsal.rehearse import RehearsalOptions, rehearsal_session
from trainfleet.rehearsal.report import Step
from trainfleet.rehearsal.simulation.cloud_object import CloudObject
from trainfleet.rehearsal.simulation.fault_injection import FailOnce
from trainfleet.rehearsal.steps.session import APPLY, Rehearsal

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

STACKS = ["aws-dev", "gcp-dev", "azure-dev"]
OLD, NEW = "1.35", "1.36"
CONTROL_PLANES = {
    "aws:eks/cluster:Cluster": "version",
    "gcp:container/cluster:Cluster": "minMasterVersion",
    "azure-native:containerservice:ManagedCluster": "kubernetesVersion",
}
NODE_POOLS = {
    "aws:eks/nodeGroup:NodeGroup": "version",
    "gcp:container/nodePool:NodePool": "version",
    "azure-native:containerservice:AgentPool": "orchestratorVersion",
}
ORDER = ("control plane", "add-ons for nodes", "system pool", "other add-ons", "GPU pools", "cluster layer")
FOR_NODES = ("vpc-cni", "kube-proxy", "eks-pod-identity-agent")


def stage(urn: str, token: str) -> str:
    """The stage of an upgrade to which a resource belongs."""
    name = urn.rsplit("::", 1)[-1]
    if token in CONTROL_PLANES:
        return "control plane"
    if token == "aws:eks/addon:Addon":
        return "add-ons for nodes" if name.endswith(FOR_NODES) else "other add-ons"
    if token in NODE_POOLS:
        return "system pool" if name.endswith("-system") else "GPU pools"
    return "cluster layer" if token.startswith("kubernetes:") else ""


@contextmanager
def applied(root: Path, engine: Engine, stack: str) -> Iterator[Rehearsal]:
    """A stack that exists, with the version OLD."""
    with rehearsal_session(read_project(root, stack), engine, RehearsalOptions()) as r:
        outcome = r.run(Step("apply", "apply"), *APPLY)
        assert outcome.ok, outcome.errors
        yield r


def set_version(r: Rehearsal, version: str, **pools: str) -> None:
    """Edit the spec: `kubernetes.version`, and the version of each of `pools`."""
    (file,) = r.runner.sandbox.project.glob("Pulumi.*-*.yaml")
    document = yaml.safe_load(file.read_text())
    (spec,) = (value for key, value in document["config"].items() if key.endswith(":platform"))
    spec["kubernetes"]["version"] = version
    for pool in spec["gpu_pools"]:
        pool.pop("version", None)
        if pool["name"] in pools:
            pool["version"] = pools[pool["name"]]
    file.write_text(yaml.safe_dump(document))


def upgraded(r: Rehearsal) -> list[tuple[str, str]]:
    """Apply; returns the stage and the name of every operation, in order. Nothing may be replaced."""
    before = len(r.cloud.operations)
    outcome = r.run(Step("upgrade", "upgrade"), *APPLY)
    assert outcome.ok, outcome.errors
    assert set(r.only(outcome).values()) <= {"update"}, r.only(outcome)
    made = r.cloud.operations[before:]
    return [(stage(each.urn, each.token), each.urn.rsplit("::", 1)[-1]) for each in made]


def in_order(done: list[tuple[str, str]]) -> list[str]:
    """The stages in which something was done; each ended before the next began."""
    stages = [name for name, _ in done if name]
    ranks = [ORDER.index(name) for name in stages]
    assert ranks == sorted(ranks), done
    return list(dict.fromkeys(stages))


def versions(r: Rehearsal) -> dict[str, Any]:
    """The version that the program states for each control plane and node pool."""
    states = {**CONTROL_PLANES, **NODE_POOLS}
    return {
        each.urn.rsplit("::", 1)[-1]: each.inputs.get(states[each.token])
        for each in r.cloud.everything()
        if each.token in states
    }


def control_plane(r: Rehearsal) -> CloudObject:
    return next(each for each in r.cloud.records.values() if each.token in CONTROL_PLANES)


@pytest.mark.deep
def test_on_eks_an_upgrade_goes_from_the_control_plane_to_the_gpu_pools(root: Path, engine: Engine) -> None:
    with applied(root, engine, "aws-dev") as r:
        set_version(r, NEW)
        done = upgraded(r)
        assert in_order(done) == list(ORDER)
        assert {name for each, name in done if each == "cluster layer"} == {"dev-cluster-autoscaler"}
        assert set(versions(r).values()) == {NEW}
        assert upgraded(r) == [], "a second apply has nothing to do"


@pytest.mark.deep
def test_on_aks_an_upgrade_goes_from_the_control_plane_to_the_gpu_pools(root: Path, engine: Engine) -> None:
    with applied(root, engine, "azure-dev") as r:
        set_version(r, NEW)
        assert in_order(upgraded(r)) == ["control plane", "system pool", "GPU pools"]
        assert set(versions(r).values()) == {NEW}
        assert control_plane(r).version == OLD, "the inline pool keeps its version: docs/upgrades.md"
        assert upgraded(r) == []


@pytest.mark.deep
def test_on_gke_an_apply_upgrades_the_control_plane_and_gke_the_nodes(root: Path, engine: Engine) -> None:
    with applied(root, engine, "gcp-dev") as r:
        set_version(r, NEW)
        done = upgraded(r)
        assert in_order(done) == ["control plane", "cluster layer"]
        assert {name for each, name in done if each == "cluster layer"} == {"dev-prometheus"}, (
            "GKE's DNS becomes CoreDNS, which serves metrics"
        )
        assert control_plane(r).inputs["minMasterVersion"] == NEW
        pools = [each for each in r.cloud.records.values() if each.token in NODE_POOLS]
        assert {each.version for each in pools} == {OLD}, "they follow in the maintenance window"
        assert upgraded(r) == []


@pytest.mark.parametrize(("stack", "pool"), [("aws-dev", "l4"), ("azure-dev", "a10")])
@pytest.mark.deep
def test_a_pool_is_held_back_and_follows_later(root: Path, engine: Engine, stack: str, pool: str) -> None:
    with applied(root, engine, stack) as r:
        set_version(r, NEW, **{pool: OLD})
        done = upgraded(r)
        assert f"dev-{pool}" not in [name for _, name in done]
        assert versions(r)[f"dev-{pool}"] == OLD
        set_version(r, NEW)
        assert upgraded(r) == [("GPU pools", f"dev-{pool}")]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("stack", STACKS)
def test_an_upgrade_that_skips_a_minor_version_is_refused(root: Path, engine: Engine, stack: str) -> None:
    """The whole program asks for it: the control plane is refused first, and nothing else is touched."""
    with applied(root, engine, stack) as r:
        cluster = control_plane(r)
        name, path = cluster.urn.rsplit("::", 1)[-1], [CONTROL_PLANES[cluster.token]]
        before = len(r.cloud.operations)
        r.programs.changes = [{"type": cluster.token, "name": name, "path": path, "value": "1.37"}]
        outcome = r.run(Step("upgrade", "upgrade"), *APPLY)
        assert not outcome.ok
        assert "from 1.35 to 1.37: one minor version at a time, so 1.36 comes first" in str(outcome.errors)
        assert [each.verb for each in r.cloud.operations[before:]] == ["refuse"]


@pytest.mark.parametrize("stack", ["aws-dev", "azure-dev"])
@pytest.mark.deep
def test_nodes_that_are_newer_than_the_control_plane_are_refused(
    root: Path, engine: Engine, stack: str
) -> None:
    with applied(root, engine, stack) as r:
        system = next(each for each in r.cloud.records.values() if each.urn.endswith("::dev-system"))
        path = [NODE_POOLS[system.token]]
        r.programs.changes = [{"type": system.token, "name": "dev-system", "path": path, "value": NEW}]
        outcome = r.run(Step("upgrade", "upgrade"), *APPLY)
        assert not outcome.ok
        assert "nodes of 1.36 with a control plane of 1.35" in str(outcome.errors)


@pytest.mark.deep
def test_an_upgrade_that_stops_half_way_is_resumed(root: Path, engine: Engine) -> None:
    """The system pool does not drain. The next apply does what is left, in the same order."""
    with applied(root, engine, "aws-dev") as r:
        set_version(r, NEW)
        system = next(each for each in r.cloud.records.values() if each.urn.endswith("::dev-system"))
        r.cloud.injector = FailOnce("update", only=[system.urn], message="PodEvictionFailure")
        outcome = r.run(Step("upgrade", "upgrade"), *APPLY)
        assert not outcome.ok
        assert (versions(r)["dev-eks"], versions(r)["dev-system"]) == (NEW, OLD)
        assert versions(r)["dev-l4"] == OLD, "no later stage has begun"
        assert in_order(upgraded(r)) == ["system pool", "other add-ons", "GPU pools", "cluster layer"]


@pytest.mark.deep
def test_definitions_are_upgraded_before_their_operator(root: Path, engine: Engine) -> None:
    with applied(root, engine, "aws-dev") as r:
        kinds = "kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition"
        crds = [each.urn.rsplit("::", 1)[-1] for each in r.cloud.everything() if each.token == kinds]
        assert len(crds) == 4
        operator = {"type": "kubernetes:helm.sh/v3:Release", "name": "dev-kuberay-operator"}
        r.programs.changes = [
            *(
                {"type": kinds, "name": each, "path": ["metadata", "labels"], "value": {"v": "2"}}
                for each in crds
            ),
            {**operator, "path": ["timeout"], "value": 601},
        ]
        names = [name for _, name in upgraded(r)]
        assert names[-1] == "dev-kuberay-operator"
        assert sorted(names[:-1]) == sorted(crds)
