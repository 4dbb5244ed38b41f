"""Lustre: FSx for Lustre, the shared filesystem of a platform, with two folders linked to its bucket.

Data sets are imported from the bucket, runs are imported and exported, and nothing else is linked: FSx writes
to the bucket with a role of its own, so a link must not reach further than training's own rights. Production
protects the filesystem but does not retain it, because it costs by the hour and blocks its subnet.
"""

from __future__ import annotations

from typing import Any

import pulumi
import pulumi_aws as aws

from trainfleet.infra.aws import layout
from trainfleet.infra.aws.foundation import Foundation
from trainfleet.infra.aws.network import Network
from trainfleet.infra.aws.permissions import RUNS_PREFIX
from trainfleet.infra.aws.storage import Storage
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.platform import SCRATCH, SharedVolume
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.spec.storage import SharedFilesystem

PORTS = ((988, 988), (1018, 1023))
"""Lustre's ports (FSx user guide, security groups): between clients and servers, and among the servers."""
MAINTENANCE_START = "7:02:00"
"""Day of the week, hour and minute in UTC: Sunday, as on the other clouds. Clients wait during patches."""
EVENTS = ["NEW", "CHANGED", "DELETED"]
DATASETS_PREFIX = "datasets/"


class Lustre(PlatformComponent):
    """The shared filesystem of a platform, as `volume`."""

    TYPE = "trainfleet:aws:Lustre"

    def __init__(
        self,
        spec: PlatformSpec,
        shared: SharedFilesystem,
        foundation: Foundation,
        *,
        nodes_group: pulumi.Input[str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "lustre", opts)
        network, storage, keys = foundation.network, foundation.storage, foundation.keys
        zone = layout.shared_volume_zone(spec)
        group, rules = self._security_group(network, nodes_group)
        logs = aws.cloudwatch.LogGroup(
            self.name("lustre-logs"),
            # FSx writes only to names with this prefix.
            name_prefix=f"/aws/fsx/{spec.name}-",
            retention_in_days=layout.log_retention(spec.kubernetes.log_retention_days),
            kms_key_id=keys.logs.arn,
            tags=self.tags("lustre-logs"),
            opts=self.options(),
        )
        self.filesystem = aws.fsx.LustreFileSystem(
            self.name("lustre"),
            subnet_ids=network.private_subnets[zone].id,
            security_group_ids=[group.id],
            deployment_type="PERSISTENT_2",
            storage_type="SSD",
            storage_capacity=shared.capacity_gib,
            per_unit_storage_throughput=shared.throughput_mbps_per_tib,
            file_system_type_version="2.15",
            data_compression_type="LZ4",
            kms_key_id=keys.data.arn,
            # FSx supports no backups of a filesystem that is linked to a bucket.
            automatic_backup_retention_days=0,
            weekly_maintenance_start_time=MAINTENANCE_START,
            log_configuration={"level": "WARN_ERROR", "destination": logs.arn},
            tags=self.tags("lustre"),
            opts=self.options(protect=True, depends_on=rules),
        )
        runs = self._link(storage, RUNS_PREFIX, export=True, former_names=["lustre-bucket"])
        # One after the other: the link of an earlier release covered the whole bucket, and two links of one
        # filesystem cannot overlap (FSx API reference, CreateDataRepositoryAssociation).
        self._link(storage, DATASETS_PREFIX, export=False, depends_on=[runs])
        self.volume = self._volume(shared)
        self.register_outputs({})

    def _link(
        self, storage: Storage, prefix: str, *, export: bool, **options: Any
    ) -> aws.fsx.DataRepositoryAssociation:
        """Link the folder of a prefix with the bucket."""
        what = f"lustre-{prefix.rstrip('/')}"
        events: aws.fsx.DataRepositoryAssociationS3ArgsDict = {"auto_import_policy": {"events": EVENTS}}
        if export:
            events["auto_export_policy"] = {"events": EVENTS}
        return aws.fsx.DataRepositoryAssociation(
            self.name(what),
            file_system_id=self.filesystem.id,
            file_system_path=f"/{prefix}",
            data_repository_path=pulumi.Output.concat("s3://", storage.bucket.bucket, "/", prefix),
            batch_import_meta_data_on_create=True,
            delete_data_in_filesystem=False,
            s3=events,
            tags=self.tags(what),
            opts=self.options(delete_before_replace=True, **options),
        )

    def _volume(self, shared: SharedFilesystem) -> SharedVolume:
        return SharedVolume(
            driver="fsx.csi.aws.com",
            handle=self.filesystem.id,
            attributes={"dnsname": self.filesystem.dns_name, "mountname": self.filesystem.mount_name},
            capacity_gib=shared.capacity_gib,
            mount_options=("flock",),
            folders=(RUNS_PREFIX.rstrip("/"), SCRATCH),
        )

    def _security_group(
        self, network: Network, nodes_group: pulumi.Input[str]
    ) -> tuple[aws.ec2.SecurityGroup, list[pulumi.Resource]]:
        """The group of the file servers, and its rules and those of the nodes. Servers and clients call each
        other (FSx user guide, limiting access with security groups).
        """
        group = aws.ec2.SecurityGroup(
            self.name("lustre-sg"),
            vpc_id=network.vpc.id,
            description="Lustre between nodes and file servers",
            tags=self.tags("lustre-sg"),
            opts=self.options(),
        )
        rules: list[pulumi.Resource] = []
        for low, high in PORTS:
            rules.append(self._rule("lustre-callback", nodes_group, group.id, (low, high)))
            for who, peer in (("servers", group.id), ("nodes", nodes_group)):
                rules.append(self._rule(f"lustre-in-{who}", group.id, peer, (low, high)))
                rules.append(self._rule(f"lustre-out-{who}", group.id, peer, (low, high), out=True))
        return group, rules

    def _rule(
        self,
        what: str,
        group: pulumi.Input[str],
        peer: pulumi.Input[str],
        ports: tuple[int, int],
        *,
        out: bool = False,
    ) -> pulumi.Resource:
        """A rule of a group for the traffic with another."""
        kind = aws.vpc.SecurityGroupEgressRule if out else aws.vpc.SecurityGroupIngressRule
        who = what.rpartition("-")[2] if what != "lustre-callback" else "servers"
        name = f"{what}-{ports[0]}"
        return kind(
            self.name(name),
            security_group_id=group,
            referenced_security_group_id=peer,
            description=f"Lustre {'to' if out else 'from'} {who}",
            ip_protocol="tcp",
            from_port=ports[0],
            to_port=ports[1],
            tags=self.tags(name),
            opts=self.options(),
        )
