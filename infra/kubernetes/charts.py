"""The Helm charts of the layer: name, repository and pinned version in one place, and the one way they are installed.

Only the coordinates stand here: the Kubernetes provider fetches a chart when the stack is applied. Values are written by
the room that installs the chart and never hold a secret, because a release's values lie in the clear in the state
(pulumi-kubernetes#734).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

TIMEOUT_SECONDS = 600


@dataclass(frozen=True)
class Chart:
    name: str
    repository: str
    version: str


NVIDIA_DEVICE_PLUGIN = Chart("nvidia-device-plugin", "https://nvidia.github.io/k8s-device-plugin", "0.18.2")
EFA_DEVICE_PLUGIN = Chart("aws-efa-k8s-device-plugin", "https://aws.github.io/eks-charts", "0.5.26")
CLUSTER_AUTOSCALER = Chart("cluster-autoscaler", "https://kubernetes.github.io/autoscaler", "9.59.0")


def kuberay_operator(version: str) -> Chart:
    """The operator's chart carries the operator's own version."""
    return Chart("kuberay-operator", "https://ray-project.github.io/kuberay-helm", version)


def release(
    name: str,
    chart: Chart,
    namespace: pulumi.Input[str],
    values: Mapping[str, Any],
    *,
    parent: pulumi.Resource,
    depends_on: Sequence[pulumi.Resource] = (),
) -> k8s.helm.v3.Release:
    """Install a chart: whole or not at all, within ten minutes, without its resource definitions (Helm never upgrades those)."""
    return k8s.helm.v3.Release(
        name,
        k8s.helm.v3.ReleaseArgs(
            chart=chart.name,
            version=chart.version,
            repository_opts=k8s.helm.v3.RepositoryOptsArgs(repo=chart.repository),
            # A fixed release name: the names of the workloads follow from it, and policies and runbooks name them.
            name=chart.name,
            namespace=namespace,
            values=dict(values),
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
            # The provider writes the checksum of the packed chart into the inputs; the same version packed again by the
            # repository would show as a change of ours (pulumi-kubernetes#2660).
            ignore_changes=["checksum"],
            custom_timeouts=pulumi.CustomTimeouts(create="15m", update="15m", delete="15m"),
        ),
    )
