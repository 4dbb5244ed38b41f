"""Storage of a platform: the bucket of runs and data sets, and a shared filesystem."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainfleet.infra.spec.part import STORE_PORT, Part

RUNS_RETENTION_DAYS = 3
"""What was lost on a Friday can still be restored on Monday."""


class SharedFilesystem(Part):
    """A filesystem that every training pod mounts."""

    kind: Literal["lustre", "nfs"] = "lustre"
    """lustre: a parallel filesystem, linked to the bucket on aws. nfs: an NFS share."""
    capacity_gib: int = Field(1200, ge=100)
    """Capacity in GiB. Each cloud sells its own sizes; aws: 1200, 2400, and multiples of 2400."""
    throughput_mbps_per_tib: Literal[125, 250, 500, 1000] = 125
    """Throughput in MB/s per TiB of capacity."""


class Storage(Part):
    """The bucket of runs and data, and an optional shared filesystem."""

    retention_days: int = Field(30, ge=1)
    """Days within which a deleted or overwritten object can be restored."""
    runs_retention_days: int | None = Field(None, ge=1, examples=[3])
    """The same for what training replaces or deletes: leases and old checkpoints below the URL of runs. At
    most `retention_days`; needs `versioning`. Default: 3, or `retention_days` if that is less.
    """
    versioning: bool = True
    """Keep overwritten objects for that time. Without it, gcp and azure have one period for the whole bucket,
    `retention_days`, and aws keeps nothing.
    """
    shared_filesystem: SharedFilesystem | None = None
    """A filesystem in addition to the bucket. Default: none."""
    bucket_url: str = Field("", examples=["s3://my-bucket"])
    """`cloud: local` only: URL of the existing object store for runs (s3://, gs://, az:// or file://)."""
    secret: str = Field("", pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$", examples=["s3-keys"])
    """`cloud: local` only: the Secret in `training` whose keys pods get as variables, for that store."""
    port: int = Field(STORE_PORT, ge=1, le=65535, examples=[9000])
    """`cloud: local` only: the TCP port of that store, to which network policies admit the pods of runs."""

    @property
    def runs_days(self) -> int:
        """Days that apply to what training replaces or deletes."""
        if not self.versioning:
            return self.retention_days
        return min(self.runs_retention_days or RUNS_RETENTION_DAYS, self.retention_days)
