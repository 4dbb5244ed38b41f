"""The platform on the toy cloud: one component with one bucket."""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as k8s

from trainfleet.infra.catalog.machines import machine_for_pool
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.platform import Platform, Pool
from trainfleet.infra.spec.node_groups import node_groups
from trainfleet.infra.spec.schema import PlatformSpec


class Storage(PlatformComponent):
    """The bucket of a platform."""

    TYPE = "trainfleet:toy:Storage"

    def __init__(self, spec: PlatformSpec, *, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(spec, "storage", opts)
        self.bucket = pulumi.CustomResource(
            "toy:index:Bucket", self.name("bucket"), {"tags": self.tags("bucket")}, self.options(retain=True)
        )
        self.register_outputs({})


def build(spec: PlatformSpec) -> Platform:
    """Everything on the toy cloud below the cluster layer."""
    storage = Storage(spec)
    provider = k8s.Provider(f"{spec.name}-kubernetes-provider", cluster_identifier=spec.name)
    return Platform(
        cloud=spec.cloud,
        kubernetes=provider,
        cluster=storage,
        cluster_name=spec.name,
        kube_context=spec.name,
        kubeconfig="",
        bucket_url=f"s3://{spec.name}",
        registry="",
        pools=tuple(
            Pool(pool, machine_for_pool(spec.cloud, pool), {"trainfleet.io/pool": pool.pool}, (), None)
            for pool in node_groups(spec)
        ),
        identities={},
        storage_class_provisioner="",
        storage_class_parameters={},
        shared_filesystem=None,
        autoscaler="",
        api_cidrs=(),
    )
