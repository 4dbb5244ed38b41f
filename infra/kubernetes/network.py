"""Network policies: every namespace is closed, and each opening states who may reach what.

A policy has an effect only if the cluster's network plugin enforces it. Addresses are matched after a
service's address was rewritten to its endpoint. Traffic of the kubelet (port-forward, exec, probes, mounts of
Lustre and NFS) comes from the node, not from a pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pulumi_kubernetes.meta.v1 import LabelSelectorArgs, LabelSelectorRequirementArgs
from pulumi_kubernetes.networking.v1 import (
    IPBlockArgs,
    NetworkPolicyEgressRuleArgs,
    NetworkPolicyIngressRuleArgs,
    NetworkPolicyPeerArgs,
    NetworkPolicyPortArgs,
)

from trainfleet.infra.kubernetes.features import LayerFeatures
from trainfleet.infra.kubernetes.names import (
    CERTIFICATES_NAMESPACE,
    GPU_NAMESPACE,
    KUBERAY_NAMESPACE,
    MONITORING_NAMESPACE,
    NODE_NAMESPACE,
    QUEUE_NAMESPACE,
    RAY_SIGNER_PORT,
    SECRETS_NAMESPACE,
    SIGNER_NAMESPACE,
)
from trainfleet.infra.platform import TRAINING_NAMESPACE, Platform

ANYWHERE = "0.0.0.0/0"
METADATA_RANGE = "169.254.0.0/16"
"""Link-local: the metadata service of every cloud. NOTE: a policy that allows 169.254.169.254 gives every pod
the node's role. Only `Platform.metadata_endpoints` are allowed.
"""
DNS_PORT = 53
API_PORTS = (443, 6443)
"""6443 too, because policies match the port of a self-managed control plane, not of its service."""
PACKAGES_PORT = 80
"""SkyPilot installs missing packages (rsync, ssh) with apt, from Debian's mirrors."""
OPERATOR_TO_RAY_PORTS = (8265, 8000, 52365, 6379)
"""Dashboard and jobs, Serve's health, the dashboard agent, the head's control store."""
RAY_METRICS_PORTS = (8080, 44217, 44227)
"""Metrics of every node, and of the head's autoscaler and dashboard."""
EXPORTER_PORT = 9400
NODE_PROBLEMS_PORT = 20257
MANAGER_METRICS_PORTS = (8080, 8443)
"""Metrics of the managers of KubeRay, external-secrets and Kueue."""
NODE_METRICS_PORTS = (9100, 10250)
"""Node exporter and kubelet, on the nodes' own addresses."""
WEBHOOKS = {QUEUE_NAMESPACE: (9443, 8082), SECRETS_NAMESPACE: (10250,), CERTIFICATES_NAMESPACE: (10250,)}
"""Ports that the control plane calls: admission webhooks, and Kueue's API of pending workloads. NOTE: an API
that does not answer blocks the deletion of every namespace.
"""
CLUSTER_DNS_METRICS_PORT = 9153


@dataclass(frozen=True)
class Opening:
    """One network policy for all pods of a namespace. Without rules it closes the namespace."""

    namespace: str
    name: str
    ingress: Sequence[NetworkPolicyIngressRuleArgs] = ()
    egress: Sequence[NetworkPolicyEgressRuleArgs] = ()

    @property
    def kinds(self) -> list[str]:
        """The directions of the policy: both if it closes the namespace."""
        closed = not self.ingress and not self.egress
        return [
            kind for kind, rules in (("Ingress", self.ingress), ("Egress", self.egress)) if closed or rules
        ]


def openings(
    platform: Platform,
    features: LayerFeatures,
    namespaces: Iterable[str],
    mail: tuple[int, ...] = (),
    redis: str = "",
) -> list[Opening]:
    """The policies of all namespaces.

    Args:
        platform: the cloud's part.
        features: what the layer installs.
        namespaces: those of the layer.
        mail: ports of the mail servers that get alerts.
        redis: the address of an existing Redis for Ray, or empty.
    """
    found: list[Opening] = []
    for namespace in namespaces:
        found.append(Opening(namespace, "deny-all"))
        if namespace != GPU_NAMESPACE:
            ports: tuple[int, ...] = API_PORTS
            if namespace == TRAINING_NAMESPACE:
                ports = tuple(dict.fromkeys((*API_PORTS, PACKAGES_PORT, platform.store_port)))
            found += [
                Opening(namespace, "dns", egress=[dns()]),
                Opening(namespace, "outbound", egress=outbound(platform, ports)),
            ]
        if namespace in WEBHOOKS:
            # From anywhere: the control plane has no pod labels and no fixed address.
            found.append(
                Opening(
                    namespace,
                    "webhook",
                    ingress=[NetworkPolicyIngressRuleArgs(ports=tcp(*WEBHOOKS[namespace]))],
                )
            )
    found += _ray(features)
    if redis:
        found.append(Opening(TRAINING_NAMESPACE, "to-redis", egress=[_to_redis(redis)]))
    if features.certificates != "none":
        found += _signer()
    if features.monitoring:
        found += _metrics(features, set(namespaces))
        if mail:
            rule = NetworkPolicyEgressRuleArgs(to=[_anywhere()], ports=tcp(*mail))
            found.append(Opening(MONITORING_NAMESPACE, "mail", egress=[rule]))
    return found


def _to_redis(address: str) -> NetworkPolicyEgressRuleArgs:
    """To a Redis at SCHEME://HOST:PORT: a service NAME.NAMESPACE.svc of the cluster, or outside of it."""
    host, _, port = address.partition("://")[2].rpartition(":")
    labels = host.split(".")
    redis = peer(labels[1]) if labels[2:3] == ["svc"] else _anywhere()
    return NetworkPolicyEgressRuleArgs(to=[redis], ports=tcp(int(port)))


def _ray(features: LayerFeatures) -> list[Opening]:
    """Ray's processes, and ssh between SkyPilot's pods, use dynamic ports, so pods of the namespace may
    connect on all.
    """
    same = NetworkPolicyPeerArgs(pod_selector=LabelSelectorArgs())
    found = [
        Opening(
            TRAINING_NAMESPACE,
            "ray",
            ingress=[NetworkPolicyIngressRuleArgs(from_=[same])],
            egress=[NetworkPolicyEgressRuleArgs(to=[same])],
        )
    ]
    if features.kuberay:
        ports = tcp(*OPERATOR_TO_RAY_PORTS)
        found += [
            Opening(
                TRAINING_NAMESPACE,
                "from-operator",
                ingress=[NetworkPolicyIngressRuleArgs(from_=[peer(KUBERAY_NAMESPACE)], ports=ports)],
            ),
            Opening(
                KUBERAY_NAMESPACE,
                "to-ray",
                egress=[NetworkPolicyEgressRuleArgs(to=[peer(TRAINING_NAMESPACE)], ports=ports)],
            ),
        ]
    return found


def _signer() -> list[Opening]:
    """Pods of Ray get their certificates from the signer."""
    port = tcp(RAY_SIGNER_PORT)
    towards = NetworkPolicyEgressRuleArgs(to=[peer(SIGNER_NAMESPACE)], ports=port)
    from_pods = NetworkPolicyIngressRuleArgs(from_=[peer(TRAINING_NAMESPACE)], ports=port)
    return [
        Opening(TRAINING_NAMESPACE, "to-signer", egress=[towards]),
        Opening(SIGNER_NAMESPACE, "from-training", ingress=[from_pods]),
    ]


def _metrics(features: LayerFeatures, namespaces: set[str]) -> list[Opening]:
    """Prometheus reaches its targets, and Grafana reaches Prometheus. People use a port-forward."""
    scraped: dict[str, tuple[int, ...]] = {TRAINING_NAMESPACE: RAY_METRICS_PORTS}
    if features.gpu_metrics:
        scraped[GPU_NAMESPACE] = (EXPORTER_PORT,)
    if features.node_problems:
        scraped[NODE_NAMESPACE] = (NODE_PROBLEMS_PORT,)
    for namespace in (KUBERAY_NAMESPACE, QUEUE_NAMESPACE, SECRETS_NAMESPACE):
        if namespace in namespaces:
            scraped[namespace] = MANAGER_METRICS_PORTS
    same = NetworkPolicyPeerArgs(pod_selector=LabelSelectorArgs())
    towards = [
        NetworkPolicyEgressRuleArgs(to=[peer(namespace)], ports=tcp(*ports))
        for namespace, ports in scraped.items()
    ]
    towards.append(NetworkPolicyEgressRuleArgs(to=[peer("kube-system")], ports=tcp(CLUSTER_DNS_METRICS_PORT)))
    # By port alone: under Cilium, no range matches a node. The metadata service uses none of these.
    ports = (*NODE_METRICS_PORTS, EXPORTER_PORT) if features.provided_gpu_metrics else NODE_METRICS_PORTS
    nodes = NetworkPolicyEgressRuleArgs(ports=tcp(*ports))
    return [
        Opening(
            MONITORING_NAMESPACE,
            "metrics",
            ingress=[NetworkPolicyIngressRuleArgs(from_=[same])],
            egress=[NetworkPolicyEgressRuleArgs(to=[same]), *towards, nodes],
        ),
        *(
            Opening(
                namespace,
                "metrics",
                ingress=[NetworkPolicyIngressRuleArgs(from_=[peer(MONITORING_NAMESPACE)], ports=tcp(*ports))],
            )
            for namespace, ports in scraped.items()
        ),
    ]


def peer(namespace: str) -> NetworkPolicyPeerArgs:
    """Pods of a namespace, by the label that every namespace has."""
    return NetworkPolicyPeerArgs(
        namespace_selector=LabelSelectorArgs(match_labels={"kubernetes.io/metadata.name": namespace})
    )


def _anywhere() -> NetworkPolicyPeerArgs:
    """Every address outside of the cluster but those of the metadata service."""
    return NetworkPolicyPeerArgs(ip_block=IPBlockArgs(cidr=ANYWHERE, except_=[METADATA_RANGE]))


def tcp(*ports: int) -> list[NetworkPolicyPortArgs]:
    return [NetworkPolicyPortArgs(protocol="TCP", port=port) for port in ports]


def dns() -> NetworkPolicyEgressRuleArgs:
    """Cluster DNS and its node-local cache."""
    pods = LabelSelectorArgs(
        match_expressions=[
            LabelSelectorRequirementArgs(key="k8s-app", operator="In", values=["kube-dns", "node-local-dns"])
        ]
    )
    system = LabelSelectorArgs(match_labels={"kubernetes.io/metadata.name": "kube-system"})
    ports = [NetworkPolicyPortArgs(protocol=protocol, port=DNS_PORT) for protocol in ("UDP", "TCP")]
    return NetworkPolicyEgressRuleArgs(
        to=[NetworkPolicyPeerArgs(namespace_selector=system, pod_selector=pods)], ports=ports
    )


def outbound(platform: Platform, ports: Iterable[int]) -> list[NetworkPolicyEgressRuleArgs]:
    """The object store, the registry, and the APIs of cloud and cluster, by TLS. Never the
    metadata service.
    """
    blocks = [IPBlockArgs(cidr=cidr) for cidr in platform.api_cidrs] or [
        IPBlockArgs(cidr=ANYWHERE, except_=[METADATA_RANGE])
    ]
    peers = [NetworkPolicyPeerArgs(ip_block=one) for one in blocks]
    return [
        NetworkPolicyEgressRuleArgs(to=peers, ports=tcp(*ports)),
        *(
            NetworkPolicyEgressRuleArgs(
                to=[NetworkPolicyPeerArgs(ip_block=IPBlockArgs(cidr=address))], ports=tcp(port)
            )
            for address, port in platform.metadata_endpoints
        ),
    ]
