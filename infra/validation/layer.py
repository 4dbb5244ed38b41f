"""Rules on the cluster layer's switches: parts that are asked for and switched off at once. A part that
somebody brings himself is no mistake.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.validation.finding import Finding


def certificates_are_signed(spec: PlatformSpec) -> Iterator[Finding]:
    """With `ray.tls` a pod without a certificate neither starts nor joins (Ray documentation, TLS
    authentication).
    """
    if spec.ray.tls and spec.layer.certificates == "none":
        yield Finding(
            ("layer", "certificates"),
            "nobody would sign the certificates that ray.tls needs",
            "own-ca, or ray.tls: false",
            (("ray", "tls"),),
        )


def queue_has_its_operator(spec: PlatformSpec) -> Iterator[Finding]:
    """Kueue's RayJob integration watches KubeRay's resources; without their definitions its controller does
    not start.
    """
    if spec.queue.enabled and not spec.layer.kuberay:
        yield Finding(
            ("layer", "kuberay"),
            "is off, and the queue admits what KubeRay runs",
            "true, or queue.enabled: false",
            (("queue", "enabled"),),
        )


def launchers_have_their_role(spec: PlatformSpec) -> Iterator[Finding]:
    """Who is named as launcher is put into a group, and this part is what gives the group its rights."""
    if spec.kubernetes.launchers and not spec.layer.launcher_access:
        yield Finding(
            ("layer", "launcher_access"),
            "is off, and those named in kubernetes.launchers could do nothing",
            "true, or no kubernetes.launchers",
            (("kubernetes", "launchers"),),
        )
