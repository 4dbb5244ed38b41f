"""Queue: Kueue with one cluster queue whose quotas are the pools at their largest, and the local queue of
trainings.

A job starts when all its nodes are free, and in a pool with a provisioning class when they have been
provisioned. Every flavor of a resource group must list the same resources, and a pod of no pool (a Ray head)
gets the first flavor that fits.
"""

from __future__ import annotations

from typing import Any

import pulumi

from trainfleet.infra.catalog.machines import Machine, system_machine
from trainfleet.infra.kubernetes.charts import KUEUE, release
from trainfleet.infra.kubernetes.custom import custom
from trainfleet.infra.kubernetes.features import LayerFeatures
from trainfleet.infra.kubernetes.manifest_model import document
from trainfleet.infra.kubernetes.names import PRIORITIES, QUEUE, QUEUE_NAMESPACE
from trainfleet.infra.kubernetes.topology import flavor_name, topology_of
from trainfleet.infra.kubernetes.values.common import Toleration
from trainfleet.infra.kubernetes.values.queue import NODE_START, Selector, kueue
from trainfleet.infra.platform import TRAINING_NAMESPACE, Platform, Pool
from trainfleet.infra.spec.node_group import POOL_LABEL
from trainfleet.infra.spec.schema import Capacity, PlatformSpec

API_VERSION = "kueue.x-k8s.io/v1beta2"
GPU_RESOURCE = "nvidia.com/gpu"
SYSTEM_FLAVOR = "system"
FLEX_START_WAIT = "168h"
"""Flex-start nodes come when there is capacity, which takes hours or days. A job that is evicted meanwhile
loses its place.
"""
UNCOUNTED = ("1000000", "1000000Gi")
"""CPU and memory of unknown machines (an existing cluster), so that only GPUs are limited."""


@document
class FlavorSpec:
    node_labels: dict[str, str]
    tolerations: tuple[Toleration, ...]
    topology_name: str | None = None


@document
class Quota:
    name: str
    nominal_quota: str


@document
class Flavor:
    name: str
    resources: tuple[Quota, ...]


@document
class ResourceGroup:
    covered_resources: tuple[str, ...]
    flavors: tuple[Flavor, ...]


@document
class Preemption:
    within_cluster_queue: str
    reclaim_within_cohort: str


@document
class FlavorCheck:
    name: str
    on_flavors: tuple[str, ...]


@document
class AdmissionChecks:
    admission_checks: tuple[FlavorCheck, ...]


@document
class ClusterQueueSpec:
    namespace_selector: Selector
    resource_groups: tuple[ResourceGroup, ...]
    queueing_strategy: str
    preemption: Preemption
    admission_checks_strategy: AdmissionChecks | None = None


@document
class CheckParameters:
    api_group: str
    kind: str
    name: str


@document
class AdmissionCheckSpec:
    controller_name: str
    parameters: CheckParameters


@document
class ProvisioningSpec:
    provisioning_class_name: str
    managed_resources: tuple[str, ...]


@document
class LocalQueueSpec:
    cluster_queue: str


class Queue(pulumi.ComponentResource):
    """The chart, a flavor per pool, the queues and the priorities. Empty without a queue or GPU pool."""

    def __init__(
        self, platform: Platform, spec: PlatformSpec, features: LayerFeatures, opts: pulumi.ResourceOptions
    ) -> None:
        super().__init__("trainfleet:kubernetes:Queue", f"{spec.name}-queue", None, opts)
        self._spec = spec
        if features.queue:
            values = kueue(
                monitored=features.monitoring,
                start_within=start_within(platform),
                priority=features.own_priority,
            )
            chart = release(f"{spec.name}-kueue", KUEUE, QUEUE_NAMESPACE, values, parent=self)
            flavors = [self._resource("ResourceFlavor", SYSTEM_FLAVOR, [chart], {"spec": FlavorSpec({}, ())})]
            flavors += [self._flavor(groups, chart) for groups in platform.groups_by_pool()]
            checks = [
                self._provisioning(name, chart)
                for name in sorted({pool.provisioning_class for pool in platform.pools} - {""})
            ]
            queued = {"spec": cluster_queue(platform, spec)}
            cluster = self._resource("ClusterQueue", QUEUE, [*flavors, *checks], queued)
            self._resource(
                "LocalQueue", QUEUE, [cluster], {"spec": LocalQueueSpec(QUEUE)}, TRAINING_NAMESPACE
            )
            for name, value in PRIORITIES.items():
                body = {"value": value, "description": f"Trainings of priority {name.rpartition('-')[2]}"}
                self._resource("WorkloadPriorityClass", name, [chart], body)
        self.register_outputs({})

    def _flavor(self, groups: tuple[Pool, ...], chart: pulumi.Resource) -> pulumi.Resource:
        """The flavor of a pool, after its topology if it has one."""
        name, topology = flavor_name(groups), topology_of(groups[0])
        after = [chart]
        if topology is not None:
            after = [self._resource("Topology", name, after, {"spec": topology})]
        return self._resource("ResourceFlavor", name, after, {"spec": flavor(groups)})

    def _provisioning(self, class_name: str, chart: pulumi.Resource) -> pulumi.Resource:
        """A check that admits a job once its ProvisioningRequest got all nodes (Kueue documentation,
        provisioning admission check controller).
        """
        name = check_name(class_name)
        request = ProvisioningSpec(class_name, (GPU_RESOURCE,))
        config = self._resource("ProvisioningRequestConfig", name, [chart], {"spec": request})
        parameters = CheckParameters(API_VERSION.partition("/")[0], "ProvisioningRequestConfig", name)
        check = AdmissionCheckSpec("kueue.x-k8s.io/provisioning-request", parameters)
        return self._resource("AdmissionCheck", name, [config], {"spec": check})

    def _resource(
        self, kind: str, name: str, after: list[pulumi.Resource], body: Any, namespace: str = ""
    ) -> pulumi.Resource:
        metadata = {"name": name, "namespace": namespace} if namespace else {"name": name}
        return custom(
            f"{self._spec.name}-kueue-{kind.lower()}-{name}",
            f"{API_VERSION}:{kind}",
            metadata,
            body,
            parent=self,
            depends_on=after,
        )


def check_name(class_name: str) -> str:
    """The name of the admission check of a provisioning class."""
    return class_name.partition(".")[0]


def start_within(platform: Platform) -> str:
    """How long an admitted job may wait for its pods before it returns its quota."""
    waits = any(pool.spec.capacity is Capacity.FLEX_START for pool in platform.pools)
    return FLEX_START_WAIT if waits else NODE_START


def flavor(groups: tuple[Pool, ...]) -> FlavorSpec:
    """The nodes of a pool. Kueue adds the labels and tolerations to the pods that it admits.

    A pool with several node groups is one flavor, so that a job may use all of them and its quota limits them
    together. The scheduler and the autoscaler choose among them.
    """
    pool = groups[0]
    labels = {POOL_LABEL: pool.labels[POOL_LABEL]} if POOL_LABEL in pool.labels else pool.labels
    extra = [each for group in groups for each in group.tolerations]
    given = (
        Toleration(operator="Exists", key=GPU_RESOURCE, effect="NoSchedule"),
        *(Toleration(**each) for index, each in enumerate(extra) if each not in extra[:index]),
    )
    name = None if topology_of(pool) is None else flavor_name(groups)
    return FlavorSpec({**labels, **pool.selector}, given, name)


def cluster_queue(platform: Platform, spec: PlatformSpec) -> ClusterQueueSpec:
    """Every pool at its largest. The system pool is first and has no GPU, so only heads fit."""
    fabrics = sorted({pool.rdma_resource for pool in platform.pools if pool.rdma_resource})
    covered = ("cpu", "memory", GPU_RESOURCE, *fabrics)
    try:
        system: Machine | None = system_machine(spec)
    except LookupError:
        system = None
    flavors = [Flavor(SYSTEM_FLAVOR, _quotas(covered, _amounts(system, spec.system_pool.max_nodes)))]
    for groups in platform.groups_by_pool():
        pool = groups[0]
        nodes = pool.spec.max_nodes
        own = {GPU_RESOURCE: str(pool.spec.per_node * nodes)}
        if pool.rdma_resource:
            own[pool.rdma_resource] = str(pool.machine.rdma_nics * nodes)
        amounts = {**_amounts(pool.machine, nodes), **own}
        flavors.append(Flavor(flavor_name(groups), _quotas(covered, amounts)))
    return ClusterQueueSpec(
        namespace_selector=Selector({"kubernetes.io/metadata.name": TRAINING_NAMESPACE}),
        resource_groups=(ResourceGroup(covered, tuple(flavors)),),
        # A small job may pass a large one that waits; a large one of high priority preempts.
        queueing_strategy="BestEffortFIFO",
        preemption=Preemption("LowerPriority", "Never"),
        admission_checks_strategy=_checks(platform),
    )


def _checks(platform: Platform) -> AdmissionChecks | None:
    """The check of each provisioning class, on the flavors of its pools."""
    classes = sorted({pool.provisioning_class for pool in platform.pools} - {""})
    checks = tuple(
        FlavorCheck(
            check_name(name),
            tuple(
                flavor_name(groups)
                for groups in platform.groups_by_pool()
                if name in {group.provisioning_class for group in groups}
            ),
        )
        for name in classes
    )
    return AdmissionChecks(checks) if checks else None


def _amounts(machine: Machine | None, nodes: int) -> dict[str, str]:
    """CPU and memory of `nodes` machines, which is slightly more than pods can use."""
    if machine is None or not machine.vcpu or not machine.memory_gib:
        return dict(zip(("cpu", "memory"), UNCOUNTED, strict=True))
    return {"cpu": str(machine.vcpu * nodes), "memory": f"{int(machine.memory_gib * nodes)}Gi"}


def _quotas(covered: tuple[str, ...], amounts: dict[str, str]) -> tuple[Quota, ...]:
    return tuple(Quota(name, amounts.get(name, "0")) for name in covered)
