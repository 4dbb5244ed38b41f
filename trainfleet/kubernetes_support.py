"""The support calendar: which Kubernetes versions EKS, GKE and AKS offer, and when standard support ends.

The rows are in kubernetes_support.toml, each with its source. Validation, policies and the simulated clouds
read them.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from pathlib import Path

NOTICE = timedelta(days=90)
"""How long before the end of standard support a version is warned about."""
SERVICES = {"aws": "EKS", "gcp": "GKE", "azure": "AKS"}
AFTERWARDS = {
    "aws": "EKS then upgrades the control plane on its own, because the platform declines extended support",
    "gcp": "GKE then upgrades the control plane and the nodes on its own",
    "azure": "AKS then rejects new clusters and node pools without long-term support",
}
"""What each cloud does at the end: EKS user guide, cluster upgrade policy; GKE versioning and support; AKS,
supported Kubernetes versions (K8sVersionNotSupported).
"""


@dataclass(frozen=True)
class VersionSupport:
    """One version on one cloud. `ends` is the first day without standard support."""

    cloud: str
    version: str
    offered: date
    ends: date
    source: str
    approximate: bool = False
    hyperpod: bool = False

    @property
    def minor(self) -> tuple[int, int]:
        """The version as two numbers."""
        major, _, minor = self.version.partition(".")
        return int(major), int(minor)

    @property
    def end(self) -> str:
        """The end as text."""
        return f"about {self.ends}" if self.approximate else str(self.ends)

    def supported(self, day: date) -> bool:
        """Whether the version is in standard support on a day."""
        return self.offered <= day < self.ends

    def ends_soon(self, day: date) -> bool:
        """Whether standard support ends within the notice."""
        return self.supported(day) and self.ends - day <= NOTICE


@cache
def calendar() -> tuple[VersionSupport, ...]:
    """Return all rows, read once per process."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return tuple(VersionSupport(**row) for row in tomllib.loads(text)["version"])


def versions_of(cloud: str) -> tuple[VersionSupport, ...]:
    """Return the rows of a cloud, the oldest version first; none for a cloud without a managed service."""
    return tuple(sorted((row for row in calendar() if row.cloud == cloud), key=lambda row: row.minor))


def last_day(cloud: str, version: str, day: date) -> date | None:
    """Return the last day of a version whose support has ended by then; None for any other."""
    for row in versions_of(cloud):
        if row.version == version and day >= row.ends:
            return row.ends - timedelta(days=1)
    return None


def supported_versions(cloud: str, day: date) -> tuple[VersionSupport, ...]:
    """Return the versions in standard support on a day, the oldest first."""
    return tuple(row for row in versions_of(cloud) if row.supported(day))
