"""Keys: the keys of a platform in a vault of their own, one per kind of reader, and the disk encryption set
of the nodes.

cluster: Kubernetes secrets. nodes: disks. data: bucket and shared files.
"""

from __future__ import annotations

import pulumi
from pulumi_azure_native import compute, keyvault

from trainfleet.infra.azure import vaults
from trainfleet.infra.azure.group import Group
from trainfleet.infra.azure.identity import Identity
from trainfleet.infra.azure.network import Network
from trainfleet.infra.azure.permissions import grant
from trainfleet.infra.azure.workspace import Workspace
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.spec.schema import PlatformSpec

ENCRYPTS = "Key Vault Crypto Service Encryption User"
KEY_SIZE = 2048
"""The only size that disks, storage, Lustre and the control plane all accept (their customer-managed key
documentation).
"""


class Keys(PlatformComponent):
    """The three keys of a platform: `cluster`, `nodes`, `data`; their vault, and the encryption
    set `disks`.
    """

    TYPE = "trainfleet:azure:Keys"

    def __init__(
        self,
        spec: PlatformSpec,
        tenant: pulumi.Input[str],
        *,
        group: Group,
        network: Network,
        identity: Identity,
        workspace: Workspace,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "keys", opts)
        self.group = group
        self.vault = vaults.vault(self, "keys", group, tenant, for_disks=True)
        network.endpoint(self, "keys", "vault", self.vault.id)
        workspace.send_diagnostics(self, "keys", self.vault.id, vaults.LOGGED)
        self.cluster = self._key("cluster")
        self.nodes = self._key("nodes")
        self.data = self._key("data")
        self.ready: list[pulumi.Resource] = [
            grant(self, "data-encrypts", ENCRYPTS, self.data.id, identity.data, retain=True),
            grant(self, "cluster-encrypts", "Key Vault Crypto User", self.cluster.id, identity.cluster),
            # AKS creates a private endpoint to the vault, and Azure has no narrower role for it.
            grant(self, "cluster-reaches-keys", "Key Vault Contributor", self.vault.id, identity.cluster),
        ]
        """NOTE: the roles. Nothing can be encrypted before they exist, or read after they are deleted."""
        disks_encrypt = grant(self, "disks-encrypt", ENCRYPTS, self.nodes.id, identity.disks, retain=True)
        self.disks = compute.DiskEncryptionSet(
            self.name("disks"),
            resource_group_name=group.data.name,
            location=spec.region,
            encryption_type="EncryptionAtRestWithCustomerKey",
            identity={"type": "UserAssigned", "user_assigned_identities": [identity.disks.id]},
            active_key={"key_url": self.nodes.key_uri_with_version, "source_vault": {"id": self.vault.id}},
            rotation_to_latest_key_version_enabled=True,
            tags=self.tags("disks"),
            opts=self.options(retain=True, depends_on=[disks_encrypt]),
        )
        # The control plane attaches disks of this encryption set.
        self.ready.append(grant(self, "cluster-uses-disks", "Reader", self.disks.id, identity.cluster))
        self.register_outputs({})

    def _key(self, what: str) -> keyvault.Key:
        return keyvault.Key(
            self.name(f"{what}-key"),
            resource_group_name=self.group.data.name,
            vault_name=self.vault.name,
            # Unique within its vault.
            key_name=what,
            properties={
                "kty": "RSA",
                "key_size": KEY_SIZE,
                "key_ops": ["encrypt", "decrypt", "wrapKey", "unwrapKey"],
                "attributes": {"enabled": True, "exportable": False},
                # Rotated every year. NOTE: no expiry, because data of an expired key is unreadable. AKS uses
                # a key version until the next apply.
                "rotation_policy": {
                    "lifetime_actions": [
                        {
                            "action": {"type": keyvault.KeyRotationPolicyActionType.ROTATE},
                            "trigger": {"time_after_create": "P1Y"},
                        }
                    ]
                },
            },
            tags=self.tags(f"{what}-key"),
            opts=self.options(retain=True, delete_before_replace=True),
        )
