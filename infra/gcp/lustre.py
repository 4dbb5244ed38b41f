"""Lustre: the parallel filesystem of a platform (Managed Lustre), that every GPU node can mount.

Unlike on AWS it is no window onto the bucket: data is copied in and out by hand (gcloud lustre instances
import-data).
So it is never the only place of what a run writes, and in production it is protected from deletion by
mistake.
Easy to get wrong: capacity comes in steps that depend on the throughput.
"""

from __future__ import annotations

import pulumi
import pulumi_gcp as gcp

from trainfleet.infra.component import Room
from trainfleet.infra.gcp import layout
from trainfleet.infra.gcp.keys import Keys
from trainfleet.infra.gcp.network import Network
from trainfleet.infra.platform import SharedVolume
from trainfleet.infra.spec.schema import PlatformSpec, SharedFilesystem

FILESYSTEM = "shared"
"""The name that clients mount: eight letters and digits at most."""


class Lustre(Room):
    """The shared filesystem of a platform, as `volume`."""

    TYPE = "trainfleet:gcp:Lustre"

    def __init__(
        self,
        spec: PlatformSpec,
        wish: SharedFilesystem,
        *,
        network: Network,
        keys: Keys,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "lustre", opts)
        zone = layout.shared_volume_zone(spec)
        _, peering = network.for_google()
        self.filesystem = gcp.lustre.Instance(
            self.name("lustre"),
            # Fixed, because Google makes none up.
            instance_id=f"{spec.name}-shared",
            location=zone,
            filesystem=FILESYSTEM,
            capacity_gib=str(wish.capacity_gib),
            per_unit_storage_throughput=str(wish.throughput_mbps_per_tib),
            network=network.vpc.id,
            kms_key=keys.data.id,
            description=f"Trainfleet {spec.name}: shared by training pods",
            labels=self.labels("lustre"),
            opts=self.options(
                "lustre", guard=True, depends_on=[peering, *keys.ready], delete_before_replace=True
            ),
        )
        self.volume = SharedVolume(
            driver="lustre.csi.storage.gke.io",
            handle=pulumi.Output.concat(spec.account, "/", zone, "/", self.filesystem.instance_id),
            attributes={
                "ip": self.filesystem.mount_point.apply(server),
                "filesystem": self.filesystem.filesystem,
            },
            capacity_gib=wish.capacity_gib,
            mount_options=("flock",),
        )
        self.register_outputs({})


def server(mount_point: str) -> str:
    """The address in a mount point, which Google writes as ADDRESS@tcp:/FILESYSTEM."""
    return mount_point.partition("@")[0]
