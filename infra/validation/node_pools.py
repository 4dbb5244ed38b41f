"""Rules on GPU pools: whether the cloud sells the machine, and how its capacity is bought."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainfleet.api_limits import limit
from trainfleet.infra.catalog.machines import Machine, catalogue, machines_of, sells_machines
from trainfleet.infra.catalog.regions import known_in, offered_in
from trainfleet.infra.cloud_support import ReservationId, support
from trainfleet.infra.spec.node_group import RESERVING, NodeGroup
from trainfleet.infra.spec.schema import Capacity, PlatformSpec
from trainfleet.infra.validation.finding import Finding
from trainfleet.infra.validation.pools import CLOUD, machine_choice, pools, pools_with_machine
from trainfleet.pydantic_messages import Path
from trainfleet.suggestions import nearest

EXAMPLE = "machine: {vcpu: 96, memory_gib: 768, gpu_memory_gib: 80}"
FACTS = "instance_type and its facts in `machine`"
RESERVED_NAMES = ("system",)
"""Names of pools that every platform has."""
RESERVED_LABELS = ("kubernetes.io", "k8s.io", "nvidia.com", "skypilot.co", "trainfleet.io")
_LABEL_NAME: str = limit("kubernetes.label", "pattern")
_LABEL_PREFIX: str = limit("kubernetes.label_prefix", "pattern")
_LONGEST_LABEL_PREFIX: int = limit("kubernetes.label_prefix", "maxLength")


def kind_is_offered(spec: PlatformSpec) -> Iterator[Finding]:
    """HyperPod is a service of AWS."""
    offered = support(spec.cloud).pool_kinds
    for path, pool in pools(spec):
        if pool.kind not in offered:
            what = f"{spec.cloud} has no pools of kind `{pool.kind}`"
            yield Finding((*path, "kind"), what, " or ".join(offered), (CLOUD,))


def accelerator_is_sold(spec: PlatformSpec) -> Iterator[Finding]:
    """The catalogue has a machine with the accelerators, or the pool states its facts."""
    if not sells_machines(spec.cloud):
        return
    for path, pool in pools(spec):
        if pool.machine or machines_of(spec.cloud, pool.accelerator, pool.per_node, kind=pool.kind):
            continue
        seller = "HyperPod" if pool.kind == "hyperpod" else spec.cloud
        same = machines_of(spec.cloud, pool.accelerator, kind=pool.kind)
        if same:
            counts = sorted({machine.accelerators_per_node for machine in same})
            yield Finding(
                (*path, "per_node"),
                f"no machine with {pool.per_node} x {pool.accelerator} is in this catalogue of {seller}",
                f"{' or '.join(map(str, counts))} per node, or {FACTS}",
                (CLOUD, (*path, "accelerator"), (*path, "kind")),
            )
        else:
            known = sorted({machine.accelerator or "" for machine in machines_of(spec.cloud, kind=pool.kind)})
            match = nearest(pool.accelerator, known)
            suggestion = f"did you mean `{match}`? " if match else ""
            yield Finding(
                (*path, "accelerator"),
                f"`{pool.accelerator}` is not in this catalogue of {seller}",
                f"{suggestion}one of {', '.join(known) or 'none'}, or {FACTS}",
                (CLOUD, (*path, "kind")),
            )


def instance_type_fits(spec: PlatformSpec) -> Iterator[Finding]:
    """The labels of a pool and its launchers rely on the accelerator and count that the pool states."""
    if not sells_machines(spec.cloud):
        return
    yield from _facts_are_whole(spec)
    of_cloud = {machine.instance_type: machine for machine in catalogue() if machine.cloud is spec.cloud}
    for path, pool in pools(spec):
        if not pool.instance_type or pool.machine:
            continue
        where = (*path, "instance_type")
        reads: tuple[Path, ...] = (CLOUD, (*path, "accelerator"), (*path, "per_node"), (*path, "kind"))
        machine = of_cloud.get(pool.instance_type)
        fitting = [
            each.instance_type
            for each in machines_of(spec.cloud, pool.accelerator, pool.per_node, kind=pool.kind)
        ]
        fix = f"leave it out, or {' or '.join(fitting)}" if fitting else "leave it out"
        if machine is None:
            match = nearest(pool.instance_type, fitting or of_cloud)
            what = f"`{pool.instance_type}` is not in this catalogue of {spec.cloud}"
            advice = f"did you mean `{match}`?" if match else fix
            yield Finding(where, what, f"{advice} Or state its facts: {EXAMPLE}", reads)
        elif pool.instance_type not in fitting:
            gpus = f"{machine.accelerators_per_node} x {machine.accelerator}"
            carries = gpus if machine.accelerator else "no GPU"
            what = f"{pool.instance_type} carries {carries}, not {pool.per_node} x {pool.accelerator}"
            yield Finding(where, what, fix, reads)


def _facts_are_whole(spec: PlatformSpec) -> Iterator[Finding]:
    for path, pool in pools(spec):
        where = (*path, "machine")
        if pool.machine is None:
            continue
        if not pool.instance_type:
            what = "is missing: `machine` states the facts of one"
            yield Finding((*path, "instance_type"), what, "the cloud's name of the machine", (where,))
        if (pool.machine.rdma == "none") != (pool.machine.rdma_nics == 0):
            what = f"{pool.machine.rdma_nics} interfaces do not go with rdma: {pool.machine.rdma}"
            yield Finding((*where, "rdma_nics"), what, "both, or neither", ((*where, "rdma"),))


def machine_is_in_the_region(spec: PlatformSpec) -> Iterator[Finding]:
    """No cloud has every machine in every region, and a pool that starts at zero shows it with the first job
    (infra/<cloud>/regions.toml).
    """
    for path, pool, machine in pools_with_machine(spec):
        if machine.declared or known_in(machine, spec.region):
            continue
        name = "instance_type" if pool.instance_type else "accelerator"
        yield Finding(
            (*path, name),
            f"{machine.instance_type} in {spec.region} is not in this catalogue",
            f"one of {', '.join(offered_in(machine))}, or {FACTS}",
            (*machine_choice(path), ("region",)),
        )


def fabric_exists(spec: PlatformSpec) -> Iterator[Finding]:
    """Without RDMA, `interconnect: best` would silently train over plain Ethernet."""
    for path, pool, machine in pools_with_machine(spec):
        if pool.interconnect == "best" and machine.rdma == "none":
            others = sorted(
                each.instance_type
                for each in machines_of(spec.cloud, pool.accelerator, kind=pool.kind)
                if each.rdma != "none"
            )
            fix = f"none, or a machine with a fabric: {', '.join(others)}" if others else "none"
            what = f"{machine.instance_type} has no fabric beyond Ethernet"
            yield Finding((*path, "interconnect"), what, fix, machine_choice(path))


def nodes_are_in_order(spec: PlatformSpec) -> Iterator[Finding]:
    """The minimum of a pool cannot be larger than its maximum."""
    sizes: list[tuple[Path, int, int]] = [
        (("system_pool",), spec.system_pool.min_nodes, spec.system_pool.max_nodes)
    ]
    for index, pool in enumerate(spec.gpu_pools):
        sizes.append((("gpu_pools", index), pool.min_nodes, pool.max_nodes))
    for path, low, high in sizes:
        if low > high:
            what = f"{high} is less than min_nodes {low}"
            yield Finding((*path, "max_nodes"), what, f"at least {low}", ((*path, "min_nodes"),))


def names_are_unique(spec: PlatformSpec) -> Iterator[Finding]:
    """A pool's name is also the name of its node group, label and queue."""
    seen: dict[str, Path] = {}
    for index, pool in enumerate(spec.gpu_pools):
        where: Path = ("gpu_pools", index, "name")
        if pool.name in RESERVED_NAMES:
            yield Finding(where, f"`{pool.name}` is a pool that every platform has", "another name")
        elif pool.name in seen:
            what = f"`{pool.name}` is already the name of another pool"
            yield Finding(where, what, "a unique name", (seen[pool.name],))
        else:
            seen[pool.name] = where


def capacity_is_sold(spec: PlatformSpec) -> Iterator[Finding]:
    """Each cloud sells its own kinds of capacity."""
    cloud = support(spec.cloud)
    for path, pool in pools(spec):
        if cloud.creates_cluster and pool.capacity not in cloud.capacities:
            fix = f"one of {', '.join(cloud.capacities)}"
            yield Finding((*path, "capacity"), f"{spec.cloud} does not sell `{pool.capacity}`", fix, (CLOUD,))


def price_is_known(spec: PlatformSpec) -> Iterator[Finding]:
    """A budget needs the price of every pool. A cloud that lists all its prices does not sell the rest.

    HyperPod's prices are in SageMaker's own list, which the catalogue lacks: `trainfleet spec check` reports
    what its sums leave out.
    """
    cloud = support(spec.cloud)
    for path, pool, machine in pools_with_machine(spec):
        bought = pool.capacity in (Capacity.ON_DEMAND, Capacity.SPOT)
        known = machine.declared or machine.usd_per_hour(pool.capacity) is not None
        if pool.kind == "hyperpod" or not bought or known:
            continue
        others = [
            each.instance_type
            for each in machines_of(spec.cloud, pool.accelerator, pool.per_node, kind=pool.kind)
            if each.usd_per_hour(pool.capacity) is not None
        ]
        fix = f"{' or '.join(others)}, or another capacity" if others else "another capacity"
        reads, where = (*machine_choice(path), (*path, "capacity")), (*path, "capacity")
        if cloud.unpriced_is_unsold:
            price = f"{pool.capacity} price of {machine.instance_type}"
            yield Finding(where, f"no {price} is in this catalogue, which has {spec.cloud}'s", fix, reads)
        elif spec.budget is not None and not (cloud.spot_is_capped and _capped(pool, machine)):
            what = f"no {pool.capacity} price of {machine.instance_type} is known, which the budget needs"
            yield Finding(where, what, f"{fix}, or no budget", reads)


def _capped(pool: NodeGroup, machine: Machine) -> bool:
    """Whether the on-demand price is an upper bound of the pool's price."""
    return pool.capacity is Capacity.SPOT and machine.usd_per_hour_on_demand is not None


def reservation_belongs(spec: PlatformSpec) -> Iterator[Finding]:
    """Reserved capacity is used by its id. On-demand and spot nodes cannot use a targeted reservation."""
    cloud = support(spec.cloud)
    reserving = " or ".join(each for each in cloud.capacities if each in RESERVING) or "reserved"
    for path, pool in pools(spec):
        where = (*path, pool.reservation_key)
        reads = ((*path, "capacity"), CLOUD, (*path, "kind"))
        expected = cloud.reservations.get(pool.kind, ReservationId())
        if pool.capacity in RESERVING and not pool.reservation:
            what = f"is missing: capacity `{pool.capacity}` requires a {expected.noun}"
            yield Finding(where, what, expected.example, reads)
        elif pool.capacity not in RESERVING and pool.reservation:
            what = f"has no effect with capacity `{pool.capacity}`"
            yield Finding(where, what, f"leave it out, or capacity: {reserving}", reads)
        elif pool.reservation and not re.fullmatch(expected.pattern, pool.reservation):
            what = f"`{pool.reservation}` is not the id of a {expected.noun}"
            yield Finding(where, what, expected.example, reads)


def placement_group_belongs(spec: PlatformSpec) -> Iterator[Finding]:
    """Only nodes of a reservation that was created in a placement group name one (EC2 user guide, Capacity
    Reservations with placement groups). A capacity block is placed already, and accepts none.
    """
    for path, pool in pools(spec):
        known = support(spec.cloud).reservations.get(pool.kind, ReservationId())
        if pool.placement_group and not (known.in_placement_group and pool.capacity is Capacity.RESERVED):
            what = f"has no effect with capacity `{pool.capacity}` of kind `{pool.kind}` on {spec.cloud}"
            reads = ((*path, "capacity"), CLOUD, (*path, "kind"))
            yield Finding((*path, "placement_group"), what, "leave it out", reads)


def fast_image_pull_belongs(spec: PlatformSpec) -> Iterator[Finding]:
    """Only EKS's own node groups have the feature gate. GKE streams images on every pool already."""
    for path, pool in pools(spec):
        if pool.fast_image_pull and not (support(spec.cloud).fast_image_pull and pool.kind == "nodes"):
            what = f"has no effect on pools of kind `{pool.kind}` on {spec.cloud}"
            yield Finding((*path, "fast_image_pull"), what, "leave it out", (CLOUD, (*path, "kind")))


def reservations_are_not_shared(spec: PlatformSpec) -> Iterator[Finding]:
    """Two pools with one reservation would each count all of it."""
    seen: dict[str, Path] = {}
    for path, pool in pools(spec):
        where = (*path, pool.reservation_key)
        if pool.reservation and pool.reservation in seen:
            what = f"`{pool.reservation}` already belongs to another pool"
            yield Finding(where, what, "a reservation of its own", (seen[pool.reservation],))
        seen.setdefault(pool.reservation, where)


def blocks_start_empty(spec: PlatformSpec) -> Iterator[Finding]:
    """A capacity block exists only between its start and its end. A node group that needs nodes fails outside
    it.
    """
    for path, pool in pools(spec):
        if pool.capacity is Capacity.CAPACITY_BLOCK and pool.min_nodes > 0:
            what = "a capacity block has no nodes before it starts and after it ends"
            yield Finding((*path, "min_nodes"), what, "0", ((*path, "capacity"),))


def labels_are_free(spec: PlatformSpec) -> Iterator[Finding]:
    """Labels of these domains belong to Kubernetes, the GPU plugins, SkyPilot and Trainfleet.

    Nodes of an existing cluster already have their labels, so there any label can select them.
    """
    creates = support(spec.cloud).creates_cluster
    for path, pool in pools(spec):
        for key, value in pool.labels.items():
            where = (*path, "labels", key)
            domain, _, name = key.rpartition("/")
            owner = next((each for each in RESERVED_LABELS if f".{domain}".endswith(f".{each}")), None)
            prefixed = "/" in key
            if owner and creates:
                what = f"labels of {owner} are set by the platform"
                yield Finding(where, what, "a domain of your own, or none")
            elif not re.fullmatch(_LABEL_NAME, name) or (
                prefixed and (len(domain) > _LONGEST_LABEL_PREFIX or not re.fullmatch(_LABEL_PREFIX, domain))
            ):
                fix = "[domain/]name, the name of letters, digits, `-`, `_` and `.`, at most 63"
                yield Finding(where, "is not a valid label key", fix)
            elif value and not re.fullmatch(_LABEL_NAME, value):
                fix = "letters, digits, `-`, `_` and `.`, at most 63"
                yield Finding(where, f"`{value}` is not a valid label value", fix)
