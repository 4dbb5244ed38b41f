"""Rules on pools of `kind: hyperpod`: SageMaker HyperPod instance groups on the platform's own EKS cluster.

Used by `trainfleet.infra.validation`. Easy to get wrong: HyperPod has machines, regions, versions and
capacity of its own, and nothing scales its groups.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainfleet.infra.aws.layout import HYPERPOD_REGIONS
from trainfleet.infra.spec.schema import Capacity, Cloud, GpuPool, PlatformSpec
from trainfleet.infra.validation.finding import Finding
from trainfleet.pydantic_messages import Path

KUBERNETES_VERSIONS = ("1.33", "1.34")
"""What HyperPod runs on among those this release runs on EKS (SageMaker developer guide, HyperPod on EKS,
requirements).
"""
CAPACITY = (Capacity.ON_DEMAND, Capacity.RESERVED)


def hyperpod_is_there(spec: PlatformSpec) -> Iterator[Finding]:
    """HyperPod is a service of AWS, in some of its regions (its health agent is published for those), and
    lags behind EKS by a version.
    """
    for path, _ in hyperpods(spec):
        where = (*path, "kind")
        if spec.cloud is not Cloud.AWS:
            yield Finding(
                where,
                f"`hyperpod` is a service of aws, and this platform is on {spec.cloud}",
                "nodes",
                (("cloud",),),
            )
        elif spec.region and spec.region not in HYPERPOD_REGIONS:
            yield Finding(
                where,
                f"there is no HyperPod in {spec.region}",
                f"nodes, or one of {', '.join(HYPERPOD_REGIONS)}",
                (("cloud",), ("region",)),
            )
        elif spec.kubernetes.version not in KUBERNETES_VERSIONS:
            yield Finding(
                ("kubernetes", "version"),
                f"HyperPod does not run on Kubernetes {spec.kubernetes.version} yet",
                f"one of {', '.join(KUBERNETES_VERSIONS)}, or no pool of kind: hyperpod",
                (("cloud",), where),
            )
            return


def hyperpod_capacity(spec: PlatformSpec) -> Iterator[Finding]:
    """HyperPod's capacity is bought from SageMaker: on demand or by a training plan. EC2's reservations and
    blocks are not it.
    """
    for path, pool in hyperpods(spec):
        if spec.cloud is Cloud.AWS and pool.capacity not in CAPACITY:
            yield Finding(
                (*path, "capacity"),
                f"HyperPod pools are not bought as `{pool.capacity}`",
                " or ".join(CAPACITY),
                (("cloud",), (*path, "kind")),
            )


def hyperpod_stays(spec: PlatformSpec) -> Iterator[Finding]:
    """An instance group has as many nodes as it is told to have: the cluster autoscaler neither starts nor
    ends them (InstanceCount).
    """
    for path, pool in hyperpods(spec):
        if pool.min_nodes < pool.max_nodes:
            yield Finding(
                (*path, "min_nodes"),
                f"nothing scales a HyperPod pool: its {pool.max_nodes} nodes always run",
                f"{pool.max_nodes}, or fewer max_nodes",
                ((*path, "max_nodes"), (*path, "kind")),
            )


def hyperpod_reaches_out(spec: PlatformSpec) -> Iterator[Finding]:
    """HyperPod's nodes report to SageMaker from inside the network, for which this release makes no endpoint."""
    if spec.cloud is Cloud.AWS and spec.network.nat == "none":
        for path, _ in hyperpods(spec):
            yield Finding(
                ("network", "nat"),
                "HyperPod's nodes cannot reach SageMaker",
                "per-zone or single",
                ((*path, "kind"),),
            )
            return


def hyperpod_labels(spec: PlatformSpec) -> Iterator[Finding]:
    """SageMaker wants a value for every label (ClusterKubernetesConfig, value length 1 to 63), and takes 50
    of them.
    """
    for path, pool in hyperpods(spec):
        for key, value in pool.labels.items():
            if not value:
                yield Finding(
                    (*path, "labels", key),
                    "is empty, which HyperPod does not take",
                    "a value",
                    ((*path, "kind"),),
                )
        if len(pool.labels) > MOST_LABELS:
            yield Finding(
                (*path, "labels"),
                f"{len(pool.labels)} labels are more than HyperPod takes",
                f"at most {MOST_LABELS}",
                ((*path, "kind"),),
            )


MOST_LABELS = 50 - 5
"""Fifty, less those that every pool of the platform has."""


def hyperpods(spec: PlatformSpec) -> Iterator[tuple[Path, GpuPool]]:
    """The pools of this kind and where they stand."""
    for index, pool in enumerate(spec.gpu_pools):
        if pool.kind == "hyperpod":
            yield ("gpu_pools", index), pool


RULES = (hyperpod_is_there, hyperpod_capacity, hyperpod_stays, hyperpod_reaches_out, hyperpod_labels)
