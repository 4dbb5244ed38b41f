"""The cluster layer: what every cluster has, whichever cloud it is on.

`install(platform, spec)` is the only entry point. It imports the SDKs, so that validation can read
`kubernetes.crds` without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainfleet.infra.platform import Platform
    from trainfleet.infra.spec.schema import PlatformSpec


def install(platform: Platform, spec: PlatformSpec) -> None:
    """Install the layer on the platform's cluster, as one component `<name>-kubernetes`.

    Raises:
        InputError: the resource definitions of the KubeRay operator's version are missing.
    """
    from trainfleet.infra.kubernetes.layer import ClusterLayer

    ClusterLayer(platform, spec)
