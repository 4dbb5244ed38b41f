"""What Azure resources allow: role assignments, security rules, and the networks of stores and clusters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainfleet.rehearsal.diff.grants.federation import CREDENTIAL, of_credential
from trainfleet.rehearsal.diff.grants.model import ANYWHERE, Grant, Index, Kind, Planned, listed, port_range

ROLES = {
    "8e3af657-a8ff-443c-a75c-2fe8c4bcb635": "Owner",
    "b24988ac-6180-42a0-ab88-20f7382dd24c": "Contributor",
    "acdd72a7-3385-48ef-bd42-f606fba81ae7": "Reader",
    "18d7d88d-d35e-4fb5-a5c3-7773c20a72d9": "User Access Administrator",
    "b7e6dc6d-f1e8-4753-8033-0f276bb0955b": "Storage Blob Data Owner",
    "ba92f5b4-2d11-453d-a403-e96b0029c9fe": "Storage Blob Data Contributor",
    "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1": "Storage Blob Data Reader",
    "7f951dda-4ed3-4680-a7ca-43fe172d538d": "AcrPull",
    "8311e382-0749-4cb8-b61a-304f252e45ec": "AcrPush",
    "4d97b98b-1d4f-4787-a291-c67834d212e7": "Network Contributor",
    "4633458b-17de-408a-b874-0445c86b69e6": "Key Vault Secrets User",
    "00482a5a-887f-4fb3-b363-3b7fe8e74483": "Key Vault Administrator",
    "f25e0fa2-a7c8-4377-a976-54943a77a395": "Key Vault Contributor",
    "e147488a-f6f5-4113-8e2d-b22465e65bf6": "Key Vault Crypto Service Encryption User",
    "12338af0-0e69-4776-bea7-57ae8d297424": "Key Vault Crypto User",
    "f1a07417-d97a-45cb-824c-7a7467783830": "Managed Identity Operator",
    "b1ff04bb-8a4e-4dc4-8eb5-8693973ce19b": "Azure Kubernetes Service RBAC Cluster Admin",
}
"""Ids of common built-in roles. Others are shown by their id."""
_EVERYWHERE = {"*", "internet", "0.0.0.0/0", "any"}


def grants(resource: Planned, index: Index) -> Iterator[Grant]:
    """Yield what an Azure resource allows."""
    kind, inputs = resource.token.rsplit(":", 1)[-1], resource.inputs
    if kind == "RoleAssignment":
        yield _assignment(inputs, index)
    elif kind == "NetworkSecurityGroup":
        for rule in listed(inputs.get("securityRules")):
            yield from _rule(rule, resource.shown, index)
    elif kind == "SecurityRule":
        group = index.shown(inputs.get("networkSecurityGroupName"), "network security group")
        yield from _rule(inputs, group, index)
    elif kind == "StorageAccount":
        if inputs.get("allowBlobPublicAccess"):
            yield Grant(Kind.ROLE, "anyone", "anonymous access, if a container allows it", resource.shown)
        yield from _network(resource, inputs.get("networkRuleSet"), "iPAddressOrRange", index)
    elif kind == "Vault":
        properties = inputs.get("properties") or {}
        if isinstance(properties, Mapping):
            yield from _policies(resource, properties, index)
            yield from _network(resource, properties.get("networkAcls"), "value", index, properties)
    elif kind == "ManagedCluster":
        yield from _cluster(resource, index)
    elif resource.token == CREDENTIAL:
        yield from of_credential(resource, index)


def _assignment(inputs: Mapping[str, Any], index: Index) -> Grant:
    definition = inputs.get("roleDefinitionId")
    role = ROLES.get(str(definition).rsplit("/", 1)[-1]) or index.shown(definition)
    condition = inputs.get("condition")
    return Grant(
        Kind.ROLE,
        index.shown(inputs.get("principalId"), "principal"),
        role,
        index.shown(inputs.get("scope"), "scope"),
        index.shown(condition) if condition else "",
    )


def _rule(rule: Any, group: str, index: Index) -> Iterator[Grant]:
    if not isinstance(rule, Mapping):
        yield Grant(Kind.UNRESOLVED, "somebody", f"a rule: {index.shown(rule)}", group)
        return
    outward, denied = rule.get("direction") == "Outbound", rule.get("access") == "Deny"
    side = "destination" if outward else "source"
    ends = [_end(value, index) for value in _both(rule, f"{side}AddressPrefix", f"{side}AddressPrefixes")]
    ends += [
        index.shown(one.get("id") if isinstance(one, Mapping) else one)
        for one in listed(rule.get(f"{side}ApplicationSecurityGroups"))
    ]
    for text in _both(rule, "destinationPortRange", "destinationPortRanges") or ["*"]:
        what = port_range(rule.get("protocol"), text)
        for end in ends or [ANYWHERE]:
            if denied:
                yield Grant(Kind.BLOCK, end, f"{what} {'to' if outward else 'from'} {end}", group)
            else:
                yield Grant(Kind.EGRESS if outward else Kind.INGRESS, end, what, group)


def _both(rule: Mapping[str, Any], one: str, many: str) -> list[Any]:
    return [value for value in [*listed(rule.get(one)), *listed(rule.get(many))] if value not in (None, "")]


def _end(value: Any, index: Index) -> str:
    return ANYWHERE if str(value).lower() in _EVERYWHERE else index.shown(value)


def _network(
    resource: Planned, rules: Any, key: str, index: Index, settings: Mapping[str, Any] | None = None
) -> Iterator[Grant]:
    """Who reaches a store: everyone, unless its public network is off or its rules deny by default."""
    if (settings or resource.inputs).get("publicNetworkAccess") in ("Disabled", "disabled"):
        return
    if not isinstance(rules, Mapping) or rules.get("defaultAction") != "Deny":
        yield Grant(Kind.INGRESS, ANYWHERE, "tcp 443", resource.shown)
        return
    for rule in listed(rules.get("ipRules")):
        source = rule.get(key) if isinstance(rule, Mapping) else rule
        yield Grant(Kind.INGRESS, index.shown(source), "tcp 443", resource.shown)


def _policies(resource: Planned, properties: Mapping[str, Any], index: Index) -> Iterator[Grant]:
    for policy in listed(properties.get("accessPolicies")):
        if not isinstance(policy, Mapping):
            yield Grant(Kind.UNRESOLVED, "somebody", f"a policy: {index.shown(policy)}", resource.shown)
            continue
        who = index.shown(policy.get("objectId"), "principal")
        permissions = policy.get("permissions")
        for of, actions in (permissions if isinstance(permissions, Mapping) else {}).items():
            for action in listed(actions):
                yield Grant(Kind.ALLOW, who, f"{of}:{action}", resource.shown)


def _cluster(resource: Planned, index: Index) -> Iterator[Grant]:
    access = resource.inputs.get("apiServerAccessProfile") or {}
    if not isinstance(access, Mapping) or access.get("enablePrivateCluster"):
        return
    for source in listed(access.get("authorizedIPRanges")) or [ANYWHERE]:
        yield Grant(Kind.INGRESS, index.shown(source), "tcp 443", f"the API server of {resource.shown}")
