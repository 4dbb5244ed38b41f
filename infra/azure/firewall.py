"""What the security groups let in, as pure functions: each subnet names its callers, and the last rule shuts
everybody else out.

Used by network.py. Easy to get wrong: with the overlay, pods keep their own addresses inside the cluster, and
those are
not part of what Azure calls VirtualNetwork, so nodes must let the pods' range in by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network

from pulumi_azure_native import network as net

LUSTRE_PORTS = ("988", "1019-1023")
"""Between clients and servers and among servers (Managed Lustre documentation, network prerequisites)."""
CONTROL_PLANE_PORTS = ("443", "4443")
"""From nodes (AKS documentation, API server VNet integration, network security groups); probes of the
balancer come beside them.
"""
FIRST_PRIORITY, LAST_PRIORITY = 100, 4096


@dataclass(frozen=True)
class Rule:
    """One inbound rule; rules are judged in the order in which a subnet lists them."""

    name: str
    why: str
    sources: tuple[str, ...]
    ports: tuple[str, ...] = ("*",)
    protocol: str = "Tcp"
    allow: bool = True


def pods_and_nodes(network: IPv4Network, pods: str) -> Rule:
    """Nodes and pods of one cluster talk on every port (AKS documentation, Azure CNI Overlay, network
    security groups).
    """
    return Rule("cluster", "nodes and pods among themselves", (str(network), pods), protocol="*")


def https(network: IPv4Network, pods: str) -> Rule:
    """Private endpoints answer by TLS only: on 443, and NFS with its own encryption on 2049."""
    return Rule("https", "TLS from inside the network", (str(network), pods), ("443", "2049"))


def control_plane(network: IPv4Network, pods: str) -> Rule:
    """Nodes, pods and everybody else inside reach the API server."""
    return Rule("api", "the API server, from inside the network", (str(network), pods), CONTROL_PLANE_PORTS)


def balancer() -> Rule:
    """Azure's load balancers ask whether somebody is there."""
    return Rule("probes", "probes of Azure's load balancers", ("AzureLoadBalancer",), protocol="*")


def lustre(*ranges: str) -> Rule:
    """Clients and servers of the filesystem, which share its ports."""
    return Rule("lustre", "Lustre between nodes and file servers", tuple(dict.fromkeys(ranges)), LUSTRE_PORTS)


def deny_all() -> Rule:
    """Azure's own default lets in whatever else is in the virtual network or peered with it."""
    return Rule("nobody-else", "nobody else", ("*",), protocol="*", allow=False)


def in_order(rules: Sequence[Rule]) -> list[net.SecurityRuleArgsDict]:
    """The rules as Azure takes them: numbered, the refusal last of all."""
    return [
        _to_args(rule, FIRST_PRIORITY + 10 * index if rule.allow else LAST_PRIORITY)
        for index, rule in enumerate(rules)
    ]


def _to_args(rule: Rule, priority: int) -> net.SecurityRuleArgsDict:
    # Azure takes `*` and service tags only in the singular property, and several values only in the plural
    # one.
    sources, ports = list(rule.sources), list(rule.ports)
    return {
        "name": rule.name,
        "description": rule.why,
        "priority": priority,
        "direction": "Inbound",
        "access": "Allow" if rule.allow else "Deny",
        "protocol": rule.protocol,
        "source_port_range": "*",
        "destination_address_prefix": "*",
        "source_address_prefix": sources[0] if len(sources) == 1 else None,
        "source_address_prefixes": sources if len(sources) > 1 else None,
        "destination_port_range": ports[0] if len(ports) == 1 else None,
        "destination_port_ranges": ports if len(ports) > 1 else None,
    }
