"""Isolation: namespaces with Pod Security labels, closed by default, and limits for trainings.

A namespace exists exactly when something runs in it. Agents that read the host have a namespace of their own,
so that nothing else in it is privileged.
"""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_kubernetes as k8s

from trainfleet.infra.kubernetes.alertmanager import mail_ports
from trainfleet.infra.kubernetes.features import LayerFeatures
from trainfleet.infra.kubernetes.names import (
    BUILT_IN,
    CERTIFICATES_NAMESPACE,
    GPU_NAMESPACE,
    KUBERAY_NAMESPACE,
    MONITORING_NAMESPACE,
    NODE_NAMESPACE,
    QUEUE_NAMESPACE,
    SIGNER_NAMESPACE,
)
from trainfleet.infra.kubernetes.network import Opening, openings
from trainfleet.infra.platform import TRAINING_NAMESPACE, Platform
from trainfleet.infra.spec.schema import PlatformSpec

CRITICAL_CLASSES = ("system-node-critical", "system-cluster-critical")


@dataclass(frozen=True)
class NamespaceSpec:
    """A namespace and its Pod Security levels."""

    name: str
    enforce: str
    """Enforced Pod Security level: restricted, baseline or privileged."""
    observe: str
    """Level for warnings and audit."""


def namespace_specs(platform: Platform, features: LayerFeatures) -> tuple[NamespaceSpec, ...]:
    """The namespaces of this platform.

    training is `baseline`, because the stock images of SkyPilot and Ray run as root; also with RDMA, whose
    nodes let pods lock memory without a capability. A `privileged` one would make every launcher root on
    every node. Agents of nodes and GPUs are `privileged`, because they mount host folders. Everything else is
    `restricted`.
    """
    found = [NamespaceSpec(TRAINING_NAMESPACE, "baseline", "restricted")]
    if features.kuberay:
        found.append(NamespaceSpec(KUBERAY_NAMESPACE, "restricted", "restricted"))
    if features.gpu_namespace:
        found.append(NamespaceSpec(GPU_NAMESPACE, "privileged", "baseline"))
    if features.node_namespace:
        found.append(NamespaceSpec(NODE_NAMESPACE, "privileged", "baseline"))
    if features.queue:
        found.append(NamespaceSpec(QUEUE_NAMESPACE, "restricted", "restricted"))
    if features.monitoring:
        # Grafana's image has no seccomp profile, which baseline does not require.
        found.append(NamespaceSpec(MONITORING_NAMESPACE, "baseline", "restricted"))
    if features.certificates != "none":
        found.append(NamespaceSpec(SIGNER_NAMESPACE, "restricted", "restricted"))
    if features.certificates == "cert-manager":
        found.append(NamespaceSpec(CERTIFICATES_NAMESPACE, "restricted", "restricted"))
    logs = (
        platform.identities[platform.log_store.identity].namespace
        if features.logs and platform.log_store
        else ""
    )
    if logs:
        found.append(NamespaceSpec(logs, "privileged", "baseline"))
    taken = {namespace.name for namespace in found} | set(BUILT_IN)
    others = sorted({identity.namespace for identity in platform.identities.values()} - taken)
    return (*found, *(NamespaceSpec(name, "restricted", "restricted") for name in others))


class Isolation(pulumi.ComponentResource):
    """Every namespace of the platform, closed and opened for what it needs. The rest of the layer depends on
    it.
    """

    def __init__(
        self, platform: Platform, spec: PlatformSpec, features: LayerFeatures, opts: pulumi.ResourceOptions
    ) -> None:
        super().__init__("trainfleet:kubernetes:Isolation", f"{spec.name}-isolation", None, opts)
        self._spec = spec
        namespaces = {
            namespace.name: self._namespace(namespace) for namespace in namespace_specs(platform, features)
        }
        if features.network_policies:
            mail = mail_ports(spec.monitoring.receivers)
            for opening in openings(platform, features, list(namespaces), mail, redis=spec.ray.redis.address):
                self._policy(opening, namespaces[opening.namespace])
        self._limits(namespaces[TRAINING_NAMESPACE])
        if platform.limits_critical_pods and features.gpu_namespace:
            self._critical_pods(namespaces[GPU_NAMESPACE])
        self.register_outputs({})

    def _namespace(self, namespace: NamespaceSpec) -> k8s.core.v1.Namespace:
        levels = {"enforce": namespace.enforce, "audit": namespace.observe, "warn": namespace.observe}
        labels = {f"pod-security.kubernetes.io/{mode}": level for mode, level in levels.items()}
        return k8s.core.v1.Namespace(
            f"{self._spec.name}-namespace-{namespace.name}",
            metadata=k8s.meta.v1.ObjectMetaArgs(
                name=namespace.name, labels={**labels, "app.kubernetes.io/managed-by": "pulumi"}
            ),
            opts=pulumi.ResourceOptions(
                parent=self, delete_before_replace=True, custom_timeouts=pulumi.CustomTimeouts(delete="20m")
            ),
        )

    def _limits(self, namespace: pulumi.Resource) -> None:
        options = pulumi.ResourceOptions(parent=self, depends_on=[namespace], delete_before_replace=True)
        k8s.core.v1.ResourceQuota(
            f"{self._spec.name}-quota-training",
            metadata=k8s.meta.v1.ObjectMetaArgs(name="no-load-balancers", namespace=TRAINING_NAMESPACE),
            # NOTE: a workload's load balancer would be public and survive a destroy.
            spec=k8s.core.v1.ResourceQuotaSpecArgs(
                hard={"services.loadbalancers": "0", "services.nodeports": "0"}
            ),
            opts=options,
        )
        k8s.core.v1.LimitRange(
            f"{self._spec.name}-limits-training",
            metadata=k8s.meta.v1.ObjectMetaArgs(name="default-requests", namespace=TRAINING_NAMESPACE),
            # Requests only: a default limit would kill trainings.
            spec=k8s.core.v1.LimitRangeSpecArgs(
                limits=[
                    k8s.core.v1.LimitRangeItemArgs(
                        type="Container", default_request={"cpu": "100m", "memory": "128Mi"}
                    )
                ]
            ),
            opts=options,
        )

    def _critical_pods(self, namespace: pulumi.Resource) -> None:
        """Admit agents of a critical class to the namespace, as many as GKE admits to kube-system."""
        k8s.core.v1.ResourceQuota(
            f"{self._spec.name}-quota-critical-pods",
            metadata=k8s.meta.v1.ObjectMetaArgs(name="critical-pods", namespace=GPU_NAMESPACE),
            spec=k8s.core.v1.ResourceQuotaSpecArgs(
                hard={"pods": "1G"},
                scope_selector=k8s.core.v1.ScopeSelectorArgs(
                    match_expressions=[
                        k8s.core.v1.ScopedResourceSelectorRequirementArgs(
                            scope_name="PriorityClass", operator="In", values=list(CRITICAL_CLASSES)
                        )
                    ]
                ),
            ),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[namespace], delete_before_replace=True),
        )

    def _policy(self, opening: Opening, namespace: pulumi.Resource) -> None:
        k8s.networking.v1.NetworkPolicy(
            f"{self._spec.name}-network-{opening.namespace}-{opening.name}",
            metadata=k8s.meta.v1.ObjectMetaArgs(name=opening.name, namespace=opening.namespace),
            spec=k8s.networking.v1.NetworkPolicySpecArgs(
                pod_selector=k8s.meta.v1.LabelSelectorArgs(),
                policy_types=opening.kinds,
                ingress=list(opening.ingress) or None,
                egress=list(opening.egress) or None,
            ),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[namespace], delete_before_replace=True),
        )
