"""How a key vault of the platform is configured: roles instead of access policies, no public access, purge
protection.
"""

from __future__ import annotations

from typing import Any, Protocol

import pulumi
from pulumi_azure_native import keyvault, resources

from trainfleet.infra.component import SpecComponent

LOGGED = ("AuditEvent",)
LONGEST_RECOVERY, SHORTEST_RECOVERY = 90, 7
"""Days within which a deleted vault or key can be restored (Key Vault soft-delete documentation)."""
KEY_SIZE = 2048
"""The only size that disks, storage, Lustre and the control plane all accept (their customer-managed key
documentation).
"""


class DataGroup(Protocol):
    """Where what outlives a stack is created."""

    @property
    def data(self) -> resources.ResourceGroup:
        """The resource group."""

    def global_name(self, what: str) -> pulumi.Output[str]:
        """Return a globally unique name."""


def vault(
    component: SpecComponent[Any],
    what: str,
    group: DataGroup,
    tenant: pulumi.Input[str],
    *,
    open_to: tuple[str, ...] = (),
    for_disks: bool = False,
    for_services: bool = False,
) -> keyvault.Vault:
    """Create a vault that the network and Azure's encryption services can reach.

    Args:
        component: the component that owns the vault.
        what: the vault's purpose, which is part of its name.
        group: the resource group.
        tenant: ID of the tenant.
        open_to: public address ranges that may connect as well.
        for_disks: whether disk encryption sets use its keys.
        for_services: whether Azure's trusted services connect over its public endpoint, which nobody else
            may use.
    """
    return keyvault.Vault(
        component.name(f"{what}-vault"),
        resource_group_name=group.data.name,
        vault_name=group.global_name(what),
        location=component.spec.region,
        properties={
            "tenant_id": tenant,
            "sku": {"family": "A", "name": keyvault.SkuName.STANDARD},
            "enable_rbac_authorization": True,
            "enable_soft_delete": True,
            # NOTE: cannot be disabled again, and reserves a deleted vault's name for its recovery time. Disks
            # and storage require it.
            "enable_purge_protection": True,
            "soft_delete_retention_in_days": LONGEST_RECOVERY
            if component.spec.production
            else SHORTEST_RECOVERY,
            "enabled_for_deployment": False,
            "enabled_for_disk_encryption": for_disks,
            "enabled_for_template_deployment": False,
            "public_network_access": "Enabled" if open_to or for_services else "Disabled",
            "network_acls": {
                "default_action": "Deny",
                "bypass": "AzureServices",
                "ip_rules": [{"value": cidr} for cidr in open_to],
            },
        },
        tags=component.tags(f"{what}-vault"),
        opts=component.options(retain=True),
    )


def key(
    component: SpecComponent[Any],
    what: str,
    group: DataGroup,
    vault: keyvault.Vault,
    *,
    rotates: bool = True,
) -> keyvault.Key:
    """Create a key.

    Args:
        component: the component that owns the key.
        what: the key's name in its vault, and part of its logical name.
        group: the resource group.
        vault: the vault.
        rotates: whether it gets a new version every year.
    """
    every_year: keyvault.RotationPolicyArgsDict = {
        "lifetime_actions": [
            {
                "action": {"type": keyvault.KeyRotationPolicyActionType.ROTATE},
                "trigger": {"time_after_create": "P1Y"},
            }
        ]
    }
    return keyvault.Key(
        component.name(f"{what}-key"),
        resource_group_name=group.data.name,
        vault_name=vault.name,
        # Unique within its vault.
        key_name=what,
        properties={
            "kty": "RSA",
            "key_size": KEY_SIZE,
            "key_ops": ["encrypt", "decrypt", "wrapKey", "unwrapKey"],
            "attributes": {"enabled": True, "exportable": False},
            # NOTE: no expiry, because data of an expired key is unreadable.
            "rotation_policy": every_year if rotates else None,
        },
        tags=component.tags(f"{what}-key"),
        opts=component.options(retain=True, delete_before_replace=True),
    )
