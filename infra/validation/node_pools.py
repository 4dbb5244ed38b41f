"""Rules on node pools: whether the cloud sells the machine, how its capacity is bought, and what its fabric
asks for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainfleet.infra.catalog.machines import Machine, catalogue, machine_for_pool, machines_of
from trainfleet.infra.spec.schema import Capacity, Cloud, GpuPool, PlatformSpec
from trainfleet.infra.validation.finding import Finding
from trainfleet.pydantic_messages import Path
from trainfleet.suggestions import nearest

RESERVING = (Capacity.RESERVED, Capacity.CAPACITY_BLOCK)
RESERVED_NAMES = ("system",)
"""Names of pools that every platform has."""
RESERVED_LABELS = ("kubernetes.io", "k8s.io", "nvidia.com", "skypilot.co", "trainfleet.io")
TRAINING_PLAN = r"arn:aws[a-z-]*:sagemaker:[a-z0-9-]*:\d{12}:training-plan/\S+"
"""How SageMaker writes the ARN of a training plan (AWS::SageMaker::Cluster, TrainingPlanArn)."""
_BLOCK_FAMILIES = ("p4", "p5", "p6")
_LABEL_NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_LABEL_PREFIX = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"


def accelerator_is_sold(spec: PlatformSpec) -> Iterator[Finding]:
    """Not every cloud sells every accelerator, nor every count of one on a machine."""
    for path, pool in _pools(spec):
        if spec.cloud is Cloud.LOCAL or machines_of(
            spec.cloud, pool.accelerator, pool.per_node, kind=pool.kind
        ):
            continue
        sells = "HyperPod has" if pool.kind == "hyperpod" else f"{spec.cloud} sells"
        counts = sorted(
            {
                machine.accelerators_per_node
                for machine in machines_of(spec.cloud, pool.accelerator, kind=pool.kind)
            }
        )
        if counts:
            sold = " or ".join(map(str, counts))
            yield Finding(
                (*path, "per_node"),
                f"{sells} no machine with {pool.per_node} x {pool.accelerator}",
                f"{sold} per node",
                (("cloud",), (*path, "accelerator"), (*path, "kind")),
            )
        else:
            known = sorted({machine.accelerator or "" for machine in machines_of(spec.cloud, kind=pool.kind)})
            match = nearest(pool.accelerator, known)
            offered = f"did you mean `{match}`? " if match else ""
            yield Finding(
                (*path, "accelerator"),
                f"{sells} no `{pool.accelerator}`",
                f"{offered}it has {', '.join(known) or 'none'}",
                (("cloud",), (*path, "kind")),
            )


def instance_type_fits(spec: PlatformSpec) -> Iterator[Finding]:
    """A machine chosen by name must carry what the pool says it carries, or labels and launchers would lie."""
    for path, pool in _pools(spec):
        if not pool.instance_type or spec.cloud is Cloud.LOCAL:
            continue
        where = (*path, "instance_type")
        reads: tuple[Path, ...] = (("cloud",), (*path, "accelerator"), (*path, "per_node"), (*path, "kind"))
        of_cloud = {machine.instance_type: machine for machine in catalogue() if machine.cloud is spec.cloud}
        machine = of_cloud.get(pool.instance_type)
        fitting = [
            each.instance_type
            for each in machines_of(spec.cloud, pool.accelerator, pool.per_node, kind=pool.kind)
        ]
        fix = f"leave it out, or {' or '.join(fitting)}" if fitting else "leave it out"
        if machine is None:
            match = nearest(pool.instance_type, fitting or of_cloud)
            yield Finding(
                where,
                f"`{pool.instance_type}` is not in the catalogue of {spec.cloud}",
                f"did you mean `{match}`?" if match else fix,
                reads,
            )
        elif pool.instance_type not in fitting:
            carries = (
                f"{machine.accelerators_per_node} x {machine.accelerator}"
                if machine.accelerator
                else "no GPU"
            )
            yield Finding(
                where,
                f"{pool.instance_type} carries {carries}, not {pool.per_node} x {pool.accelerator}",
                fix,
                reads,
            )


def fabric_is_there(spec: PlatformSpec) -> Iterator[Finding]:
    """`interconnect: best` on a machine without RDMA would train over plain Ethernet without a word."""
    for path, pool, machine in _machines(spec):
        if pool.interconnect == "best" and machine.rdma == "none":
            others = sorted(
                {
                    each.instance_type
                    for each in machines_of(spec.cloud, pool.accelerator, kind=pool.kind)
                    if each.rdma != "none"
                }
            )
            fix = f"none, or a machine with a fabric: {', '.join(others)}" if others else "none"
            yield Finding(
                (*path, "interconnect"),
                f"{machine.instance_type} has no fabric beyond Ethernet",
                fix,
                _choice(path),
            )


def fabric_is_compact(spec: PlatformSpec) -> Iterator[Finding]:
    """EFA traffic stays inside one subnet, so the nodes must share a zone and should share a placement group
    (EKS guide, EFA).
    """
    for path, pool, machine in _machines(spec):
        if (
            spec.cloud is Cloud.AWS
            and pool.interconnect == "best"
            and machine.rdma == "efa"
            and not pool.compact
        ):
            yield Finding(
                (*path, "compact"),
                "EFA does not reach over zones",
                "true, with interconnect: best",
                (*_choice(path), (*path, "interconnect")),
            )


def nodes_are_in_order(spec: PlatformSpec) -> Iterator[Finding]:
    """A pool that must be larger than it may be."""
    places: list[tuple[Path, int, int]] = [
        (("system_pool",), spec.system_pool.min_nodes, spec.system_pool.max_nodes)
    ]
    places += [(path, pool.min_nodes, pool.max_nodes) for path, pool in _pools(spec)]
    for path, low, high in places:
        if low > high:
            yield Finding(
                (*path, "max_nodes"),
                f"{high} is less than min_nodes {low}",
                f"at least {low}",
                ((*path, "min_nodes"),),
            )


def names_are_unique(spec: PlatformSpec) -> Iterator[Finding]:
    """A pool's name names its node group, its label and its queue."""
    seen: dict[str, Path] = {}
    for path, pool in _pools(spec):
        where = (*path, "name")
        if pool.name in RESERVED_NAMES:
            yield Finding(
                where, f"`{pool.name}` is the name of a pool that every platform has", "another name"
            )
        elif pool.name in seen:
            yield Finding(
                where,
                f"`{pool.name}` is already the name of another pool",
                "a name of its own",
                (seen[pool.name],),
            )
        else:
            seen[pool.name] = where


def capacity_is_sold(spec: PlatformSpec) -> Iterator[Finding]:
    """Flex-start and queued provisioning are Google's; capacity blocks are Amazon's, for its P machines (EC2
    guide, Capacity Blocks).
    """
    for path, pool in _pools(spec):
        where = (*path, "capacity")
        if spec.cloud is Cloud.AWS and pool.capacity in (Capacity.FLEX_START, Capacity.QUEUED):
            yield Finding(
                where,
                f"aws does not sell `{pool.capacity}`",
                "on-demand, spot, reserved or capacity-block",
                (("cloud",),),
            )
        if spec.cloud in (Cloud.GCP, Cloud.AZURE) and pool.capacity is Capacity.CAPACITY_BLOCK:
            yield Finding(where, f"{spec.cloud} does not sell `{pool.capacity}`", "reserved", (("cloud",),))
    for path, pool, machine in _machines(spec):
        if pool.kind == "hyperpod":
            continue
        if (
            spec.cloud is Cloud.AWS
            and pool.capacity is Capacity.CAPACITY_BLOCK
            and not machine.instance_type.startswith(_BLOCK_FAMILIES)
        ):
            yield Finding(
                (*path, "capacity"),
                f"there are no capacity blocks of {machine.instance_type}",
                "on-demand, spot or reserved",
                _choice(path),
            )


def price_is_known(spec: PlatformSpec) -> Iterator[Finding]:
    """AWS lists a price wherever it sells (p5e has none on demand, p5.4xlarge none as spot); a budget needs
    one on every cloud.

    HyperPod's prices stand in SageMaker's own list, which the catalogue does not have: `trainfleet spec
    check` says what is not in its sums.
    """
    for path, pool, machine in _machines(spec):
        if (
            pool.kind == "hyperpod"
            or pool.capacity not in (Capacity.ON_DEMAND, Capacity.SPOT)
            or machine.usd_per_hour(pool.capacity) is not None
        ):
            continue
        others = [
            each.instance_type
            for each in machines_of(spec.cloud, pool.accelerator, pool.per_node, kind=pool.kind)
            if each.usd_per_hour(pool.capacity) is not None
        ]
        fix = f"{' or '.join(others)}, or another capacity" if others else "another capacity"
        reads = (*_choice(path), (*path, "capacity"))
        if spec.cloud is Cloud.AWS:
            yield Finding(
                (*path, "capacity"),
                f"aws lists no {pool.capacity} price of {machine.instance_type}, so it is not sold this way",
                fix,
                reads,
            )
        elif spec.budget is not None and not _bounded(spec, pool, machine):
            yield Finding(
                (*path, "capacity"),
                f"no {pool.capacity} price of {machine.instance_type} is known, which the budget needs",
                f"{fix}, or no budget",
                reads,
            )


def _bounded(spec: PlatformSpec, pool: GpuPool, machine: Machine) -> bool:
    """Azure's spot nodes are bought for at most the on-demand price (AKS, spotMaxPrice -1), so with one the
    budget's worst case is known.
    """
    return (
        spec.cloud is Cloud.AZURE
        and pool.capacity is Capacity.SPOT
        and machine.usd_per_hour_on_demand is not None
    )


def reservation_belongs(spec: PlatformSpec) -> Iterator[Finding]:
    """Reserved capacity is launched into by its id; spot and on-demand nodes cannot use a reservation that
    names its users.
    """
    for path, pool in _pools(spec):
        where = (*path, "reservation")
        reads = ((*path, "capacity"), ("cloud",), (*path, "kind"))
        wanted, pattern, fix = _reservation(spec, pool)
        if pool.capacity in RESERVING and not pool.reservation:
            yield Finding(
                where, f"is missing: capacity `{pool.capacity}` is launched into a {wanted}", fix, reads
            )
        elif pool.capacity not in RESERVING and pool.reservation:
            sold = "reserved or capacity-block" if spec.cloud is Cloud.AWS else "reserved"
            yield Finding(
                where,
                f"means nothing with capacity `{pool.capacity}`",
                f"leave it out, or capacity: {sold}",
                reads,
            )
        elif pool.reservation and not re.fullmatch(pattern, pool.reservation):
            yield Finding(where, f"`{pool.reservation}` is not the id of a {wanted}", fix, reads)


def _reservation(spec: PlatformSpec, pool: GpuPool) -> tuple[str, str, str]:
    """What a pool's reservation is, how it is written, and in words. GCP's and Azure's own rules say how
    theirs are written.
    """
    if pool.kind == "hyperpod":
        return (
            "training plan",
            TRAINING_PLAN,
            "its ARN, for example arn:aws:sagemaker:us-east-2:111122223333:training-plan/my-plan",
        )
    if spec.cloud is Cloud.AWS:
        return (
            "capacity reservation",
            r"cr-([0-9a-f]{8}|[0-9a-f]{17})",
            "its id: cr- and 17 digits or letters a to f, for example cr-0123456789abcdef0",
        )
    return "reservation", r".+", "its name" if spec.cloud is Cloud.GCP else "its resource id"


def reservations_are_not_shared(spec: PlatformSpec) -> Iterator[Finding]:
    """Two pools on one reservation would each count on all of it."""
    seen: dict[str, Path] = {}
    for path, pool in _pools(spec):
        where = (*path, "reservation")
        if pool.reservation and pool.reservation in seen:
            yield Finding(
                where,
                f"`{pool.reservation}` is already another pool's",
                "a reservation of its own",
                (seen[pool.reservation],),
            )
        seen.setdefault(pool.reservation, where)


def blocks_start_empty(spec: PlatformSpec) -> Iterator[Finding]:
    """A capacity block exists between its start and its end only; a node group that must have nodes fails
    outside of it.
    """
    for path, pool in _pools(spec):
        if pool.capacity is Capacity.CAPACITY_BLOCK and pool.min_nodes > 0:
            yield Finding(
                (*path, "min_nodes"),
                "a capacity block has no nodes before it starts and after it ends",
                "0",
                ((*path, "capacity"),),
            )


def labels_are_free(spec: PlatformSpec) -> Iterator[Finding]:
    """Labels under these domains say what a node is to Kubernetes, the GPU plugins, SkyPilot and Trainfleet;
    others are the team's.

    On cloud: local they are those that the nodes have already, whosever they are.
    """
    for path, pool in _pools(spec):
        for key, value in pool.labels.items():
            where = (*path, "labels", key)
            domain, _, name = key.rpartition("/")
            owner = next(
                (each for each in RESERVED_LABELS if domain == each or domain.endswith(f".{each}")), None
            )
            if owner and spec.cloud is not Cloud.LOCAL:
                yield Finding(
                    where, f"labels of {owner} are set by the platform", "a domain of your own, or none"
                )
            elif not re.fullmatch(_LABEL_NAME, name) or (
                ("/" in key) and not re.fullmatch(_LABEL_PREFIX, domain)
            ):
                yield Finding(
                    where,
                    "is not the key of a label",
                    "[domain/]name, the name of letters, digits, `-`, `_` and `.`, at most 63",
                )
            elif value and not re.fullmatch(_LABEL_NAME, value):
                yield Finding(
                    where,
                    f"`{value}` is not the value of a label",
                    "letters, digits, `-`, `_` and `.`, at most 63",
                )


def _pools(spec: PlatformSpec) -> Iterator[tuple[Path, GpuPool]]:
    for index, pool in enumerate(spec.gpu_pools):
        yield ("gpu_pools", index), pool


def _machines(spec: PlatformSpec) -> Iterator[tuple[Path, GpuPool, Machine]]:
    """The pools whose machine the cloud sells; the others have their own finding."""
    if spec.cloud is Cloud.LOCAL:
        return
    for path, pool in _pools(spec):
        try:
            yield path, pool, machine_for_pool(spec.cloud, pool)
        except LookupError:
            continue


def _choice(path: Path) -> tuple[Path, ...]:
    """What the choice of a pool's machine rests on."""
    return (
        ("cloud",),
        *(
            (*path, name)
            for name in ("accelerator", "per_node", "instance_type", "capacity", "interconnect", "kind")
        ),
    )
