"""Logs: the log bucket of a platform, with its own retention, key and region. Google's default bucket keeps
everything for 30 days.
"""

from __future__ import annotations

import pulumi
import pulumi_gcp as gcp

from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.gcp.keys import Keys


def cluster_logs(component: PlatformComponent, keys: Keys, cluster_name: str) -> list[pulumi.Resource]:
    """Send the logs of a cluster to a log bucket. The resources are children of the cluster's component."""
    spec = component.spec
    bucket = gcp.logging.ProjectBucketConfig(
        component.name("cluster-logs"),
        project=spec.account,
        location=spec.region,
        # A deleted log bucket reserves its name for a week. The name of the key ring is unique per platform.
        bucket_id=keys.ring.name,
        description=f"Trainfleet {spec.name}: pods, nodes and control plane",
        retention_days=spec.kubernetes.log_retention_days,
        cmek_settings={"kms_key_name": keys.logs.id},
        opts=component.options(depends_on=keys.ready, delete_before_replace=True),
    )
    in_cluster = f'resource.labels.cluster_name="{cluster_name}" AND resource.labels.location="{spec.region}"'
    sink = gcp.logging.ProjectSink(
        component.name("cluster-logs-sink"),
        project=spec.account,
        description=f"Trainfleet {spec.name}: what its cluster says, to its own log bucket",
        destination=pulumi.Output.concat("logging.googleapis.com/", bucket.id),
        filter=in_cluster,
        unique_writer_identity=True,
        opts=component.options(),
    )
    return [bucket, sink]
