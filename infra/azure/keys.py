"""Keys: the keys of a platform in a vault of their own, one per kind of reader, and the disk encryption set
of the nodes.

cluster: Kubernetes secrets. nodes: disks. data: bucket and shared files. Managed
Lustre has a key in another vault, because the control plane needs this one closed.
"""

from __future__ import annotations

import pulumi
from pulumi_azure_native import compute

from trainfleet.infra.azure import vaults
from trainfleet.infra.azure.group import Group
from trainfleet.infra.azure.identity import Identity
from trainfleet.infra.azure.network import Network
from trainfleet.infra.azure.permissions import grant, once_in_effect
from trainfleet.infra.azure.workspace import Workspace
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.spec.schema import PlatformSpec

ENCRYPTS = "Key Vault Crypto Service Encryption User"


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
        self.vault = vaults.vault(self, "keys", group, tenant, for_disks=True)
        network.endpoint(self, "keys", "vault", self.vault.id)
        workspace.send_diagnostics(self, "keys", self.vault.id, vaults.LOGGED)
        # NOTE: rotated by hand only. AKS uses one version, and after two new ones without rewriting every
        # secret in between, secrets cannot be read (Azure/kubernetes-kms#291; docs/clouds.md).
        self.cluster = vaults.key(self, "cluster", group, self.vault, rotates=False)
        self.nodes, self.data = (vaults.key(self, what, group, self.vault) for what in ("nodes", "data"))
        data = grant(self, "data-encrypts", ENCRYPTS, self.data.id, identity.data, retain=True)
        cluster = grant(self, "cluster-encrypts", "Key Vault Crypto User", self.cluster.id, identity.cluster)
        # AKS creates a private endpoint to the vault, and Azure has no narrower role for it.
        reaches = grant(
            self, "cluster-reaches-keys", "Key Vault Contributor", self.vault.id, identity.cluster
        )
        self.ready: list[pulumi.Resource] = [data, cluster, reaches]
        """NOTE: the roles. Nothing can be encrypted before they exist, or read after they are deleted."""
        self.data_name = once_in_effect(self.data.name, data)
        """The data key's name, known when storage may use the key."""
        self.cluster_url = once_in_effect(self.cluster.key_uri_with_version, cluster, reaches)
        """The version of the cluster's key, known when the control plane may use it and reach its vault."""
        disks_encrypt = grant(self, "disks-encrypt", ENCRYPTS, self.nodes.id, identity.disks, retain=True)
        self.disks = compute.DiskEncryptionSet(
            self.name("disks"),
            resource_group_name=group.data.name,
            location=spec.region,
            encryption_type="EncryptionAtRestWithCustomerKey",
            identity={"type": "UserAssigned", "user_assigned_identities": [identity.disks.id]},
            active_key={
                "key_url": once_in_effect(self.nodes.key_uri_with_version, disks_encrypt),
                "source_vault": {"id": self.vault.id},
            },
            rotation_to_latest_key_version_enabled=True,
            tags=self.tags("disks"),
            opts=self.options(retain=True, depends_on=[disks_encrypt]),
        )
        # The control plane attaches disks of this encryption set.
        self.ready.append(grant(self, "cluster-uses-disks", "Reader", self.disks.id, identity.cluster))
        self.register_outputs({})
