"""Rules on the Kubernetes version: what the cloud offers, and how long it supports it."""

from __future__ import annotations

from collections.abc import Iterator

from trainfleet.dates import today
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.validation.finding import Finding
from trainfleet.infra.validation.pools import CLOUD
from trainfleet.kubernetes_support import AFTERWARDS, SERVICES, supported_versions, versions_of
from trainfleet.pydantic_messages import Path

WHERE: Path = ("kubernetes", "version")


def kubernetes_is_supported(spec: PlatformSpec) -> Iterator[Finding]:
    """After standard support, a cloud upgrades the cluster, charges more or rejects changes
    (trainfleet/kubernetes_support.toml).
    """
    rows = {row.version: row for row in versions_of(spec.cloud)}
    if not rows:
        return
    service, day, version = SERVICES[spec.cloud], today(), spec.kubernetes.version
    current = supported_versions(spec.cloud, day)
    offered = ", ".join(row.version for row in current)
    fix = f"one of {offered}" if offered else "a newer release of Trainfleet"
    row = rows.get(version)
    if row is None:
        what = f"Kubernetes {version} on {service} is not in this release's support calendar"
        yield Finding(WHERE, what, fix, (CLOUD,))
    elif day < row.offered:
        yield Finding(WHERE, f"{service} offers Kubernetes {version} from {row.offered}", fix, (CLOUD,))
    elif day >= row.ends:
        what = f"{service}'s standard support of Kubernetes {version} ended on {row.end}"
        yield Finding(WHERE, what, fix, (CLOUD,))


def ends_of_support(spec: PlatformSpec) -> Iterator[Finding]:
    """Yield a warning from 90 days before the end of standard support. Nothing is rejected yet."""
    day = today()
    for row in supported_versions(spec.cloud, day):
        if row.version == spec.kubernetes.version and row.ends_soon(day):
            newer = [each.version for each in supported_versions(spec.cloud, day) if each.minor > row.minor]
            what = (
                f"{SERVICES[spec.cloud]}'s standard support of Kubernetes {row.version} ends on {row.end}; "
                f"{AFTERWARDS[spec.cloud]}"
            )
            fix = f"upgrade to {newer[0]}, one minor version at a time" if newer else "plan the upgrade"
            yield Finding(WHERE, what, fix, (CLOUD,))
