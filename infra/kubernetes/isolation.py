"""Namespaces with Pod Security labels, and network policies: closed by default, opened for what Ray and DNS need.

Easy to get wrong: a policy says nothing unless the cluster's network plugin enforces policies; addresses are judged after
a service's address was rewritten to its endpoint; and a range that holds 169.254.169.254 hands every pod the node's role.
"""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_kubernetes as k8s

from infra.platform import TRAINING_NAMESPACE, Platform
from infra.spec import Cloud, PlatformSpec

KUBERAY_NAMESPACE = "kuberay-system"
GPU_NAMESPACE = "gpu-system"
BUILT_IN = ("default", "kube-system", "kube-public", "kube-node-lease")

ANYWHERE = "0.0.0.0/0"
METADATA_RANGE = "169.254.0.0/16"
"""Link-local: the metadata service of every cloud. Only the pod identity agent below is let through."""
POD_IDENTITY_AGENT = ("169.254.170.23/32", 80)
DNS_PORT = 53
API_PORTS = (443, 6443)
"""6443 too, because policies see a self-made control plane's own port and not its service's."""
OPERATOR_TO_RAY_PORTS = (8265, 8000, 52365, 6379)
"""Dashboard and jobs, Serve's health, the dashboard agent, the head's control store."""


@dataclass(frozen=True)
class Room:
    """A namespace: what its pods may be, and whether they reach services outside of the cluster."""

    name: str
    enforce: str
    """Pod Security level that is refused beyond: restricted, baseline or privileged."""
    observe: str
    """Level that is warned of and audited beyond."""
    outbound: bool


def needs_gpu_namespace(platform: Platform) -> bool:
    """Whether the NVIDIA device plugin must be installed: there is a GPU pool, and the cloud brings no plugin."""
    return bool(platform.pools) and platform.cloud is not Cloud.GCP


def rooms(platform: Platform) -> tuple[Room, ...]:
    """The namespaces of this platform.

    training is `baseline`, because SkyPilot's and Ray's stock images run as root; with RDMA it must be `privileged`,
    because registering memory needs the capability IPC_LOCK, which baseline refuses. gpu-system is `privileged`, because
    a device plugin mounts the kubelet's socket folder from the host. Everything else is `restricted`.
    """
    rdma = any(pool.rdma_resource for pool in platform.pools)
    found = [
        Room(TRAINING_NAMESPACE, "privileged" if rdma else "baseline", "restricted" if not rdma else "baseline", outbound=True),
        Room(KUBERAY_NAMESPACE, "restricted", "restricted", outbound=True),
    ]
    if needs_gpu_namespace(platform):
        found.append(Room(GPU_NAMESPACE, "privileged", "baseline", outbound=False))
    taken = {room.name for room in found} | set(BUILT_IN)
    others = sorted({identity.namespace for identity in platform.identities.values()} - taken)
    return (*found, *(Room(name, "restricted", "restricted", outbound=True) for name in others))


class Isolation(pulumi.ComponentResource):
    """Every room of the platform: closed, then opened for what it needs. The rest of the layer comes after it."""

    def __init__(self, platform: Platform, spec: PlatformSpec, opts: pulumi.ResourceOptions) -> None:
        super().__init__("trainfleet:kubernetes:Isolation", f"{spec.name}-isolation", None, opts)
        self._spec = spec
        for room in rooms(platform):
            namespace = self._namespace(room)
            self._policy(room.name, "deny-all", namespace)
            if room.outbound:
                self._policy(room.name, "dns", namespace, egress=[dns()])
                self._policy(room.name, "outbound", namespace, egress=outbound(platform))
            if room.name == TRAINING_NAMESPACE:
                self._ray(namespace)
                self._limits(namespace)
            if room.name == KUBERAY_NAMESPACE:
                towards_ray = k8s.networking.v1.NetworkPolicyEgressRuleArgs(to=[peer(TRAINING_NAMESPACE)], ports=tcp(*OPERATOR_TO_RAY_PORTS))
                self._policy(room.name, "to-ray", namespace, egress=[towards_ray])
        self.register_outputs({})

    def _namespace(self, room: Room) -> k8s.core.v1.Namespace:
        levels = {"enforce": room.enforce, "audit": room.observe, "warn": room.observe}
        labels = {f"pod-security.kubernetes.io/{mode}": level for mode, level in levels.items()}
        return k8s.core.v1.Namespace(
            f"{self._spec.name}-namespace-{room.name}",
            metadata=k8s.meta.v1.ObjectMetaArgs(name=room.name, labels={**labels, "app.kubernetes.io/managed-by": "pulumi"}),
            opts=pulumi.ResourceOptions(parent=self, delete_before_replace=True, custom_timeouts=pulumi.CustomTimeouts(delete="20m")),
        )

    def _ray(self, namespace: pulumi.Resource) -> None:
        """Ray's processes talk on ports they choose, so pods of the namespace reach one another on every port."""
        same = k8s.networking.v1.NetworkPolicyPeerArgs(pod_selector=k8s.meta.v1.LabelSelectorArgs())
        self._policy(
            TRAINING_NAMESPACE,
            "ray",
            namespace,
            ingress=[
                k8s.networking.v1.NetworkPolicyIngressRuleArgs(from_=[same]),
                k8s.networking.v1.NetworkPolicyIngressRuleArgs(from_=[peer(KUBERAY_NAMESPACE)], ports=tcp(*OPERATOR_TO_RAY_PORTS)),
            ],
            egress=[k8s.networking.v1.NetworkPolicyEgressRuleArgs(to=[same])],
        )

    def _limits(self, namespace: pulumi.Resource) -> None:
        options = pulumi.ResourceOptions(parent=self, depends_on=[namespace], delete_before_replace=True)
        k8s.core.v1.ResourceQuota(
            f"{self._spec.name}-quota-training",
            metadata=k8s.meta.v1.ObjectMetaArgs(name="no-load-balancers", namespace=TRAINING_NAMESPACE),
            # A load balancer made by a workload is nobody's resource: it is open to the world and outlives a destroy.
            spec=k8s.core.v1.ResourceQuotaSpecArgs(hard={"services.loadbalancers": "0", "services.nodeports": "0"}),
            opts=options,
        )
        k8s.core.v1.LimitRange(
            f"{self._spec.name}-limits-training",
            metadata=k8s.meta.v1.ObjectMetaArgs(name="default-requests", namespace=TRAINING_NAMESPACE),
            # Requests only: a default limit would end a training that reads its data fast.
            spec=k8s.core.v1.LimitRangeSpecArgs(
                limits=[k8s.core.v1.LimitRangeItemArgs(type="Container", default_request={"cpu": "100m", "memory": "128Mi"})]
            ),
            opts=options,
        )

    def _policy(
        self,
        namespace: str,
        name: str,
        owner: pulumi.Resource,
        ingress: list[k8s.networking.v1.NetworkPolicyIngressRuleArgs] | None = None,
        egress: list[k8s.networking.v1.NetworkPolicyEgressRuleArgs] | None = None,
    ) -> None:
        closed = ingress is None and egress is None
        kinds = [kind for kind, rules in (("Ingress", ingress), ("Egress", egress)) if closed or rules is not None]
        k8s.networking.v1.NetworkPolicy(
            f"{self._spec.name}-network-{namespace}-{name}",
            metadata=k8s.meta.v1.ObjectMetaArgs(name=name, namespace=namespace),
            spec=k8s.networking.v1.NetworkPolicySpecArgs(
                pod_selector=k8s.meta.v1.LabelSelectorArgs(), policy_types=kinds, ingress=ingress, egress=egress
            ),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[owner], delete_before_replace=True),
        )


def peer(namespace: str, pods: dict[str, str] | None = None) -> k8s.networking.v1.NetworkPolicyPeerArgs:
    """Pods of a namespace, by the label that every cluster puts on namespaces by itself."""
    return k8s.networking.v1.NetworkPolicyPeerArgs(
        namespace_selector=k8s.meta.v1.LabelSelectorArgs(match_labels={"kubernetes.io/metadata.name": namespace}),
        pod_selector=k8s.meta.v1.LabelSelectorArgs(match_labels=pods) if pods else None,
    )


def tcp(*ports: int) -> list[k8s.networking.v1.NetworkPolicyPortArgs]:
    return [k8s.networking.v1.NetworkPolicyPortArgs(protocol="TCP", port=port) for port in ports]


def dns() -> k8s.networking.v1.NetworkPolicyEgressRuleArgs:
    ports = [k8s.networking.v1.NetworkPolicyPortArgs(protocol=protocol, port=DNS_PORT) for protocol in ("UDP", "TCP")]
    return k8s.networking.v1.NetworkPolicyEgressRuleArgs(to=[peer("kube-system", {"k8s-app": "kube-dns"})], ports=ports)


def outbound(platform: Platform) -> list[k8s.networking.v1.NetworkPolicyEgressRuleArgs]:
    """The object store, the registry and the cloud's and the cluster's own API, by TLS; never the metadata service."""
    block = k8s.networking.v1.IPBlockArgs
    blocks = [block(cidr=cidr) for cidr in platform.api_cidrs] or [block(cidr=ANYWHERE, except_=[METADATA_RANGE])]
    peers = [k8s.networking.v1.NetworkPolicyPeerArgs(ip_block=one) for one in blocks]
    rules = [k8s.networking.v1.NetworkPolicyEgressRuleArgs(to=peers, ports=tcp(*API_PORTS))]
    if platform.cloud is Cloud.AWS:
        address, port = POD_IDENTITY_AGENT
        agent = k8s.networking.v1.NetworkPolicyPeerArgs(ip_block=block(cidr=address))
        rules.append(k8s.networking.v1.NetworkPolicyEgressRuleArgs(to=[agent], ports=tcp(port)))
    return rules
