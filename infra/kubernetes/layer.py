"""ClusterLayer: the component that holds every room of the cluster layer, in the order in which they need one another.

It depends on the control plane and on every node pool that exists, so nothing is made before there is a node to run it
and, on destroy, everything here is gone (load balancers, volumes, pods) before the first node goes.
"""

from __future__ import annotations

import pulumi

from infra.kubernetes.access import Access
from infra.kubernetes.autoscaler import Autoscaler
from infra.kubernetes.gpu import Gpu
from infra.kubernetes.isolation import Isolation
from infra.kubernetes.kuberay import KubeRay
from infra.kubernetes.storage import Storage
from infra.platform import Platform
from infra.spec import PlatformSpec


class ClusterLayer(pulumi.ComponentResource):
    """Rooms: isolation (namespaces, network policies), access, storage, gpu, autoscaler, kuberay."""

    def __init__(self, platform: Platform, spec: PlatformSpec, opts: pulumi.ResourceOptions | None = None) -> None:
        below = [platform.cluster, *platform.system_nodes, *(pool.nodes for pool in platform.pools)]
        needs = pulumi.ResourceOptions(providers=[platform.kubernetes], depends_on=[resource for resource in below if resource is not None])
        super().__init__("trainfleet:kubernetes:ClusterLayer", f"{spec.name}-kubernetes", None, pulumi.ResourceOptions.merge(opts, needs))
        inside = pulumi.ResourceOptions(parent=self)
        self.isolation = Isolation(platform, spec, inside)
        settled = pulumi.ResourceOptions(parent=self, depends_on=[self.isolation])
        self.access = Access(platform, spec, settled)
        self.storage = Storage(platform, spec, settled)
        self.gpu = Gpu(platform, spec, settled)
        # The accounts first: a pod cannot start under an account that is not there.
        served = pulumi.ResourceOptions(parent=self, depends_on=[self.isolation, self.access])
        self.autoscaler = Autoscaler(platform, spec, served)
        self.kuberay = KubeRay(spec, served)
        self.register_outputs({})
