"""Rules that only AWS has, on node pools: EFA, capacity blocks, and SageMaker HyperPod instance groups."""

from __future__ import annotations

from collections.abc import Iterator

from trainfleet.dates import today
from trainfleet.infra.aws.layout import HYPERPOD_REGIONS
from trainfleet.infra.spec.node_group import NodeGroup
from trainfleet.infra.spec.schema import Capacity, PlatformSpec
from trainfleet.infra.validation.finding import Finding, Rule
from trainfleet.infra.validation.pools import CLOUD, machine_choice, pools, pools_with_machine
from trainfleet.kubernetes_support import versions_of
from trainfleet.pydantic_messages import Path

HYPERPOD_CAPACITIES = (Capacity.ON_DEMAND, Capacity.RESERVED)
HYPERPOD_LABELS = 50 - 5
"""Fifty, less those that the platform sets on every pool."""
_BLOCK_FAMILIES = ("p4", "p5", "p6")


def aws_fabric_is_compact(spec: PlatformSpec) -> Iterator[Finding]:
    """EFA traffic stays inside one subnet, so the nodes must share a zone and should share a placement group
    (EKS guide, EFA).
    """
    for path, pool, machine in pools_with_machine(spec):
        if pool.interconnect == "best" and machine.rdma == "efa" and not pool.compact:
            reads = (*machine_choice(path), (*path, "interconnect"))
            what = "EFA does not work across zones"
            yield Finding((*path, "compact"), what, "true, with interconnect: best", reads)


def aws_blocks_are_sold(spec: PlatformSpec) -> Iterator[Finding]:
    """Capacity blocks exist for P machines only (EC2 guide, Capacity Blocks)."""
    for path, pool, machine in pools_with_machine(spec):
        sold = machine.instance_type.startswith(_BLOCK_FAMILIES)
        if pool.kind == "nodes" and pool.capacity is Capacity.CAPACITY_BLOCK and not sold:
            what = f"there are no capacity blocks of {machine.instance_type}"
            yield Finding((*path, "capacity"), what, "on-demand, spot or reserved", machine_choice(path))


def hyperpod_is_available(spec: PlatformSpec) -> Iterator[Finding]:
    """HyperPod exists in the regions for which its health agent is published, and accepts some of
    EKS' versions (trainfleet/kubernetes_support.toml).
    """
    accepted = [row for row in versions_of(spec.cloud) if row.hyperpod]
    for path, _ in hyperpods(spec):
        where = (*path, "kind")
        if spec.region and spec.region not in HYPERPOD_REGIONS:
            fix = f"nodes, or one of {', '.join(HYPERPOD_REGIONS)}"
            yield Finding(where, f"there is no HyperPod in {spec.region}", fix, (CLOUD, ("region",)))
        elif spec.kubernetes.version not in {row.version for row in accepted}:
            what = f"HyperPod does not support Kubernetes {spec.kubernetes.version} yet"
            current = ", ".join(row.version for row in accepted if row.supported(today()))
            fix = f"one of {current}, or no pool of kind: hyperpod"
            yield Finding(("kubernetes", "version"), what, fix, (CLOUD, where))
            return


def hyperpod_capacity(spec: PlatformSpec) -> Iterator[Finding]:
    """SageMaker sells HyperPod's capacity on demand or by a training plan. EC2's reservations do
    not apply.
    """
    for path, pool in hyperpods(spec):
        if pool.capacity not in HYPERPOD_CAPACITIES:
            what = f"HyperPod does not sell `{pool.capacity}`"
            reads = (CLOUD, (*path, "kind"))
            yield Finding((*path, "capacity"), what, " or ".join(HYPERPOD_CAPACITIES), reads)


def hyperpod_has_a_fixed_size(spec: PlatformSpec) -> Iterator[Finding]:
    """The cluster autoscaler does not change the size of an instance group (InstanceCount)."""
    for path, pool in hyperpods(spec):
        if pool.min_nodes < pool.max_nodes:
            what = f"a HyperPod pool is not scaled: its {pool.max_nodes} nodes always run"
            fix = f"{pool.max_nodes}, or fewer max_nodes"
            yield Finding((*path, "min_nodes"), what, fix, (CLOUD, (*path, "max_nodes"), (*path, "kind")))


def hyperpod_labels(spec: PlatformSpec) -> Iterator[Finding]:
    """SageMaker requires a value for every label (ClusterKubernetesConfig, value length 1 to 63) and accepts
    50 of them.
    """
    for path, pool in hyperpods(spec):
        reads = (CLOUD, (*path, "kind"))
        for key, value in pool.labels.items():
            if not value:
                yield Finding((*path, "labels", key), "is empty, which HyperPod rejects", "a value", reads)
        if len(pool.labels) > HYPERPOD_LABELS:
            what = f"{len(pool.labels)} labels are more than HyperPod accepts"
            yield Finding((*path, "labels"), what, f"at most {HYPERPOD_LABELS}", reads)


def hyperpods(spec: PlatformSpec) -> Iterator[tuple[Path, NodeGroup]]:
    """The pools of this kind and their paths."""
    return ((path, pool) for path, pool in pools(spec) if pool.kind == "hyperpod")


RULES: tuple[Rule, ...] = (
    aws_fabric_is_compact,
    aws_blocks_are_sold,
    hyperpod_is_available,
    hyperpod_capacity,
    hyperpod_has_a_fixed_size,
    hyperpod_labels,
)
