"""Relations between resources of Azure: what Managed Lustre needs of its subnet and of its key's vault, and
private vaults. Roles are in grants.py.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from trainfleet.rehearsal.simulation.pulumi_values import plain

if TYPE_CHECKING:
    from trainfleet.rehearsal.simulation.cloud_object import CloudObject

Row = dict[str, Any]
ANYWHERE = ("*", "Any", "0.0.0.0/0")


def lustre_prerequisites(row: Row, record: CloudObject, others: list[CloudObject]) -> str:
    """Return why a file system of Managed Lustre cannot be created: no traffic among its servers, no health
    checks, no egress, or a vault that it cannot reach.
    """
    inputs = plain(record.inputs)
    key = (inputs.get("encryptionSettings") or {}).get("keyEncryptionKey") or {}
    subnet = _by_id(others, inputs.get("filesystemSubnet"))
    vault = _by_id(others, (key.get("sourceVault") or {}).get("id"))
    return (subnet is not None and _closed_subnet(row, subnet, others)) or (
        _closed_vault(vault) if vault is not None else ""
    )


def key_reached_privately(_row: Row, record: CloudObject, _others: list[CloudObject]) -> str:
    """Return why a control plane cannot reach the vault of its key: the vault is private, and the control
    plane is not in the network.
    """
    inputs = plain(record.inputs)
    kms = (inputs.get("securityProfile") or {}).get("azureKeyVaultKms") or {}
    access = inputs.get("apiServerAccessProfile") or {}
    private = kms.get("enabled") and kms.get("keyVaultNetworkAccess") == "Private"
    if private and not access.get("enableVnetIntegration"):
        return "its key is in a private vault, which requires apiServerAccessProfile.enableVnetIntegration"
    return ""


def _closed_subnet(row: Row, subnet: Mapping[str, Any], others: list[CloudObject]) -> str:
    if subnet.get("defaultOutboundAccess") is False and not subnet.get("natGateway"):
        return "its subnet has no egress (a NAT gateway, or default outbound access) to Azure's services"
    group = _by_id(others, (subnet.get("networkSecurityGroup") or {}).get("id"))
    if group is None:
        return ""
    inbound = [each for each in group.get("securityRules") or () if each.get("direction") == "Inbound"]
    servers = str(subnet.get("addressPrefix") or (subnet.get("addressPrefixes") or [""])[0])
    for port in row["ports"]:
        if not _admitted(inbound, servers, port, inside=True):
            return f"its security group denies port {port} among the servers in {servers}"
    if not _admitted(inbound, "AzureMonitor", 443, inside=False):
        return "its security group denies the service tag AzureMonitor"
    return ""


def _closed_vault(vault: Mapping[str, Any]) -> str:
    properties = vault.get("properties") or {}
    rules = properties.get("networkAcls") or {}
    if str(properties.get("publicNetworkAccess", "Enabled")).lower() == "disabled":
        return "its key is in a vault without public network access, which Lustre cannot read"
    if rules.get("defaultAction") == "Deny" and rules.get("bypass", "AzureServices") != "AzureServices":
        return "its key is in a vault whose network rules do not let trusted services pass (bypass)"
    return ""


def _admitted(rules: Iterable[Mapping[str, Any]], source: str, port: int, *, inside: bool) -> bool:
    """Whether the first matching rule allows TCP to a port. Without one, Azure's default allows the virtual
    network and nothing else (Virtual Network documentation, network security groups, default rules).
    """
    for rule in sorted(rules, key=lambda each: int(each["priority"])):
        named = [rule.get("sourceAddressPrefix"), *(rule.get("sourceAddressPrefixes") or ())]
        ports = [rule.get("destinationPortRange"), *(rule.get("destinationPortRanges") or ())]
        if (
            str(rule.get("protocol", "*")).lower() in ("*", "tcp")
            and any(_contains(each, source, inside=inside) for each in named if each)
            and any(_spans(str(each), port) for each in ports if each)
        ):
            return rule.get("access") == "Allow"
    return inside


def _contains(prefix: str, source: str, *, inside: bool) -> bool:
    if prefix in ANYWHERE or prefix == source:
        return True
    if prefix == "VirtualNetwork":
        return inside
    try:
        whole, part = ipaddress.ip_network(prefix), ipaddress.ip_network(source)
    except ValueError:
        return False  # a service tag
    return whole.version == part.version and part.subnet_of(whole)  # type: ignore[arg-type]  # the same version


def _spans(ports: str, port: int) -> bool:
    low, _, high = ports.partition("-")
    return ports == "*" or int(low) <= port <= int(high or low)


def _by_id(others: list[CloudObject], resource_id: Any) -> dict[str, Any] | None:
    """The inputs of the resource with an id."""
    return next((plain(other.inputs) for other in others if other.id == resource_id), None)
