"""Names, zones and address ranges of a platform on Google Cloud, computed from the spec alone.

Zones are listed here and not queried, so that a preview needs no credentials. Each range is a fixed share of
the CIDR: half for pods, an eighth each for nodes, services, fabric and Google's own services.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from ipaddress import IPv4Network

from trainfleet.errors import InputError, Problem
from trainfleet.infra.catalog.machines import Machine, machine_for_pool
from trainfleet.infra.gcp.machine_zones import sold_in
from trainfleet.infra.spec.node_group import NodeGroup
from trainfleet.infra.spec.node_groups import node_groups
from trainfleet.infra.spec.schema import Capacity, GpuPool, PlatformSpec

LOG_WRITER = "group:cloud-storage-analytics@google.com"
"""Google's own writer of access logs (Cloud Storage guide, usage logs)."""
ZONE_LETTERS: dict[str, str] = dict.fromkeys(
    [
        "africa-south1",
        "asia-east1",
        "asia-east2",
        "asia-northeast1",
        "asia-northeast2",
        "asia-northeast3",
        "asia-south1",
        "asia-south2",
        "asia-southeast1",
        "asia-southeast2",
        "asia-southeast3",
        "australia-southeast1",
        "australia-southeast2",
        "europe-central2",
        "europe-north1",
        "europe-north2",
        "europe-southwest1",
        "europe-west2",
        "europe-west3",
        "europe-west4",
        "europe-west6",
        "europe-west8",
        "europe-west9",
        "europe-west10",
        "europe-west12",
        "me-central1",
        "me-central2",
        "me-west1",
        "northamerica-northeast1",
        "northamerica-northeast2",
        "northamerica-south1",
        "southamerica-east1",
        "southamerica-west1",
        "us-east4",
        "us-east5",
        "us-south1",
        "us-west1",
        "us-west2",
        "us-west3",
        "us-west4",
    ],
    "abc",
) | {"us-central1": "abcf", "us-east1": "bcd", "europe-west1": "bcd"}
"""The zones of each region, by letter (cloud.google.com/compute/docs/regions-zones)."""

LONGEST_PREFIX = 20
"""A longer prefix leaves pods of fewer than eight nodes."""
DRIVER_FOLDER, DRIVER_MOUNT = "/home/kubernetes/bin/nvidia", "/usr/local/nvidia"
"""The node's folder with the GPU driver, and where GKE's device plugin mounts it, read-only, into every
container with a GPU. Nothing else tells the loader of the driver in `lib64`: the image sets LD_LIBRARY_PATH.

Source: GoogleCloudPlatform/container-engine-accelerators cmd/nvidia_gpu/nvidia_gpu.go, -host-path and
-container-path.
"""
LONGEST_NAME = 31
PODS_PER_NODE = 110
POD_PREFIX = 24
"""GKE gives a node of 110 pods a /24 (GKE guide, flexible pod CIDR)."""
LARGEST_SERVICES = 16
"""GKE accepts a service range of at most a /16 (GKE guide, VPC-native clusters)."""
FABRIC_SUBNETS = 32
TCP_FABRIC_NETWORKS = {"gpudirect-tcpx": 4, "gpudirect-tcpxo": 8}
RDMA_SUBNETS = 8


@dataclass(frozen=True)
class RangePlan:
    """The ranges of a platform. NOTE: they must not overlap, because a node has an interface in several of
    them.
    """

    nodes: IPv4Network
    pods: IPv4Network
    services: IPv4Network
    fabric: tuple[IPv4Network, ...]
    """One per fabric interface of a node: vpc1 to vpc8, gvnic-1, rdma-0 to rdma-7."""
    google_services: IPv4Network
    """For Google's own services: Managed Lustre, Filestore."""


def plan(spec: PlatformSpec) -> RangePlan:
    """Divide the platform's range.

    Raises:
        InputError: the range is too small to be divided.
    """
    cidr = spec.network.cidr
    if cidr.prefixlen > LONGEST_PREFIX:
        problem = Problem(
            "network.cidr", f"{cidr} is too small to be divided", f"a range of /{LONGEST_PREFIX} or larger"
        )
        raise InputError("the network cannot be planned", [problem])
    nodes, services, fabric, google = list(cidr.subnets(prefixlen_diff=3))[:4]
    return RangePlan(
        nodes=nodes,
        pods=list(cidr.subnets(prefixlen_diff=1))[1],
        services=next(services.subnets(new_prefix=max(services.prefixlen + 1, LARGEST_SERVICES))),
        fabric=tuple(fabric.subnets(prefixlen_diff=5)),
        google_services=google,
    )


def zones(region: str) -> tuple[str, ...]:
    """The zones of a region; empty for an unknown one."""
    return tuple(f"{region}-{letter}" for letter in ZONE_LETTERS.get(region, ""))


def region_of(zone: str) -> str:
    """The region of a zone."""
    return zone.rpartition("-")[0]


def platform_zones(spec: PlatformSpec) -> tuple[str, ...]:
    """The zones of the platform: the first `network.zones` of the region, and every zone of a GPU pool."""
    named = [pool.zone for pool in spec.gpu_pools if pool.zone]
    return tuple(sorted({*zones(spec.region)[: spec.network.zones], *named}))


def pool_zones(spec: PlatformSpec, pool: NodeGroup) -> tuple[str, ...]:
    """The zones of a pool: the one it names; else one if it is compact, reserved or uses a fabric; else all
    that sell its machine.

    A zone without the machine would fail the whole pool. If no zone of the platform sells it, all are
    returned, and a rule reports it.
    """
    if pool.zone:
        return (pool.zone,)
    found = platform_zones(spec)
    sold = machine_zones(spec, pool)
    found = tuple(zone for zone in found if sold is None or zone in sold) or found
    bound = pool.compact or pool.interconnect == "best" or pool.capacity is Capacity.RESERVED
    return found[:1] if bound else found


def machine_zones(spec: PlatformSpec, pool: GpuPool) -> tuple[str, ...] | None:
    """The zones of the region that sell the pool's machine; None if unknown."""
    try:
        return sold_in(machine_for_pool(spec.cloud, pool).instance_type, spec.region)
    except LookupError:
        return None


def system_zones(spec: PlatformSpec) -> tuple[str, ...]:
    """The zones of the system pool: at most its minimum, since GKE starts the same number of
    nodes in each.
    """
    return platform_zones(spec)[: spec.system_pool.min_nodes]


def shared_volume_zone(spec: PlatformSpec) -> str:
    """The zone of the shared filesystem: that of the first pool with a single zone, close to its readers."""
    bound = [found[0] for pool in node_groups(spec) if len(found := pool_zones(spec, pool)) == 1]
    return bound[0] if bound else platform_zones(spec)[0]


def uses_fabric(pool: GpuPool, machine: Machine) -> bool:
    """Whether the pool's nodes get fabric interfaces."""
    return pool.interconnect == "best" and machine.rdma != "none"


def tcp_fabric_networks(spec: PlatformSpec) -> int:
    """The number of extra networks for GPUDirect over TCP: the maximum over the pools."""
    return max(
        (TCP_FABRIC_NETWORKS.get(machine.rdma, 0) for machine in _fabric_machines(spec).values()), default=0
    )


def rdma_zone(spec: PlatformSpec) -> str:
    """The zone of the platform's RDMA network; empty = none. Validation allows at most one."""
    machines = _fabric_machines(spec)
    return next(
        (
            pool_zones(spec, pool)[0]
            for pool in node_groups(spec)
            if pool.name in machines and machines[pool.name].rdma == "roce"
        ),
        "",
    )


def _fabric_machines(spec: PlatformSpec) -> dict[str, Machine]:
    found: dict[str, Machine] = {}
    for pool in node_groups(spec):
        machine = machine_for_pool(spec.cloud, pool)
        if uses_fabric(pool, machine):
            found[pool.name] = machine
    return found


def cluster_name(spec: PlatformSpec) -> str:
    """The GKE cluster's name (at most 40 characters): fixed, because contexts and people use it."""
    return f"trainfleet-{spec.name}"


def kube_context(spec: PlatformSpec) -> str:
    """The context's name as gcloud writes it. SkyPilot reads project, location and cluster from it."""
    return f"gke_{spec.account}_{spec.region}_{cluster_name(spec)}"


def uses_dns_endpoint(spec: PlatformSpec) -> bool:
    """Whether clients use GKE's DNS endpoint, the default without ranges."""
    return spec.kubernetes.access.endpoint_or("dns") == "dns"


def workload_pool(spec: PlatformSpec) -> str:
    """The pool of Kubernetes identities, one per project."""
    return f"{spec.account}.svc.id.goog"


NODE_ROLES = {
    # The least for a node: logs and metrics (GKE guide, least privilege service account).
    "nodes-default": "roles/container.defaultNodeServiceAccount",
    # Image streaming with an account of one's own (GKE guide, Image streaming, requirements).
    "nodes-streaming": "roles/serviceusage.serviceUsageConsumer",
}
"""The roles of the nodes' account on the project, by the name of the grant."""
ACCOUNT_PURPOSES = ("nodes", "training", "secrets")


def account_purposes(spec: PlatformSpec) -> tuple[str, ...]:
    """The purposes for which a platform has a service account each."""
    secrets = spec.secrets.provider == "cloud" and bool(spec.secrets.names)
    return tuple(purpose for purpose in ACCOUNT_PURPOSES if purpose != "secrets" or secrets)


def account_id(spec: PlatformSpec, role: str) -> str:
    """The id of a service account, 6 to 30 characters: `<platform>-<role>`, shortened with a digest if
    necessary.
    """
    whole = f"{spec.name}-{role}"
    if 6 <= len(whole) <= 30:
        return whole
    digest = hashlib.sha256(spec.name.encode()).hexdigest()[:6]
    return f"{spec.name[: 30 - len(role) - 8].rstrip('-')}-{digest}-{role}"


def node_pool_prefix(name: str, *, whole: bool = True) -> str:
    """The name prefix of a node pool: GKE allows 40 characters, of which nine are random. Long names of the
    groups of one pool differ at the end, so they keep a digest.
    """
    if whole or len(name) < LONGEST_NAME:
        return f"{name}-"[:LONGEST_NAME]
    digest = hashlib.sha256(name.encode()).hexdigest()[:6]
    return f"{name[: LONGEST_NAME - 8]}-{digest}-"


def member(who: str) -> str:
    """An administrator or launcher as a member of an IAM policy: with its own prefix, or a service account by
    its address, or a person.
    """
    if ":" in who:
        return who
    return f"{'serviceAccount' if who.endswith('.gserviceaccount.com') else 'user'}:{who}"


def security_group(spec: PlatformSpec) -> str:
    """The group that must contain every group of a role binding; empty if no launcher is a group (GKE guide,
    Google Groups for RBAC).
    """
    domains = [who.rpartition("@")[2] for who in spec.kubernetes.launchers if who.startswith("group:")]
    return f"gke-security-groups@{domains[0]}" if domains else ""


def short_name(person: str) -> str:
    """A short name for a person, independent of the order of a list."""
    return hashlib.sha256(person.encode()).hexdigest()[:8]


def label_text(text: str) -> str:
    """The key or value of a tag as a label, like `trainfleet.infra.tags`, but without Pulumi."""
    return re.sub(r"[^a-z0-9_-]", "-", text.lower().replace("@", "_at_").replace(".", "_"))[:63]


SYSTEM_DISK_GIB = 100
KEYS = ("cluster", "logs", "nodes", "data")
"""The keys of a platform: what each encrypts is in keys.py."""
HYPERDISK_ONLY = ("a3-ultragpu-", "a4-", "g4-")


def disk_type(machine: Machine) -> str:
    """The type of the boot disk. The newest machines require Hyperdisk."""
    if machine.instance_type.startswith(HYPERDISK_ONLY):
        return "hyperdisk-balanced"
    return "pd-ssd" if machine.accelerator else "pd-balanced"
