"""GPU pools: what schedulers, drivers and fabrics require of them.

A GPU pool is recognized by its machine type, image, labels or taint.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from trainfleet.policies.engine.accessors import at, is_false, is_true, listed, number, numbered
from trainfleet.policies.engine.rule import ADVICE, FROM_STAGING, UNKNOWN, Json, Resource, Rule, Violation
from trainfleet.policies.resource_types import AKS, AKS_NODES, EKS_NODES, GKE, GKE_NODES, LAUNCH_TEMPLATE

GPU_TAINT = "nvidia.com/gpu"
GPU_PRESENT = "nvidia.com/gpu.present"
ACCELERATOR = "skypilot.co/accelerator"
EC2_MACHINES = re.compile(r"^(p|gr?)\d")
"""EC2 families with NVIDIA GPUs: P, G and Gr, such as p6-b200, g6e and gr6 (EC2: accelerated computing)."""
GKE_MACHINES = ("a2-", "a3-", "a4-", "a4x-", "g2-", "g4-")
AZURE_MACHINES = ("Standard_NC", "Standard_ND", "Standard_NG", "Standard_NV")
COLOCATED_ZONES = 1
"""Number of zones for nodes that must be close together."""


def _text(value: Json) -> str:
    return "" if value is None or value is UNKNOWN else str(value)


def eks_gpu(resource: Resource) -> bool:
    labels, taints = resource.props.get("labels") or {}, listed(resource.props.get("taints"))
    tainted = any(taint.get("key") == GPU_TAINT for taint in taints)
    return (
        tainted
        or any(EC2_MACHINES.match(_text(each)) for each in listed(resource.props.get("instanceTypes")))
        or GPU_PRESENT in labels
        or ACCELERATOR in labels
        or "NVIDIA" in _text(resource.props.get("amiType"))
    )


def gke_gpu(resource: Resource) -> bool:
    node = resource.props.get("nodeConfig") or {}
    return (
        bool(listed(node.get("guestAccelerators")))
        or _text(node.get("machineType")).startswith(GKE_MACHINES)
        or GPU_PRESENT in (node.get("labels") or {})
    )


def aks_gpu(resource: Resource) -> bool:
    return _text(resource.props.get("vmSize")).startswith(AZURE_MACHINES) or GPU_PRESENT in (
        resource.props.get("nodeLabels") or {}
    )


def _label_violations(labels: Json, *, skypilot: bool) -> Iterator[Violation]:
    if labels.get(GPU_PRESENT) != "true":
        yield Violation(f"label {GPU_PRESENT}=true is missing: no device plugin would run on the nodes")
    accelerator = labels.get(ACCELERATOR)
    if not skypilot:
        if accelerator is not None:
            yield Violation(
                f"label {ACCELERATOR} is set: on GKE SkyPilot reads cloud.google.com/gke-accelerator, "
                "and a second label misleads it"
            )
    elif accelerator is None:
        yield Violation(f"label {ACCELERATOR} is missing: SkyPilot would not find the pool at zero nodes")
    elif accelerator != accelerator.lower():
        yield Violation(f"label {ACCELERATOR}={accelerator} is not lower case: SkyPilot skips it")


def eks_gpu_nodes(resource: Resource) -> Iterable[Violation]:
    """Require the taint and the labels on a GPU node group."""
    if eks_gpu(resource):
        yield from _eks_taint_and_labels(resource)


def eks_gpu_by_template(resources: Sequence[Resource]) -> Iterable[Violation]:
    """Report node groups that are GPU pools only by the machine of their launch template, where capacity
    blocks require it.
    """
    gpu_templates = {
        one.urn
        for one in resources
        if one.kind == LAUNCH_TEMPLATE and EC2_MACHINES.match(_text(one.props.get("instanceType")))
    }
    for pool in resources:
        if (
            pool.kind == EKS_NODES
            and not eks_gpu(pool)
            and gpu_templates & set(pool.depends.get("launchTemplate", ()))
        ):
            for violation in _eks_taint_and_labels(pool):
                yield Violation(violation.message, pool.urn, pool.name)


def _eks_taint_and_labels(resource: Resource) -> Iterator[Violation]:
    if not any(
        taint.get("key") == GPU_TAINT and taint.get("effect") == "NO_SCHEDULE"
        for taint in listed(resource.props.get("taints"))
    ):
        yield Violation(
            f"no taint {GPU_TAINT} with effect NO_SCHEDULE: pods without a GPU would fill GPU nodes"
        )
    yield from _label_violations(resource.props.get("labels") or {}, skypilot=True)


def gke_gpu_nodes(resource: Resource) -> Iterable[Violation]:
    if not gke_gpu(resource):
        return
    node = resource.props.get("nodeConfig") or {}
    if not any(
        taint.get("key") == GPU_TAINT and taint.get("effect") == "NO_SCHEDULE"
        for taint in listed(node.get("taints"))
    ):
        yield Violation(
            f"nodeConfig.taints has no {GPU_TAINT} with effect NO_SCHEDULE: "
            "pods without a GPU would fill GPU nodes"
        )
    yield from _label_violations(node.get("labels") or {}, skypilot=False)


def aks_gpu_nodes(resource: Resource) -> Iterable[Violation]:
    if not aks_gpu(resource):
        return
    taints = [str(taint) for taint in listed(resource.props.get("nodeTaints"))]
    if not any(taint.startswith(f"{GPU_TAINT}=") and taint.endswith(":NoSchedule") for taint in taints):
        yield Violation(
            f"nodeTaints has no {GPU_TAINT} with effect NoSchedule: pods without a GPU would fill GPU nodes"
        )
    yield from _label_violations(resource.props.get("nodeLabels") or {}, skypilot=True)


def eks_driver(resource: Resource) -> Iterable[Violation]:
    image = resource.props.get("amiType")
    if (
        eks_gpu(resource)
        and image is not None
        and image != "CUSTOM"
        and not any(part in image for part in ("NVIDIA", "GPU", "NEURON"))
    ):
        yield Violation(f"amiType is {image}, which has no GPU driver")
    if eks_gpu(resource) and image is None:
        yield Violation("amiType is missing, and the default EKS image has no GPU driver")


def gke_driver(resource: Resource) -> Iterable[Violation]:
    if not gke_gpu(resource):
        return
    accelerators = list(
        numbered("nodeConfig.guestAccelerators", at(resource.props, "nodeConfig.guestAccelerators"))
    )
    if not accelerators:
        yield Violation("nodeConfig.guestAccelerators is missing, so GKE installs no driver")
    for where, accelerator in accelerators:
        version = at(accelerator, "gpuDriverInstallationConfig.gpuDriverVersion")
        if version is None or str(version) not in ("DEFAULT", "LATEST"):
            yield Violation(
                f"{where}.gpuDriverInstallationConfig.gpuDriverVersion is not `DEFAULT` or `LATEST`, "
                "so GKE installs no driver"
            )


def aks_driver(resource: Resource) -> Iterable[Violation]:
    if aks_gpu(resource) and str(at(resource.props, "gpuProfile.driver") or "Install") != "Install":
        yield Violation("gpuProfile.driver is not `Install`, so nodes have no GPU driver")


def gke_inline(resource: Resource) -> Iterable[Violation]:
    if listed(resource.props.get("nodePools")):
        yield Violation("nodePools is set: a change of a pool would replace the cluster")
    if not is_true(resource.props.get("removeDefaultNodePool")):
        yield Violation("removeDefaultNodePool is not true, so an unused default pool keeps running")


def aks_inline(resource: Resource) -> Iterable[Violation]:
    for where, pool in numbered("agentPoolProfiles", resource.props.get("agentPoolProfiles")):
        if _text(pool.get("vmSize")).startswith(AZURE_MACHINES):
            yield Violation(
                f"{where}.vmSize is {pool['vmSize']}: a change of the GPU pool would change the cluster"
            )


def gke_placement(resource: Resource) -> Iterable[Violation]:
    if at(resource.props, "placementPolicy.type") != "COMPACT":
        return
    zones = listed(resource.props.get("nodeLocations"))
    if len(zones) != COLOCATED_ZONES:
        yield Violation(f"placementPolicy is COMPACT and nodeLocations names {len(zones)} zones")


def aks_placement(resource: Resource) -> Iterable[Violation]:
    if resource.props.get("proximityPlacementGroupID") is None:
        return
    zones = listed(resource.props.get("availabilityZones"))
    if len(zones) > COLOCATED_ZONES:
        yield Violation(f"proximityPlacementGroupID is set and availabilityZones names {len(zones)} zones")


def template_fabric(resource: Resource) -> Iterable[Violation]:
    """EFA interfaces need a placement group: they help only between machines that are close together.

    A capacity block and a reservation decide where their machines are; in another group, some do not start.
    """
    kinds = [
        str(each.get("interfaceType"))
        for _, each in numbered("networkInterfaces", resource.props.get("networkInterfaces"))
    ]
    block = at(resource.props, "instanceMarketOptions.marketType") == "capacity-block"
    target = at(resource.props, "capacityReservationSpecification.capacityReservationTarget")
    if (
        any(kind.startswith("efa") for kind in kinds)
        and not block
        and target is None
        and at(resource.props, "placement.groupName") is None
    ):
        yield Violation("networkInterfaces has EFA and placement.groupName is missing")


def template_spot(resource: Resource) -> Iterable[Violation]:
    target = at(resource.props, "capacityReservationSpecification.capacityReservationTarget")
    if at(resource.props, "instanceMarketOptions.marketType") == "spot" and target is not None:
        yield Violation(
            "instanceMarketOptions.marketType is spot and a reservation is set: EC2 rejects the combination"
        )


def gke_spot(resource: Resource) -> Iterable[Violation]:
    node = resource.props.get("nodeConfig") or {}
    spot = is_true(node.get("spot")) or is_true(node.get("preemptible"))
    reserved = str(at(node, "reservationAffinity.consumeReservationType") or "") == "SPECIFIC_RESERVATION"
    if spot and reserved:
        yield Violation(
            "nodeConfig.spot is true and nodeConfig.reservationAffinity names a reservation: "
            "spot nodes never use one"
        )
    if is_true(node.get("flexStart")) and (spot or reserved):
        yield Violation("nodeConfig.flexStart is true together with spot or a reservation")


def aks_spot(resource: Resource) -> Iterable[Violation]:
    if resource.props.get("scaleSetPriority") != "Spot":
        return
    if resource.props.get("capacityReservationGroupID") is not None:
        yield Violation(
            "scaleSetPriority is Spot and capacityReservationGroupID is set: spot never uses a reservation"
        )
    if str(resource.props.get("scaleSetEvictionPolicy") or "Delete") != "Delete":
        yield Violation(
            "scaleSetEvictionPolicy is not `Delete`: the disks of evicted machines would still be billed "
            "and the machines count against the pool"
        )


def gke_nic(resource: Resource) -> Iterable[Violation]:
    if gke_gpu(resource) and not is_true(at(resource.props, "nodeConfig.gvnic.enabled")):
        yield Violation("nodeConfig.gvnic.enabled is not true")


def gke_run_limit(resource: Resource) -> Iterable[Violation]:
    """Flex-start and queued nodes must have a run limit and no auto-repair."""
    node = resource.props.get("nodeConfig") or {}
    if not is_true(node.get("flexStart")) and not is_true(at(resource.props, "queuedProvisioning.enabled")):
        return
    seconds = number(node.get("maxRunDuration"))
    if seconds is None or seconds > 7 * 86400:
        yield Violation("nodeConfig.maxRunDuration is missing or more than a week")
    repair = at(resource.props, "management.autoRepair")
    if repair is not None and not is_false(repair):
        yield Violation(
            "management.autoRepair is not false: GKE rejects auto-repair on flex-start and queued nodes"
        )


GPU_TAINT_AND_LABEL = Rule(
    name="gpu-taint-and-label",
    statement="A GPU pool has the GPU taint and the labels that schedulers and autoscalers look for.",
    reason=(
        "Without the taint, small pods keep GPU nodes running; without the labels, a pool at zero nodes "
        "never scales up."
    ),
    fix=(
        f"add taint {GPU_TAINT}=present:NoSchedule and label {GPU_PRESENT}=true; "
        f"outside GKE also label {ACCELERATOR}=<name in lower case>"
    ),
    references=(
        "SkyPilot#8598",
        "Cluster Autoscaler: scaling a node group from 0",
        "GKE: run GPUs in Standard node pools",
    ),
    severity="high",
    checks={EKS_NODES: eks_gpu_nodes, GKE_NODES: gke_gpu_nodes, AKS_NODES: aks_gpu_nodes},
    stack={EKS_NODES: eks_gpu_by_template},
)
GPU_DRIVER = Rule(
    name="gpu-driver-by-the-cloud",
    statement="The cloud installs the GPU driver, in the version that matches the node image.",
    reason="A driver that is installed by hand is missing on the nodes that the autoscaler adds.",
    fix="use an NVIDIA image (EKS), gpuDriverInstallationConfig (GKE) or gpuProfile.driver Install (AKS)",
    references=("EKS optimized accelerated AMIs", "GKE: GPU driver installation", "AKS: use GPUs"),
    severity="high",
    checks={EKS_NODES: eks_driver, GKE_NODES: gke_driver, AKS_NODES: aks_driver},
)
SEPARATE_POOLS = Rule(
    name="pools-are-separate",
    statement="A GPU pool is a resource of its own, not part of the cluster resource.",
    reason="A pool defined inside the cluster changes only with the cluster, and some changes replace both.",
    fix="create a NodePool (GKE) or AgentPool (AKS) for each pool",
    references=("terraform-provider-google: container_cluster node_pool", "AKS: system and user node pools"),
    severity="high",
    checks={GKE: gke_inline, AKS: aks_inline},
)
CLOSE_NODES = Rule(
    name="close-nodes-in-one-zone",
    statement="Nodes that must be close together are in one zone and use a placement policy.",
    reason=(
        "Nodes in two zones are milliseconds apart, and a collective runs at the speed of its slowest link."
    ),
    fix="set one zone for the pool, and a placement group for a fabric",
    references=(
        "EC2: cluster placement groups with EFA",
        "GKE: compact placement",
        "Azure: proximity placement groups",
    ),
    severity="medium",
    checks={LAUNCH_TEMPLATE: template_fabric, GKE_NODES: gke_placement, AKS_NODES: aks_placement},
)
NO_SPOT_RESERVATION = Rule(
    name="one-way-to-buy",
    statement="A pool uses one capacity type: on demand, spot, reserved or queued.",
    reason=(
        "A spot pool never uses the reservation that it names, and an evicted machine that is kept still "
        "costs money."
    ),
    fix="choose one capacity type for the pool",
    references=(
        "EC2: On-Demand Capacity Reservations",
        "GKE: consume reserved resources",
        "AKS: spot node pools",
    ),
    severity="medium",
    checks={LAUNCH_TEMPLATE: template_spot, GKE_NODES: gke_spot, AKS_NODES: aks_spot},
)
FAST_NIC = Rule(
    name="gpu-fast-network",
    statement="GPU machines on Google Cloud use gVNIC.",
    reason="With the old interface a GPU machine gets only part of its bandwidth, which slows NCCL down.",
    fix="set nodeConfig.gvnic.enabled: true",
    references=("GKE: gVNIC", "GKE: maximize GPU network bandwidth"),
    severity="low",
    levels=FROM_STAGING,
    checks={GKE_NODES: gke_nic},
)
FLEX_RUN_LIMIT = Rule(
    name="flex-nodes-end",
    statement="Flex-start and queued nodes run for at most a week and are not auto-repaired.",
    reason=(
        "CKV_GCP_9 requires repair everywhere, but the cloud rejects it for these nodes and ends long runs "
        "anyway."
    ),
    fix="set maxRunDuration, and management.autoRepair: false on these pools only",
    references=("GKE: flex-start", "GKE: queued provisioning", "exception to CKV_GCP_9"),
    severity="low",
    levels=ADVICE,
    checks={GKE_NODES: gke_run_limit},
)
RULES = (
    GPU_TAINT_AND_LABEL,
    GPU_DRIVER,
    SEPARATE_POOLS,
    CLOSE_NODES,
    NO_SPOT_RESERVATION,
    FAST_NIC,
    FLEX_RUN_LIMIT,
)
