"""The Helm charts of the layer with their pinned versions, and how they are installed.

The provider fetches a chart during the apply. Values are typed documents of `kubernetes.values` and never
hold a secret, because they are stored as plain text in the state (pulumi-kubernetes#734). docs/layer.md
describes how to raise a version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from trainfleet.infra.kubernetes.chart_keys import known, refuse_unknown
from trainfleet.infra.kubernetes.manifest_model import plain

TIMEOUT_SECONDS = 600


@dataclass(frozen=True)
class Chart:
    """A chart of a repository, or an OCI chart if `repository` starts with oci:// (and includes the chart's
    name).
    """

    name: str
    repository: str
    version: str


NVIDIA_DEVICE_PLUGIN = Chart("nvidia-device-plugin", "https://nvidia.github.io/k8s-device-plugin", "0.18.2")
EFA_DEVICE_PLUGIN = Chart("aws-efa-k8s-device-plugin", "https://aws.github.io/eks-charts", "0.5.26")
DCGM_EXPORTER = Chart("dcgm-exporter", "https://nvidia.github.io/dcgm-exporter/helm-charts", "4.8.1")
CLUSTER_AUTOSCALER = Chart("cluster-autoscaler", "https://kubernetes.github.io/autoscaler", "9.59.0")
KUEUE = Chart("kueue", "oci://registry.k8s.io/kueue/charts/kueue", "0.17.1")
EXTERNAL_SECRETS = Chart("external-secrets", "https://charts.external-secrets.io", "2.9.0")
CERT_MANAGER = Chart("cert-manager", "https://charts.jetstack.io", "v1.21.1")
PROMETHEUS_DEFINITIONS = Chart(
    "prometheus-operator-crds", "https://prometheus-community.github.io/helm-charts", "27.0.1"
)
"""The definitions of the operator version (0.89) in the chart below. As templates of their own chart, they
are upgraded.
"""
PROMETHEUS_STACK = Chart(
    "kube-prometheus-stack", "https://prometheus-community.github.io/helm-charts", "82.16.0"
)
FLUENT_BIT = Chart("fluent-bit", "https://fluent.github.io/helm-charts", "0.57.9")
NODE_PROBLEM_DETECTOR = Chart("node-problem-detector", "https://charts.deliveryhero.io", "2.4.1")


def kuberay_operator(version: str) -> Chart:
    """The chart of an operator version, which is the chart's version."""
    return Chart("kuberay-operator", "https://ray-project.github.io/kuberay-helm", version)


def release(
    name: str,
    chart: Chart,
    namespace: pulumi.Input[str],
    values: Any,
    *,
    parent: pulumi.Resource,
    depends_on: Sequence[pulumi.Resource] = (),
) -> k8s.helm.v3.Release:
    """Install a chart atomically, within ten minutes, without its `crds` folder, which Helm never upgrades.

    Args:
        name: logical name, which is part of the URN.
        chart: the pinned chart.
        namespace: where the release is installed.
        values: a model of the chart's values.
        parent: the component that owns the release.
        depends_on: what the chart's pods need, such as definitions and secrets.

    Raises:
        TrainfleetError: a value that the chart does not have.
    """
    document = plain(values)
    refuse_unknown(f"the values of chart {chart.name}", known()["charts"][chart.name]["values"], document)
    packed = chart.repository.startswith("oci://")
    return k8s.helm.v3.Release(
        name,
        k8s.helm.v3.ReleaseArgs(
            chart=chart.repository if packed else chart.name,
            version=chart.version,
            repository_opts=None if packed else k8s.helm.v3.RepositoryOptsArgs(repo=chart.repository),
            # A fixed release name: the names of workloads derive from it, and policies and runbooks use them.
            name=chart.name,
            namespace=namespace,
            values=document,
            atomic=True,
            cleanup_on_fail=True,
            create_namespace=False,
            dependency_update=False,
            max_history=5,
            skip_crds=True,
            timeout=TIMEOUT_SECONDS,
        ),
        pulumi.ResourceOptions(
            parent=parent,
            depends_on=list(depends_on),
            # Two releases cannot have the same name.
            delete_before_replace=True,
            # The provider adds the chart's checksum to the inputs, so a repackaged chart of the same version
            # would show as a change (pulumi-kubernetes#2660).
            ignore_changes=["checksum"],
            custom_timeouts=pulumi.CustomTimeouts(create="15m", update="15m", delete="15m"),
        ),
    )
