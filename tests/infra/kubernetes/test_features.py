"""Every part of the layer is there by default and gone with its switch, or where the cloud provides it;
nothing
else changes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.infra.kubernetes.planned import Planned, plan
from trainfleet.infra.platform import ProvidedFeature

SWITCHES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "kuberay": (
        {"layer": {"kuberay": False}, "queue": {"enabled": False}},
        {
            "lab-kuberay-operator",
            "lab-crd-rayjobs",
            "lab-namespace-kuberay-system",
            "lab-servicemonitor-kuberay-operator",
        },
    ),
    "gpu_plugin": ({"layer": {"gpu_plugin": False}}, {"lab-nvidia-device-plugin"}),
    "rdma_plugin": ({"layer": {"rdma_plugin": False}}, {"lab-efa-device-plugin"}),
    "gpu_metrics": ({"layer": {"gpu_metrics": False}}, {"lab-dcgm-exporter"}),
    "autoscaler": ({"layer": {"autoscaler": False}}, {"lab-cluster-autoscaler"}),
    "network_policies": (
        {"layer": {"network_policies": False}},
        {"lab-network-training-deny-all", "lab-network-monitoring-metrics"},
    ),
    "priority_classes": (
        {"layer": {"priority_classes": False}, "queue": {"enabled": False}},
        {"lab-priority-high", "lab-priority-low"},
    ),
    "launcher_access": (
        {"layer": {"launcher_access": False}},
        {"lab-launcher", "lab-launcher-login", "lab-account-launcher", "lab-training-pods"},
    ),
    "storage_classes": ({"layer": {"storage_classes": False}}, {"lab-storage-class"}),
    "certificates": (
        {"layer": {"certificates": "none"}, "ray": {"tls": False}},
        {"lab-ray-signer-deployment", "lab-ray-tls", "lab-namespace-ray-certificates"},
    ),
    "ray.tls": (
        {"ray": {"tls": False}},
        {"lab-ray-signer-deployment", "lab-ray-tls", "lab-network-ray-certificates-from-training"},
    ),
    "logs": ({"layer": {"logs": False}}, {"lab-fluent-bit"}),
    "node_problems": ({"layer": {"node_problems": False}}, {"lab-node-problem-detector"}),
    "queue": (
        {"queue": {"enabled": False}},
        {"lab-kueue", "lab-kueue-clusterqueue-training", "lab-namespace-kueue-system"},
    ),
    "monitoring": (
        {"monitoring": {"enabled": False}},
        {
            "lab-prometheus",
            "lab-monitoring-definitions",
            "lab-dashboard-gpu",
            "lab-podmonitor-ray-head",
            "lab-prometheusrule-trainfleet",
        },
    ),
    "secrets": (
        {"secrets": {"provider": "none"}},
        {"lab-external-secrets", "lab-clustersecretstore-cloud", "lab-externalsecret-hf-token"},
    ),
}
PROVIDED: dict[ProvidedFeature, str] = {
    "gpu-plugin": "lab-nvidia-device-plugin",
    "rdma-plugin": "lab-efa-device-plugin",
    "gpu-metrics": "lab-dcgm-exporter",
    "autoscaler": "lab-cluster-autoscaler",
    "logs": "lab-fluent-bit",
    "node-problems": "lab-node-problem-detector",
    "storage-class": "lab-storage-class",
}


@cache
def whole() -> Planned:
    return plan()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("switch", SWITCHES)
def test_a_part_exists_and_gone_with_its_switch(switch: str) -> None:
    changes, gone = SWITCHES[switch]
    without = plan(changes)
    assert gone <= whole().types.keys()
    assert not gone & without.types.keys()
    assert without.types.keys() < whole().types.keys(), "turning a part off adds nothing"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("part", PROVIDED)
def test_what_the_cloud_provides_is_not_installed_a_second_time(part: ProvidedFeature) -> None:
    name = PROVIDED[part]
    assert name in whole().types
    assert name not in plan(provides=frozenset({part})).types


def test_an_exporter_that_the_cloud_provides_is_scraped_all_the_same() -> None:
    provided = plan(provides=frozenset({"gpu-metrics"}))
    (endpoint,) = provided.custom("PodMonitor")["gpu-metrics"]["spec"]["podMetricsEndpoints"]
    assert endpoint == {"port": "metrics", "interval": "15s"}
    (anywhere,) = [
        rule
        for rule in provided.inputs["lab-network-monitoring-metrics"]["spec"]["egress"]
        if "to" not in rule
    ]
    assert {port["port"] for port in anywhere["ports"]} == {9100, 10250, 9400}
    assert "gpu-metrics" not in whole().custom("PodMonitor")
    assert "gpu-metrics" not in plan(
        {"layer": {"gpu_metrics": False}}, provides=frozenset({"gpu-metrics"})
    ).custom("PodMonitor")


def test_turning_network_policies_off_leaves_none_and_namespaces_as_they_are() -> None:
    without = plan({"layer": {"network_policies": False}})
    assert not without.of("NetworkPolicy")
    assert without.of("Namespace").keys() == whole().of("Namespace").keys()


def test_nothing_waits_for_definitions_that_are_missing() -> None:
    """Without monitoring no chart provides a monitor, whose definition nobody installed."""
    without = plan({"monitoring": {"enabled": False}})
    for name in ("lab-dcgm-exporter", "lab-external-secrets"):
        assert without.values(name)["serviceMonitor"]["enabled"] is False
        assert whole().values(name)["serviceMonitor"]["enabled"] is True
    assert without.values("lab-kueue")["enablePrometheus"] is False
    assert without.values("lab-node-problem-detector")["metrics"] == {
        "enabled": False,
        "serviceMonitor": {"enabled": False},
    }
    assert not [name for name, token in without.types.items() if "monitoring.coreos.com" in token]


def test_every_namespace_that_is_used_exists_and_every_one_that_exists_is_used() -> None:
    for changes in (
        {},
        {"monitoring": {"enabled": False}, "layer": {"node_problems": False}},
        {"layer": {"certificates": "cert-manager"}},
    ):
        planned = plan(changes)
        there = {inputs["metadata"]["name"] for inputs in planned.of("Namespace").values()}
        used = {
            inputs["metadata"]["namespace"]
            for inputs in planned.inputs.values()
            if (inputs.get("metadata") or {}).get("namespace")
        }
        used |= {inputs["namespace"] for inputs in planned.of("Release").values()}
        policies = {inputs["metadata"]["namespace"] for inputs in planned.of("NetworkPolicy").values()}
        assert used - {"kube-system"} <= there
        assert policies == there
        overridden = (
            {planned.values("lab-prometheus")["prometheus-node-exporter"]["namespaceOverride"]}
            if "lab-prometheus" in planned.types
            else set()
        )
        filled = (
            {inputs["namespace"] for inputs in planned.of("Release").values()} | overridden | {"training"}
        ) | {inputs["metadata"]["namespace"] for inputs in planned.of("Deployment").values()}
        assert there <= filled


def test_pod_security_is_loosened_for_agents_of_nodes_only() -> None:
    planned = plan({"gpu_pools": [{"name": "l4", "accelerator": "L4", "per_node": 4}]})
    levels = {
        inputs["metadata"]["name"]: inputs["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        for inputs in planned.of("Namespace").values()
    }
    assert levels == {
        "training": "baseline",
        "kuberay-system": "restricted",
        "ray-certificates": "restricted",
        "gpu-system": "privileged",
        "node-system": "privileged",
        "kueue-system": "restricted",
        "monitoring": "baseline",
        "logging": "privileged",
        "external-secrets": "restricted",
    }
