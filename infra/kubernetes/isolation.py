"""Namespaces with Pod Security labels, closed by default and opened for what their pods need, and limits for
trainings.

Easy to get wrong: a namespace exists exactly when something runs in it, and its Pod Security level is what
its own chart
needs: agents that read the host have a namespace of their own, so that nothing beside them may.
"""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_kubernetes as k8s

from trainfleet.infra.kubernetes.features import Parts
from trainfleet.infra.kubernetes.names import (
    BUILT_IN,
    CERTIFICATES_NAMESPACE,
    GPU_NAMESPACE,
    KUBERAY_NAMESPACE,
    MONITORING_NAMESPACE,
    NODE_NAMESPACE,
    QUEUE_NAMESPACE,
)
from trainfleet.infra.kubernetes.network import Opening, openings
from trainfleet.infra.platform import TRAINING_NAMESPACE, Platform
from trainfleet.infra.spec.schema import PlatformSpec


@dataclass(frozen=True)
class Room:
    """A namespace and what its pods may be."""

    name: str
    enforce: str
    """Pod Security level that is refused beyond: restricted, baseline or privileged."""
    observe: str
    """Level that is warned of and audited beyond."""


def rooms(platform: Platform, here: Parts) -> tuple[Room, ...]:
    """The namespaces of this platform.

    training is `baseline`, because SkyPilot's and Ray's stock images run as root; with RDMA it must be
    `privileged`,
    because registering memory needs the capability IPC_LOCK, which baseline refuses. Agents of nodes and GPUs
    are
    `privileged`, because they mount folders of the host. Everything else is `restricted`.
    """
    rdma = any(pool.fabric != "none" for pool in platform.pools)
    found = [
        Room(
            TRAINING_NAMESPACE, "privileged" if rdma else "baseline", "restricted" if not rdma else "baseline"
        )
    ]
    if here.kuberay:
        found.append(Room(KUBERAY_NAMESPACE, "restricted", "restricted"))
    if here.gpu_namespace:
        found.append(Room(GPU_NAMESPACE, "privileged", "baseline"))
    if here.node_namespace:
        found.append(Room(NODE_NAMESPACE, "privileged", "baseline"))
    if here.queue:
        found.append(Room(QUEUE_NAMESPACE, "restricted", "restricted"))
    if here.monitoring:
        # Grafana's image has no seccomp profile of its own, which baseline does not ask for.
        found.append(Room(MONITORING_NAMESPACE, "baseline", "restricted"))
    if here.certificates == "cert-manager":
        found.append(Room(CERTIFICATES_NAMESPACE, "restricted", "restricted"))
    logs = (
        platform.identities[platform.log_store.identity].namespace if here.logs and platform.log_store else ""
    )
    if logs:
        found.append(Room(logs, "privileged", "baseline"))
    taken = {room.name for room in found} | set(BUILT_IN)
    others = sorted({identity.namespace for identity in platform.identities.values()} - taken)
    return (*found, *(Room(name, "restricted", "restricted") for name in others))


class Isolation(pulumi.ComponentResource):
    """Every namespace of the platform: closed, then opened for what it needs. The rest of the layer comes
    after it.
    """

    def __init__(
        self, platform: Platform, spec: PlatformSpec, here: Parts, opts: pulumi.ResourceOptions
    ) -> None:
        super().__init__("trainfleet:kubernetes:Isolation", f"{spec.name}-isolation", None, opts)
        self._spec = spec
        namespaces = {room.name: self._namespace(room) for room in rooms(platform, here)}
        if here.network_policies:
            for opening in openings(platform, here, list(namespaces)):
                self._policy(opening, namespaces[opening.namespace])
        self._limits(namespaces[TRAINING_NAMESPACE])
        self.register_outputs({})

    def _namespace(self, room: Room) -> k8s.core.v1.Namespace:
        levels = {"enforce": room.enforce, "audit": room.observe, "warn": room.observe}
        labels = {f"pod-security.kubernetes.io/{mode}": level for mode, level in levels.items()}
        return k8s.core.v1.Namespace(
            f"{self._spec.name}-namespace-{room.name}",
            metadata=k8s.meta.v1.ObjectMetaArgs(
                name=room.name, labels={**labels, "app.kubernetes.io/managed-by": "pulumi"}
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
            # A load balancer made by a workload is nobody's resource: it is open to the world and outlives a
            # destroy.
            spec=k8s.core.v1.ResourceQuotaSpecArgs(
                hard={"services.loadbalancers": "0", "services.nodeports": "0"}
            ),
            opts=options,
        )
        k8s.core.v1.LimitRange(
            f"{self._spec.name}-limits-training",
            metadata=k8s.meta.v1.ObjectMetaArgs(name="default-requests", namespace=TRAINING_NAMESPACE),
            # Requests only: a default limit would end a training that reads its data fast.
            spec=k8s.core.v1.LimitRangeSpecArgs(
                limits=[
                    k8s.core.v1.LimitRangeItemArgs(
                        type="Container", default_request={"cpu": "100m", "memory": "128Mi"}
                    )
                ]
            ),
            opts=options,
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
