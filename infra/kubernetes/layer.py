"""ClusterLayer: the component that holds all others of the cluster layer, in the order of their dependencies.

It depends on the control plane and the system pool: nothing is created before a node can run it, and on
destroy everything here (load balancers, volumes, pods) is deleted before the first system node. Only the
agents of GPU nodes depend on the GPU pools, so a pool that is refused, or takes hours, holds up nothing else.
"""

from __future__ import annotations

import pulumi

from trainfleet.infra.kubernetes.access import Access
from trainfleet.infra.kubernetes.autoscaler import Autoscaler
from trainfleet.infra.kubernetes.certificates import Certificates
from trainfleet.infra.kubernetes.external_secrets import ExternalSecrets
from trainfleet.infra.kubernetes.features import layer_features
from trainfleet.infra.kubernetes.gpu import Gpu
from trainfleet.infra.kubernetes.isolation import Isolation
from trainfleet.infra.kubernetes.kuberay import KubeRay
from trainfleet.infra.kubernetes.monitoring import Monitoring
from trainfleet.infra.kubernetes.nodes import Nodes
from trainfleet.infra.kubernetes.queue import Queue
from trainfleet.infra.kubernetes.redis import Redis
from trainfleet.infra.kubernetes.storage import Storage
from trainfleet.infra.platform import Platform
from trainfleet.infra.spec.schema import PlatformSpec


class ClusterLayer(pulumi.ComponentResource):
    """Isolation, access, storage, monitoring, GPU, nodes, autoscaler, KubeRay, queue, external secrets,
    certificates, Redis.
    """

    def __init__(
        self, platform: Platform, spec: PlatformSpec, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        needs = pulumi.ResourceOptions(
            providers=[platform.kubernetes],
            depends_on=[*([platform.cluster] if platform.cluster else ()), *platform.system_nodes],
        )
        super().__init__(
            "trainfleet:kubernetes:ClusterLayer",
            f"{spec.name}-kubernetes",
            None,
            pulumi.ResourceOptions.merge(opts, needs),
        )
        features = layer_features(platform, spec)
        self.isolation = Isolation(platform, spec, features, pulumi.ResourceOptions(parent=self))
        after_isolation = pulumi.ResourceOptions(parent=self, depends_on=[self.isolation])
        self.access = Access(platform, spec, features, after_isolation)
        self.storage = Storage(platform, spec, features, after_isolation)
        # Pods are rejected before their priority class exists.
        before_pods = [self.isolation, self.access, self.storage]
        after_storage = pulumi.ResourceOptions(parent=self, depends_on=before_pods)
        self.monitoring = Monitoring(platform, spec, features, after_storage)
        # Pods cannot start without their account, and a chart with a monitor cannot be installed without its
        # definition.
        ready = [self.isolation, self.access, *self.monitoring.definitions]
        after_access = pulumi.ResourceOptions(parent=self, depends_on=ready)
        gpu_nodes = [pool.nodes for pool in platform.pools if pool.nodes is not None]
        after_pools = pulumi.ResourceOptions(parent=self, depends_on=[*ready, *gpu_nodes])
        self.gpu = Gpu(platform, spec, features, after_pools)
        self.nodes = Nodes(platform, spec, features, after_access)
        self.autoscaler = Autoscaler(platform, spec, features, after_access)
        self.kuberay = KubeRay(spec, features, after_access)
        # Kueue looks up the kinds that it queues when it starts.
        self.queue = Queue(
            platform, spec, features, pulumi.ResourceOptions(parent=self, depends_on=[*ready, self.kuberay])
        )
        self.secrets = ExternalSecrets(platform, spec, features, after_access)
        self.certificates = Certificates(platform, spec, features, after_access)
        if features.redis:
            self.redis = Redis(platform, spec, features, after_storage)
        self.register_outputs({})
