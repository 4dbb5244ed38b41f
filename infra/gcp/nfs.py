"""Nfs: the shared filesystem of a platform as a plain share (Filestore, zonal tier), that every GPU node can
mount.

It stands in one zone, beside the pool that is bound to one, and is encrypted with the platform's key. Easy to
get wrong:
tier, place, network and protocol cannot change without a new share, and a new share is empty.
"""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
import pulumi_gcp as gcp

from trainfleet.infra.component import Room
from trainfleet.infra.gcp import layout
from trainfleet.infra.gcp.keys import Keys
from trainfleet.infra.gcp.network import Network
from trainfleet.infra.platform import SharedVolume
from trainfleet.infra.spec.schema import PlatformSpec, SharedFilesystem

SHARE = "shared"


class Nfs(Room):
    """The shared filesystem of a platform, as `volume`."""

    TYPE = "trainfleet:gcp:Nfs"

    def __init__(
        self,
        spec: PlatformSpec,
        wish: SharedFilesystem,
        *,
        network: Network,
        keys: Keys,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "nfs", opts)
        zone = layout.shared_volume_zone(spec)
        reserved, peering = network.for_google()
        clients = [str(network.plan.nodes), str(network.plan.pods)]
        self.filesystem = gcp.filestore.Instance(
            self.name("nfs"),
            location=zone,
            tier="ZONAL",
            protocol="NFS_V3",
            file_shares={
                "name": SHARE,
                "capacity_gb": wish.capacity_gib,
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
            opts=self.options("nfs", guard=True, depends_on=[peering, *keys.ready]),
        )
        self.volume = SharedVolume(
            driver="filestore.csi.storage.gke.io",
            handle=pulumi.Output.concat("modeInstance/", zone, "/", self.filesystem.name, "/", SHARE),
            attributes={"ip": self.filesystem.networks.apply(address), "volume": SHARE},
            capacity_gib=wish.capacity_gib,
        )
        self.register_outputs({})


def address(networks: Sequence[gcp.filestore.outputs.InstanceNetwork]) -> str:
    """The address of a share, which has exactly one."""
    for network in networks:
        for each in network.ip_addresses or ():
            return each
    raise LookupError("Filestore did not tell the share's address")
