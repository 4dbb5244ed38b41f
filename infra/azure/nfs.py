"""Nfs: the plain shared filesystem of a platform, an NFS share of Azure Files that every pod can mount,
encrypted on its way.

Unlike Lustre it is nobody's copy: what is written there exists only there, so production keeps it. Easy to
get wrong: NFS
asks for a premium account of its own and for a private way; it knows no users, so the network is what guards
it.
"""

from __future__ import annotations

import pulumi
from pulumi_azure_native import storage

from trainfleet.infra.azure import storage_accounts
from trainfleet.infra.azure.group import Group
from trainfleet.infra.azure.identity import Identity
from trainfleet.infra.azure.keys import Keys
from trainfleet.infra.azure.network import Network
from trainfleet.infra.component import Room
from trainfleet.infra.platform import SharedVolume
from trainfleet.infra.spec.schema import PlatformSpec, SharedFilesystem

SHARE = "shared"
LONGEST_RECOVERY = 365


class Nfs(Room):
    """The shared filesystem of a platform, as `volume`."""

    TYPE = "trainfleet:azure:Nfs"

    def __init__(
        self,
        spec: PlatformSpec,
        wish: SharedFilesystem,
        *,
        group: Group,
        network: Network,
        identity: Identity,
        keys: Keys,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "nfs", opts)
        account = storage_accounts.account(
            self,
            "nfs",
            keys,
            group=group.data,
            name=group.global_name("nfs"),
            identity=identity.data,
            kept=True,
            wait_for=keys.ready,
            files=True,
        )
        settings = storage.FileServiceProperties(
            self.name("nfs-settings"),
            resource_group_name=group.data.name,
            account_name=account.name,
            # There is exactly one, and this is its name.
            file_services_name="default",
            share_delete_retention_policy={
                "enabled": True,
                "days": min(spec.storage.retention_days, LONGEST_RECOVERY),
            },
            opts=self.options("nfs-settings", keep=True, delete_before_replace=True),
        )
        self.share = storage.FileShare(
            self.name("nfs-share"),
            resource_group_name=group.data.name,
            account_name=account.name,
            # Fixed: it is unique in its account only.
            share_name=SHARE,
            enabled_protocols="NFS",
            # Pods run as whoever their image says; the share belongs to the platform alone.
            root_squash="NoRootSquash",
            share_quota=wish.capacity_gib,
            opts=self.options("nfs-share", keep=True, depends_on=[settings], delete_before_replace=True),
        )
        network.endpoint(self, "nfs", "file", account.id)
        self.volume = SharedVolume(
            driver="file.csi.azure.com",
            handle=pulumi.Output.concat(account.name, "#", self.share.name),
            attributes={
                "protocol": "nfs",
                "storageAccount": account.name,
                "shareName": self.share.name,
                "server": pulumi.Output.concat(account.name, ".file.core.windows.net"),
                "encryptInTransit": "true",
            },
            capacity_gib=wish.capacity_gib,
            mount_options=("nconnect=4", "noresvport", "actimeo=30"),
        )
        self.register_outputs({})
