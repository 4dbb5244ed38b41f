"""How a storage account of the platform is configured: no shared keys, no public access, the platform's own
key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import pulumi
from pulumi_azure_native import keyvault, resources, storage

from trainfleet.infra.azure import layout
from trainfleet.infra.azure.identity import ManagedIdentity
from trainfleet.infra.component import SpecComponent


class DataKey(Protocol):
    """The key that encrypts an account."""

    @property
    def vault(self) -> keyvault.Vault:
        """Its vault."""

    @property
    def data_name(self) -> pulumi.Output[str]:
        """Its name, known when storage may use it."""


def encryption(keys: DataKey, identity: ManagedIdentity) -> storage.EncryptionArgsDict:
    """Encryption with the platform's data key."""
    return {
        "key_source": "Microsoft.Keyvault",
        "encryption_identity": {"encryption_user_assigned_identity": identity.id},
        # Without a version, so that storage follows key rotation.
        "key_vault_properties": {
            "key_name": keys.data_name,
            "key_vault_uri": keys.vault.properties.vault_uri,
        },
        "require_infrastructure_encryption": True,
        "services": {
            "blob": {"enabled": True, "key_type": "Account"},
            "file": {"enabled": True, "key_type": "Account"},
        },
    }


def account(
    component: SpecComponent[Any],
    what: str,
    keys: DataKey,
    *,
    group: resources.ResourceGroup,
    name: pulumi.Input[str],
    identity: ManagedIdentity,
    retain: bool,
    depends_on: Iterable[pulumi.Resource],
    hierarchical: bool = False,
    files: bool = False,
    open_to: tuple[str, ...] = (),
) -> storage.StorageAccount:
    """Create a storage account.

    Args:
        component: the component that owns the account.
        what: the account's purpose, which is part of its logical name.
        keys: the platform's keys; one of them encrypts the account.
        group: the resource group.
        name: name of the account, unique in Azure.
        identity: the identity that reads the key.
        retain: whether `pulumi destroy` keeps the account.
        depends_on: the grants that the identity needs first.
        hierarchical: whether blobs have folders (Data Lake Storage Gen2).
        files: whether it is a premium account for file shares.
        open_to: public address ranges that may connect, in addition to the private endpoint.
    """
    zoned = layout.has_zones(component.spec.region)
    tier = "Premium" if files else "Standard"
    return storage.StorageAccount(
        component.name(f"{what}-account"),
        resource_group_name=group.name,
        account_name=name,
        location=component.spec.region,
        kind="FileStorage" if files else "StorageV2",
        sku={"name": f"{tier}_ZRS" if zoned else f"{tier}_LRS"},
        access_tier=None if files else storage.AccessTier.HOT,
        allow_blob_public_access=False,
        allow_shared_key_access=False,
        allow_cross_tenant_replication=False,
        default_to_o_auth_authentication=True,
        enable_https_traffic_only=True,
        minimum_tls_version="TLS1_2",
        is_hns_enabled=hierarchical or None,
        is_sftp_enabled=False if hierarchical else None,
        is_local_user_enabled=False,
        public_network_access="Enabled" if open_to else "Disabled",
        network_rule_set=_network_rules(open_to),
        identity={"type": "UserAssigned", "user_assigned_identities": [identity.id]},
        encryption=encryption(keys, identity),
        tags=component.tags(f"{what}-account"),
        opts=component.options(retain=retain, protect=True, depends_on=depends_on),
    )


def _network_rules(open_to: tuple[str, ...]) -> storage.NetworkRuleSetArgsDict:
    return {
        "default_action": storage.DefaultAction.DENY,
        # Azure's logging and metrics, and services that write with their identity.
        "bypass": "AzureServices",
        "ip_rules": [
            {"i_p_address_or_range": cidr, "action": storage.Action.ALLOW}
            for cidr in layout.single_addresses(open_to)
        ],
    }


def expire(name: str, days: int) -> storage.ManagementPolicyRuleArgsDict:
    """Delete every object `days` after its last write."""
    return {
        "name": name,
        "type": "Lifecycle",
        "enabled": True,
        "definition": {
            "filters": {"blob_types": ["blockBlob"]},
            "actions": {"base_blob": {"delete": {"days_after_modification_greater_than": days}}},
        },
    }
