"""The inbound rules of the security groups, as pure functions. The last rule of each denies everything else.

With the overlay, pod addresses are not part of Azure's VirtualNetwork tag, so nodes allow the pods' range
explicitly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network

from pulumi_azure_native import network as net

LUSTRE_PORTS = ("988", "1019-1023")
"""From clients to servers (Managed Lustre documentation, configure a network security group)."""
CONTROL_PLANE_PORTS = ("443", "4443")
"""From nodes (AKS documentation, API server VNet integration, network security groups), in addition to health
probes.
"""
FIRST_PRIORITY, LAST_PRIORITY = 100, 4096


@dataclass(frozen=True)
class Rule:
    """One inbound rule. Rules are evaluated in the order of a subnet's list."""

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


def https(network: IPv4Network, pods: str, clients: Sequence[str] = ()) -> Rule:
    """Private endpoints use TLS only: port 443, and 2049 for encrypted NFS."""
    return Rule("https", "TLS from inside and the hub", (str(network), pods, *clients), ("443", "2049"))


def control_plane(network: IPv4Network, pods: str, clients: Sequence[str] = ()) -> Rule:
    """Nodes, pods and everything else in the network reach the API server, and clients behind the hub."""
    why = "the API server, from inside and the hub"
    return Rule("api", why, (str(network), pods, *clients), CONTROL_PLANE_PORTS)


def balancer() -> Rule:
    """Health probes of Azure's load balancers."""
    return Rule("probes", "probes of Azure's load balancers", ("AzureLoadBalancer",), protocol="*")


def lustre_servers(servers: str) -> Rule:
    """The servers of the filesystem among themselves, on every port: Azure sets them up by SSH."""
    return Rule("servers", "file servers among themselves", (servers,), protocol="*")


def lustre_clients(*clients: str) -> Rule:
    """The clients of the filesystem."""
    return Rule("clients", "nodes to the file servers", tuple(dict.fromkeys(clients)), LUSTRE_PORTS)


def monitor() -> Rule:
    """Azure Monitor checks the health of a service's hosts."""
    return Rule("monitor", "Azure Monitor", ("AzureMonitor",))


def deny_all() -> Rule:
    """Azure's default allows the whole virtual network and its peers."""
    return Rule("nobody-else", "nobody else", ("*",), protocol="*", allow=False)


def in_order(rules: Sequence[Rule]) -> list[net.SecurityRuleArgsDict]:
    """The rules as arguments, with priorities; the deny rule is last."""
    return [
        _to_args(rule, FIRST_PRIORITY + 10 * index if rule.allow else LAST_PRIORITY)
        for index, rule in enumerate(rules)
    ]


def _to_args(rule: Rule, priority: int) -> net.SecurityRuleArgsDict:
    # Azure accepts `*` and service tags only in the singular property, and several values only in the plural
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
