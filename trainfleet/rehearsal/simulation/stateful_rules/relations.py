"""Relations between resources without which a cloud rejects one of them, or the resource cannot work."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN, plain
from trainfleet.rehearsal.simulation.stateful_rules.azure_relations import (
    key_reached_privately,
    lustre_prerequisites,
)
from trainfleet.rehearsal.simulation.stateful_rules.egress import reached_registry
from trainfleet.rehearsal.simulation.stateful_rules.grants import granted
from trainfleet.rehearsal.simulation.stateful_rules.identity_relations import default_account, trusted
from trainfleet.rehearsal.simulation.stateful_rules.instances import network_cards, reserved_in_group
from trainfleet.rehearsal.simulation.stateful_rules.node_groups import (
    bought_as,
    class_pools,
    expander_order,
)
from trainfleet.rehearsal.simulation.stateful_rules.queues import placed_flavors, requested_pools
from trainfleet.rehearsal.simulation.stateful_rules.references import logical_name

if TYPE_CHECKING:
    from trainfleet.rehearsal.simulation.cloud_object import CloudObject

Row = dict[str, Any]
MEMBER_DOMAINS = "iam.allowedPolicyMemberDomains"
Check = Callable[[Row, "CloudObject", "list[CloudObject]"], str]


def separate(row: Row, record: CloudObject, others: list[CloudObject]) -> str:
    """Return which other resource of the same owner has an overlapping folder."""
    inputs = plain(record.inputs)
    for other in others:
        theirs = plain(other.inputs)
        if other.token != record.token or theirs.get(row["of"]) != inputs.get(row["of"]):
            continue
        for path in row["paths"]:
            own, taken = (f"{each.get(path)}".rstrip("/") + "/" for each in (inputs, theirs))
            if UNKNOWN not in own + taken and (own.startswith(taken) or taken.startswith(own)):
                return f"{path} {inputs.get(path)} overlaps {theirs.get(path)} of {logical_name(other)}"
    return ""


def called_back(row: Row, record: CloudObject, others: list[CloudObject]) -> str:
    """Return which security group of clients does not admit the servers, whose group has egress to it."""
    groups = set(plain(record.inputs).get(row["groups"]) or ())
    ingress = [plain(each.inputs) for each in others if each.token.endswith(":SecurityGroupIngressRule")]
    for egress in (plain(each.inputs) for each in others if each.token.endswith(":SecurityGroupEgressRule")):
        servers, clients = egress.get("securityGroupId"), egress.get("referencedSecurityGroupId")
        if servers not in groups or not clients:
            continue
        admitted = any(
            rule.get("securityGroupId") == clients
            and rule.get("referencedSecurityGroupId") == servers
            and (
                rule.get("ipProtocol") == "-1"
                or rule["fromPort"] <= egress["fromPort"] <= egress["toPort"] <= rule["toPort"]
            )
            for rule in ingress
        )
        if not admitted:
            return (
                f"security group {clients} has no ingress rule for ports"
                f" {egress['fromPort']}-{egress['toPort']} from the servers' group {servers}"
            )
    return ""


def enabled(row: Row, _record: CloudObject, others: list[CloudObject]) -> str:
    """Return which API must be on before the resource is created. A program that enables none is not checked:
    they may be on already.
    """
    on = {str(plain(other.inputs).get("service")) for other in others if other.token == row["by"]}
    missing = [each for each in row["services"] if each not in on]
    return f"the API {missing[0]} is not enabled in its project" if on and missing else ""


def restricted_to_domains(row: Row, record: CloudObject, others: list[CloudObject]) -> str:
    """Return that a member is of Google or of anyone, while an organization policy of the program allows
    named domains only. The customer ids in a policy do not tell which other domains they are.
    """
    member = str(plain(record.inputs).get("member"))
    outside = member in ("allUsers", "allAuthenticatedUsers") or member.endswith("@google.com")
    for other in others if outside else ():
        inputs = plain(other.inputs)
        allowed = (inputs.get("listPolicy") or {}).get("allow") or {}
        constraint = str(inputs.get("constraint")).removeprefix("constraints/")
        if other.token in row["by"] and constraint == MEMBER_DOMAINS and not allowed.get("all"):
            return f"{member} is not of a domain that {logical_name(other)} ({MEMBER_DOMAINS}) allows"
    return ""


def servers_admitted(row: Row, record: CloudObject, others: list[CloudObject]) -> str:
    """Return which range of Google's services no firewall rule admits, though a service calls clients back
    from it.
    """
    network = _last(plain(record.inputs).get("network"))
    ranges = [
        ipaddress.ip_network(f"{each['address']}/{each['prefixLength']}")
        for each in _of(others, "gcp:compute/globalAddress:GlobalAddress", network)
        if each.get("purpose") == "VPC_PEERING" and UNKNOWN not in (each.get("address", UNKNOWN),)
    ]
    firewalls = _of(others, "gcp:compute/firewall:Firewall", network)
    for peers in ranges:
        if not any(_admits(each, peers, row["port"]) for each in firewalls):
            return (
                f"no firewall rule of {network} admits TCP port {row['port']} from {peers}, from where the"
                " servers call their clients"
            )
    return ""


def _admits(firewall: Mapping[str, Any], peers: Any, port: int) -> bool:
    sources = [ipaddress.ip_network(each) for each in firewall.get("sourceRanges") or ()]
    return (
        firewall.get("direction", "INGRESS") == "INGRESS"
        and any(peers.version == each.version and peers.subnet_of(each) for each in sources)
        and any(_covers(each, port) for each in firewall.get("allows") or ())
    )


def _covers(allowed: Mapping[str, Any], port: int) -> bool:
    """Whether an entry of a firewall rule is for a TCP port."""
    if allowed.get("protocol") not in ("all", "tcp"):
        return False
    spans = [str(each).partition("-") for each in allowed.get("ports") or ("0-65535",)]
    return any(int(low) <= port <= int(high or low) for low, _, high in spans)


def _of(others: list[CloudObject], token: str, network: str) -> Iterator[dict[str, Any]]:
    """The inputs of resources of a type that are in a network."""
    for other in others:
        inputs = plain(other.inputs)
        if other.token == token and _last(inputs.get("network")) == network:
            yield inputs


RELATION_KINDS: Mapping[str, set[str]] = {
    "separate": {"type", "of", "paths", "source"},
    "called_back": {"type", "groups", "source"},
    "enabled": {"type", "by", "services", "source"},
    "restricted_to_domains": {"type", "by", "source"},
    "servers_admitted": {"type", "port", "source"},
    "granted": {"type", "reference", "by", "source"},
    "lustre_prerequisites": {"type", "ports", "source"},
    "trusted": {"type", "role", "service", "actions", "source"},
    "key_reached_privately": {"type", "source"},
    "default_account": {"type", "by", "actions", "source"},
    "requested_pools": {"type", "pool", "switch", "class", "source"},
    "placed_flavors": {"type", "of", "source"},
    "reached_registry": {"type", "at", "source"},
    "network_cards": {"type", "machine", "ena", "source"},
    "reserved_in_group": {"type", "group", "source"},
    "bought_as": {"type", "template", "source"},
    "class_pools": {"type", "pool", "label", "source"},
    "expander_order": {"type", "chart", "order", "name", "source"},
}
RELATION_CHECKS: Mapping[str, Check] = {
    "separate": separate,
    "called_back": called_back,
    "enabled": enabled,
    "restricted_to_domains": restricted_to_domains,
    "servers_admitted": servers_admitted,
    "granted": granted,
    "lustre_prerequisites": lustre_prerequisites,
    "trusted": trusted,
    "key_reached_privately": key_reached_privately,
    "default_account": default_account,
    "requested_pools": requested_pools,
    "placed_flavors": placed_flavors,
    "reached_registry": reached_registry,
    "network_cards": network_cards,
    "reserved_in_group": reserved_in_group,
    "bought_as": bought_as,
    "class_pools": class_pools,
    "expander_order": expander_order,
}


def _last(path: Any) -> str:
    """The name at the end of an id or a URL."""
    return str(path).rpartition("/")[2]
