"""Lustre: Azure Managed Lustre, the parallel filesystem of a platform that every GPU node can mount.

Guarded in production but not kept on destroy: kept, it would cost by the hour and hold its subnet. Easy to
get wrong: its
size comes in steps that depend on its speed; it is not linked to the bucket, because that needs a role for an
identity of
Microsoft's whose id differs per tenant, so runs save to the bucket and use this as scratch.
"""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as k8s
from pulumi_azure_native import storagecache

from trainfleet.infra.azure import layout
from trainfleet.infra.azure.group import Group
from trainfleet.infra.azure.identity import Identity
from trainfleet.infra.azure.keys import Keys
from trainfleet.infra.azure.network import Network
from trainfleet.infra.component import Room
from trainfleet.infra.platform import SharedVolume
from trainfleet.infra.spec.schema import PlatformSpec, SharedFilesystem

GIB_PER_TIB = 1024
DRIVER_CHART = "oci://mcr.microsoft.com/microsoft.azuremanagedlustre/azurelustre-csi-driver"
DRIVER_VERSION = "0.6.0"
"""Microsoft's chart (azurelustre-csi-driver, docs/install-csi-driver.md). A newer one may bring another
Lustre client, which a node
loads only once nothing is mounted on it: raise it while no training runs."""
DRIVER_SECONDS = 900


def product(throughput: int) -> str:
    """The product of this speed."""
    return f"AMLFS-Durable-Premium-{throughput}"


class Lustre(Room):
    """The shared filesystem of a platform, as `volume`."""

    TYPE = "trainfleet:azure:Lustre"

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
        super().__init__(spec, "lustre", opts)
        zones = layout.shared_volume_zones(spec)
        self.filesystem = storagecache.AmlFilesystem(
            self.name("lustre"),
            resource_group_name=group.platform.name,
            location=spec.region,
            sku={"name": product(wish.throughput_mbps_per_tib)},
            storage_capacity_ti_b=wish.capacity_gib / GIB_PER_TIB,
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
                    "key_url": keys.data.key_uri_with_version,
                    "source_vault": {"id": keys.vault.id},
                }
            },
            tags=self.tags("lustre"),
            opts=self.options("lustre", guard=True, depends_on=keys.ready),
        )
        self.volume = SharedVolume(
            driver="azurelustre.csi.azure.com",
            handle=self.filesystem.name,
            attributes={"mgs-ip-address": self.filesystem.client_info.mgs_address},
            capacity_gib=wish.capacity_gib,
            mount_options=("noatime", "flock"),
        )
        self.register_outputs({})


class LustreDriver(Room):
    """The volume driver that mounts it: AKS brings none for Lustre. It runs on system, GPU and spot nodes;
    `installed` before any volume.
    """

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
            # Where AKS's own drivers run; the chart knows no other place for its accounts.
            namespace="kube-system",
            atomic=True,
            cleanup_on_fail=True,
            max_history=5,
            timeout=DRIVER_SECONDS,
            opts=self.options("lustre-csi-driver", provider=provider),
        )
        self.register_outputs({})
