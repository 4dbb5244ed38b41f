"""The cloud-neutral layer: what every cluster carries, whichever cloud it is on.

`install(platform, spec)` is the only door. The SDKs are imported when it is called, so that the spec's rules
may ask
`trainfleet.infra.kubernetes.crds` which operator versions are known without paying for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainfleet.infra.platform import Platform
    from trainfleet.infra.spec.schema import PlatformSpec


def install(platform: Platform, spec: PlatformSpec) -> None:
    """Put the layer on the platform's cluster, as one component `<name>-kubernetes` with a component per
    room.

    Raises:
        InputError: the spec asks for a version of the KubeRay operator whose resource definitions are not
        here.
    """
    from trainfleet.infra.kubernetes.layer import ClusterLayer

    ClusterLayer(platform, spec)
