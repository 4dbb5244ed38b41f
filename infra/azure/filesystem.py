"""Lustre and Nfs: the shared filesystem of a platform, Azure Managed Lustre or an NFS share of Azure Files.

Lustre is scratch space: it is not linked to the bucket, because that needs a role for a Microsoft identity
whose id differs per tenant. It is protected but not retained, because it costs by the hour. The share has the
only copy of its data, so production retains it.
"""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as k8s
from pulumi_azure_native import storage, storagecache

from trainfleet.infra.azure import layout, storage_accounts, vaults
from trainfleet.infra.azure.foundation import Foundation
from trainfleet.infra.azure.keys import ENCRYPTS
from trainfleet.infra.azure.permissions import grant, once_in_effect
from trainfleet.infra.azure.sizes import LONGEST_RECOVERY
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.platform import SharedVolume
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.spec.storage import SharedFilesystem

GIB_PER_TIB = 1024
DRIVER_CHART = "oci://mcr.microsoft.com/microsoft.azuremanagedlustre/azurelustre-csi-driver"
DRIVER_VERSION = "0.6.0"
"""Microsoft's chart (azurelustre-csi-driver, docs/install-csi-driver.md). NOTE: upgrade it while no training
runs; a node loads a newer Lustre client only after everything is unmounted.
"""
DRIVER_SECONDS = 900


def product(throughput: int) -> str:
    """The product of this speed."""
    return f"AMLFS-Durable-Premium-{throughput}"


class Lustre(PlatformComponent):
    """The shared filesystem of a platform, as `volume`."""

    TYPE = "trainfleet:azure:Lustre"

    def __init__(
        self,
        spec: PlatformSpec,
        shared: SharedFilesystem,
        foundation: Foundation,
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "lustre", opts)
        group, network, identity = foundation.group, foundation.network, foundation.identity
        # Lustre reads its key over the vault's public endpoint, as a trusted service (Managed Lustre
        # documentation, customer-managed encryption keys). The control plane needs the keys' vault closed.
        tenant = foundation.keys.vault.properties.tenant_id
        vault = vaults.vault(self, "lustre", group, tenant, for_services=True)
        foundation.workspace.send_diagnostics(self, "lustre-vault", vault.id, vaults.LOGGED)
        key = vaults.key(self, "lustre", group, vault)
        reads_key = grant(self, "lustre-encrypts", ENCRYPTS, vault.id, identity.data, retain=True)
        zones = layout.shared_volume_zones(spec)
        self.filesystem = storagecache.AmlFilesystem(
            self.name("lustre"),
            resource_group_name=group.platform.name,
            location=spec.region,
            sku={"name": product(shared.throughput_mbps_per_tib)},
            storage_capacity_ti_b=shared.capacity_gib / GIB_PER_TIB,
            filesystem_subnet=network.lustre_subnet().id,
            zones=list(zones) or None,
            maintenance_window={
                "day_of_week": storagecache.MaintenanceDayOfWeekType.SUNDAY,
                "time_of_day_utc": "03:00",
            },
            identity={
                "type": storagecache.AmlFilesystemIdentityType.USER_ASSIGNED,
                "user_assigned_identities": [identity.data.id],
            },
            encryption_settings={
                "key_encryption_key": {
                    "key_url": once_in_effect(key.key_uri_with_version, reads_key),
                    "source_vault": {"id": vault.id},
                }
            },
            tags=self.tags("lustre"),
            opts=self.options(protect=True, depends_on=[reads_key]),
        )
        self.volume = self._volume(shared)
        self.register_outputs({})

    def _volume(self, shared: SharedFilesystem) -> SharedVolume:
        return SharedVolume(
            driver="azurelustre.csi.azure.com",
            handle=self.filesystem.name,
            attributes={"mgs-ip-address": self.filesystem.client_info.mgs_address},
            capacity_gib=shared.capacity_gib,
            mount_options=("noatime", "flock"),
        )


class LustreDriver(PlatformComponent):
    """The CSI driver of Lustre, which AKS lacks. `installed` must exist before any volume."""

    TYPE = "trainfleet:azure:LustreDriver"

    def __init__(
        self, spec: PlatformSpec, provider: k8s.Provider, *, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__(spec, "lustre-driver", opts)
        self.installed = k8s.helm.v3.Release(
            self.name("lustre-csi-driver"),
            chart=DRIVER_CHART,
            version=DRIVER_VERSION,
            name="azurelustre-csi-driver",
            # The chart supports only the namespace of AKS's own drivers.
            namespace="kube-system",
            atomic=True,
            cleanup_on_fail=True,
            max_history=5,
            timeout=DRIVER_SECONDS,
            opts=self.options(provider=provider),
        )
        self.register_outputs({})


SHARE = "shared"


class Nfs(PlatformComponent):
    """The shared filesystem of a platform, as `volume`."""

    TYPE = "trainfleet:azure:Nfs"

    def __init__(
        self,
        spec: PlatformSpec,
        shared: SharedFilesystem,
        foundation: Foundation,
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "nfs", opts)
        group, network, identity = foundation.group, foundation.network, foundation.identity
        account = storage_accounts.account(
            self,
            "nfs",
            foundation.keys,
            group=group.data,
            name=group.global_name("nfs"),
            identity=identity.data,
            retain=True,
            depends_on=foundation.keys.ready,
            files=True,
        )
        settings = storage.FileServiceProperties(
            self.name("nfs-settings"),
            resource_group_name=group.data.name,
            account_name=account.name,
            # The only one, with a fixed name.
            file_services_name="default",
            share_delete_retention_policy={
                "enabled": True,
                "days": min(spec.storage.retention_days, LONGEST_RECOVERY),
            },
            opts=self.options(retain=True, delete_before_replace=True),
        )
        self.share = storage.FileShare(
            self.name("nfs-share"),
            resource_group_name=group.data.name,
            account_name=account.name,
            # Unique within its account.
            share_name=SHARE,
            enabled_protocols="NFS",
            # Pods run as any user; only the platform uses the share.
            root_squash="NoRootSquash",
            share_quota=shared.capacity_gib,
            opts=self.options(retain=True, depends_on=[settings], delete_before_replace=True),
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
            capacity_gib=shared.capacity_gib,
            mount_options=("nconnect=4", "noresvport", "actimeo=30"),
        )
        self.register_outputs({})
