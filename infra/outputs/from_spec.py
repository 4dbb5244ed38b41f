"""The outputs of a platform that was never applied, as far as its spec determines them. For `ray up`.

What only an applied platform has (cluster, bucket, identities, fabric) stays empty, so that a launcher
rejects what it would need.
"""

from __future__ import annotations

from trainfleet.infra.catalog.machines import machine_for_pool
from trainfleet.infra.catalog.regions import at
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.outputs.contract import PlatformOutputs, PoolOutput, partly_known
from trainfleet.infra.spec.load import load_stack
from trainfleet.infra.spec.node_group import NodeGroup, groups_of_capacity
from trainfleet.infra.spec.schema import Capacity, GpuPool


def outputs_from_spec(stack: str) -> PlatformOutputs:
    """The outputs of a stack, given by its name or the path of its file.

    Raises:
        InputError: no such stack, or every mistake in its spec.
    """
    spec = load_stack(stack)
    return partly_known(
        spec.name,
        spec.cloud.value,
        account=spec.account,
        region=spec.region,
        environment=spec.environment,
        bucket_url=spec.storage.bucket_url,
        storage_secret=spec.storage.secret,
        image=spec.ray.image,
        pools=[
            _pool(spec.cloud, spec.region, pool, groups_of_capacity(pool)[0])
            for pool in spec.gpu_pools
            if pool.kind == "nodes"
        ],
        ray_version=spec.ray.version,
    )


def _pool(cloud: Cloud, region: str, pool: GpuPool, first: NodeGroup) -> PoolOutput:
    """A pool with its preferred capacity: `ray up` starts machines of one kind."""
    machine = at(machine_for_pool(cloud, pool), region, first.capacity)
    return PoolOutput(
        name=pool.name,
        kind=pool.kind,
        accelerator=pool.accelerator,
        per_node=pool.per_node,
        instance_type=machine.instance_type,
        min_nodes=pool.min_nodes,
        max_nodes=pool.max_nodes,
        spot=first.capacity is Capacity.SPOT,
        node_selector={},
        tolerations=[],
        pod_annotations={},
        environment={},
        rdma="none",
        rdma_resource="",
        rdma_nics=0,
        gpu_memory_gib=machine.gpu_memory_gib,
        pod_cpus=0.0,
        pod_memory_gib=0.0,
        groups=[],
        one_group_label="",
        queue_annotations={},
        pod_template={},
        usd_per_hour=machine.usd_per_hour(first.capacity),
    )
