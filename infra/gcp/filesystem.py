"""Lustre and Nfs: the shared filesystem of a platform, Managed Lustre or zonal Filestore.

Managed Lustre is not linked to the bucket: data is imported and exported by hand (gcloud lustre instances
import-data). Both are protected in production.
"""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
import pulumi_gcp as gcp

from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.gcp import layout
from trainfleet.infra.gcp.foundation import Foundation
from trainfleet.infra.platform import SharedVolume
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.spec.storage import SharedFilesystem

FILESYSTEM = "shared"
"""The name that clients mount: at most eight letters and digits."""
MAINTENANCE_HOUR = 2
"""UTC, on Sundays, as on the other clouds."""


class Lustre(PlatformComponent):
    """The shared filesystem of a platform, as `volume`."""

    TYPE = "trainfleet:gcp:Lustre"

    def __init__(
        self,
        spec: PlatformSpec,
        shared: SharedFilesystem,
        foundation: Foundation,
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "lustre", opts)
        network, keys = foundation.network, foundation.keys
        zone = layout.shared_volume_zone(spec)
        _, peering = network.private_service_access()
        waits = [peering, network.lustre_servers(), *keys.ready]
        self.filesystem = gcp.lustre.Instance(
            self.name("lustre"),
            # Required: Google generates no id.
            instance_id=f"{spec.name}-shared",
            location=zone,
            filesystem=FILESYSTEM,
            capacity_gib=str(shared.capacity_gib),
            per_unit_storage_throughput=str(shared.throughput_mbps_per_tib),
            network=network.vpc.id,
            kms_key=keys.data.id,
            description=f"Trainfleet {spec.name}: shared by training pods",
            maintenance_policy={
                "weekly_maintenance_windows": {
                    "day_of_week": "SUNDAY",
                    "start_time": {"hours": MAINTENANCE_HOUR},
                }
            },
            labels=self.labels("lustre"),
            opts=self.options(protect=True, depends_on=waits, delete_before_replace=True),
        )
        self.volume = SharedVolume(
            driver="lustre.csi.storage.gke.io",
            handle=pulumi.Output.concat(spec.account, "/", zone, "/", self.filesystem.instance_id),
            attributes={
                "ip": self.filesystem.mount_point.apply(server),
                "filesystem": self.filesystem.filesystem,
            },
            capacity_gib=shared.capacity_gib,
            mount_options=("flock",),
        )
        self.register_outputs({})


def server(mount_point: str) -> str:
    """The address in a mount point ADDRESS@tcp:/FILESYSTEM."""
    return mount_point.partition("@")[0]


SHARE = "shared"


class Nfs(PlatformComponent):
    """The shared filesystem of a platform, as `volume`."""

    TYPE = "trainfleet:gcp:Nfs"

    def __init__(
        self,
        spec: PlatformSpec,
        shared: SharedFilesystem,
        foundation: Foundation,
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "nfs", opts)
        network, keys = foundation.network, foundation.keys
        zone = layout.shared_volume_zone(spec)
        reserved, peering = network.private_service_access()
        clients = [str(network.plan.nodes), str(network.plan.pods)]
        self.filesystem = gcp.filestore.Instance(
            self.name("nfs"),
            location=zone,
            # NOTE: a change of location, tier, protocol or network replaces the share, and the new one is
            # empty.
            tier="ZONAL",
            protocol="NFS_V3",
            file_shares={
                "name": SHARE,
                "capacity_gb": shared.capacity_gib,
                "nfs_export_options": [
                    {"ip_ranges": clients, "access_mode": "READ_WRITE", "squash_mode": "NO_ROOT_SQUASH"}
                ],
            },
            networks=[
                {
                    "network": network.vpc.id,
                    "modes": ["MODE_IPV4"],
                    "connect_mode": "PRIVATE_SERVICE_ACCESS",
                    "reserved_ip_range": reserved.name,
                }
            ],
            kms_key_name=keys.data.id,
            deletion_protection_enabled=spec.production,
            deletion_protection_reason="Trainfleet production data" if spec.production else None,
            description=f"Trainfleet {spec.name}: shared by training pods",
            labels=self.labels("nfs"),
            opts=self.options(protect=True, depends_on=[peering, *keys.ready]),
        )
        self.volume = SharedVolume(
            driver="filestore.csi.storage.gke.io",
            handle=pulumi.Output.concat("modeInstance/", zone, "/", self.filesystem.name, "/", SHARE),
            attributes={"ip": self.filesystem.networks.apply(address), "volume": SHARE},
            capacity_gib=shared.capacity_gib,
        )
        self.register_outputs({})


def address(networks: Sequence[gcp.filestore.outputs.InstanceNetwork]) -> str:
    """The only address of a share."""
    for network in networks:
        for each in network.ip_addresses or ():
            return each
    raise LookupError("Filestore did not report the share's address")
