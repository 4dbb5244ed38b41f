"""The Helm charts of the layer: name, repository and pinned version in one place, and the one way they are
installed.

Only the coordinates stand here: the Kubernetes provider fetches a chart when the stack is applied. Values are
the typed
documents of `trainfleet.infra.kubernetes.values` and never hold a secret, because they lie in the clear in
the state
(pulumi-kubernetes#734). docs/layer.md says how a version is raised.
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
    """A chart of a repository, or an image-like one when `repository` begins with oci:// (it then holds the
    chart's name too).
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
"""The definitions as a chart of their own, of the operator version (0.89) in the chart below: as templates
they are upgraded with it.
"""
PROMETHEUS_STACK = Chart(
    "kube-prometheus-stack", "https://prometheus-community.github.io/helm-charts", "82.16.0"
)
FLUENT_BIT = Chart("fluent-bit", "https://fluent.github.io/helm-charts", "0.57.9")
NODE_PROBLEM_DETECTOR = Chart("node-problem-detector", "https://charts.deliveryhero.io", "2.4.1")


def kuberay_operator(version: str) -> Chart:
    """The operator's chart carries the operator's own version."""
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
    """Install a chart: whole or not at all, within ten minutes, without its `crds` folder (Helm never
    upgrades what is in it).

    Raises:
        TrainfleetError: a value that the chart does not know.
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
            # A fixed release name: the names of the workloads follow from it, and policies and runbooks name
            # them.
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
            # Two releases of one name cannot stand side by side.
            delete_before_replace=True,
            # The provider writes the checksum of the packed chart into the inputs; the same version packed
            # again by the
            # repository would show as a change of ours (pulumi-kubernetes#2660).
            ignore_changes=["checksum"],
            custom_timeouts=pulumi.CustomTimeouts(create="15m", update="15m", delete="15m"),
        ),
    )
