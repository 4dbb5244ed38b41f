"""Rules on the cluster layer's switches: a feature that is requested must not be disabled as well."""

from __future__ import annotations

from collections.abc import Iterator

from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.validation.finding import Finding


def certificates_are_signed(spec: PlatformSpec) -> Iterator[Finding]:
    """With `ray.tls`, a pod without a certificate cannot start or join (Ray documentation, TLS
    authentication).
    """
    if spec.ray.tls and spec.layer.certificates == "none":
        yield Finding(
            ("layer", "certificates"),
            "nothing would sign the certificates that ray.tls requires",
            "own-ca, or ray.tls: false",
            (("ray", "tls"),),
        )


def queue_has_its_operator(spec: PlatformSpec) -> Iterator[Finding]:
    """Kueue's RayJob integration watches KubeRay's resources. Its controller does not start without their
    definitions.
    """
    if spec.queue.enabled and not spec.layer.kuberay:
        yield Finding(
            ("layer", "kuberay"),
            "is off, but the queue admits KubeRay's resources",
            "true, or queue.enabled: false",
            (("queue", "enabled"),),
        )


def launchers_have_their_role(spec: PlatformSpec) -> Iterator[Finding]:
    """Launchers are members of a group, and this feature grants the group its permissions."""
    if spec.kubernetes.launchers and not spec.layer.launcher_access:
        yield Finding(
            ("layer", "launcher_access"),
            "is off, so the identities in kubernetes.launchers would have no permissions",
            "true, or no kubernetes.launchers",
            (("kubernetes", "launchers"),),
        )


def receivers_have_their_sender(spec: PlatformSpec) -> Iterator[Finding]:
    """Alertmanager is part of monitoring."""
    if spec.monitoring.alertmanager_secret and not spec.monitoring.enabled:
        yield Finding(
            ("monitoring", "alertmanager_secret"),
            "has no effect without Alertmanager",
            "leave it out, or monitoring.enabled: true",
            (("monitoring", "enabled"),),
        )
