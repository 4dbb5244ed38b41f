"""Every Kubernetes object of all stacks passes the dry run of an API server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.conftest import Cluster, parsed, trainfleet
from tests.cluster.stack import everything, unlike
from trainfleet.rehearsal.on_cluster.cluster_target import built_in
from trainfleet.rehearsal.on_cluster.dry_run import Objects, dry_run
from trainfleet.rehearsal.project_lookup import stack_names

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def results(cluster: Cluster) -> Iterator[dict[str, dict[str, Any]]]:
    """The result of the dry run for each stack. The dry run must leave nothing on the cluster."""
    before = everything(built_in(cluster.name))
    done = trainfleet("rehearse", "all", "--on-cluster", cluster.name, "--dry-run", "--json", timeout=2000)
    yield {row["stack"]: row for row in parsed(done, codes=(0, 1))["stacks"]}
    assert unlike(before, everything(built_in(cluster.name))) == []


@pytest.mark.slow
@pytest.mark.parametrize("stack", stack_names())
def test_no_object_of_a_stack_is_refused(results: dict[str, dict[str, Any]], stack: str) -> None:
    assert results[stack]["objects"] > 40
    assert results[stack]["refused"] == []
    assert results[stack]["not_judged"] == []


def document(
    kind: str, name: str, body: dict[str, Any], api_version: str = "v1", namespace: str = "tried"
) -> dict[str, Any]:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}


def test_a_refused_object_is_named_with_the_message_of_the_api_server(cluster: Cluster) -> None:
    restricted = {
        "metadata": {"name": "tried", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}
    }
    limits = {"spec": {"limits": [{"type": "Container", "min": {"cpu": "2"}, "max": {"cpu": "1"}}]}}
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "a"}]}}
    objects = [
        {"apiVersion": "v1", "kind": "Namespace", **restricted},
        document("ServiceAccount", "default", {}),
        document("LimitRange", "upside-down", limits),
        document(
            "NetworkPolicy",
            "nowhere",
            {"spec": {"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/40"}}]}]}},
            "networking.k8s.io/v1",
        ),
        document("Job", "root", {"spec": {"template": template}}, "batch/v1"),
        document("ConfigMap", "fine", {"data": {"a": "b"}}),
        document(
            "PodMonitor",
            "misspelt",
            {"spec": {"selector": {}, "podMetricsEndpoint": []}},
            "monitoring.coreos.com/v1",
        ),
        document("Unheard", "of", {"spec": {}}, "example.com/v1"),
    ]
    (seen,) = dry_run(built_in(cluster.name), [Objects("tried", objects, ["prometheus-operator-crds"])])
    refused = dict(seen.refused)
    assert set(refused) == {
        "LimitRange tried/upside-down",
        "NetworkPolicy tried/nowhere",
        "Job tried/root",
        "PodMonitor tried/misspelt",
    }
    assert "min value 2 is greater than max value 1" in refused["LimitRange tried/upside-down"]
    assert "10.0.0.0/40" in refused["NetworkPolicy tried/nowhere"]
    assert 'violates PodSecurity "restricted:latest"' in refused["Job tried/root"]
    assert "podMetricsEndpoint" in refused["PodMonitor tried/misspelt"]
    assert seen.unchecked == ["Unheard tried/of (example.com/v1)"]
