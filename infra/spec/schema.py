"""PlatformSpec: the typed input of a platform, written under `config: trainfleet:platform:` in a stack file.

Each field states which values it accepts; infra/validation has the rules between fields. Editors and messages
show the docstrings of the fields.
"""

from __future__ import annotations

from enum import StrEnum
from ipaddress import IPv4Network
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from trainfleet.infra.clouds import Cloud
from trainfleet.infra.spec.identities import Identities
from trainfleet.infra.spec.part import Day, Email, Name, Part, Range, Share
from trainfleet.infra.spec.pod_template import PodTemplate
from trainfleet.infra.spec.ray import Ray
from trainfleet.infra.spec.receivers import Receiver, SecretName
from trainfleet.infra.spec.storage import Storage
from trainfleet.infra.spec.topology import Topology


class Hub(Part):
    """A network of yours that the platform's network is connected to."""

    id: str
    """A transit gateway (aws: tgw-...), or the network to peer with: its self link without the host (gcp:
    projects/P/global/networks/N) or its resource id (azure).
    """
    gateway: bool = False
    """azure: clients come through the hub's VPN or ExpressRoute gateway."""


class ExistingNetwork(Part):
    """A network of yours, with subnets, routes and egress, in which the platform is built."""

    id: str
    """The VPC (aws: vpc-...; gcp: projects/P/global/networks/N, also of a Shared VPC's host project), or the
    virtual network's resource id (azure).
    """
    subnets: dict[str, str]
    """Ids of subnets: nodes by zone (aws); `nodes` (gcp); `nodes`, `endpoints`, `control-plane` (azure)."""
    control_plane_subnets: tuple[str, ...] = ()
    """aws: subnets of the control plane, which keeps their zones for ever. Default: the first two of
    `subnets`.
    """
    ranges: dict[str, str] = {}
    """gcp: names of the subnet's secondary ranges for `pods` and `services`."""
    dns_zones: dict[str, str] = {}
    """azure: resource ids of private DNS zones that are linked to the network, by kind of endpoint: blob,
    dfs, file, vault, registry. The platform creates the others.
    """


class Network(Part):
    """The platform's own network, or an existing one. Every subnet is computed from one range."""

    cidr: Range = IPv4Network("10.40.0.0/16")
    """Address range of the platform. All subnets and pod ranges are computed from it. With `existing`: the
    range of that network.
    """
    zones: int = Field(3, ge=1, le=6)
    """Number of availability zones that the platform spreads over. A managed control plane needs 2."""
    nat: Literal["per-zone", "single", "none"] = "per-zone"
    """NAT gateways: one per zone (survives the failure of a zone) or a single one (cheaper). `none` is
    rejected: nodes could not pull the images of the cluster layer.
    """
    hub: Hub | None = None
    """The network through which `kubernetes.access.private_ranges` reach the platform. Default: none."""
    existing: ExistingNetwork | None = None
    """Build the platform in this network. Default: in a network of its own."""
    flow_logs: bool = True
    """Log accepted and rejected connections of the network."""
    encryption: bool = False
    """Require that the cloud encrypts traffic between nodes: always on gcp, by the machines on aws, by an
    encrypted virtual network on azure. A pool whose machine does not is rejected.
    """


class Access(Part):
    """Who may reach the API server, and how. `pulumi up` installs the cluster layer through it."""

    endpoint: Literal["public", "dns", "private"] | None = None
    """public: an address on the internet that accepts `public_ranges` only. dns: GKE's DNS endpoint, which
    accepts anyone whom IAM lets in (gcp). private: an address of the network, for `private_ranges`. Default:
    public with `public_ranges`, private with `private_ranges` alone, and without ranges dns on gcp.
    """
    public_ranges: tuple[Range, ...] = Field((), examples=[["203.0.113.0/24"]])
    """Public ranges that may reach a public endpoint: offices, VPNs, CI runners. Never 0.0.0.0/0."""
    private_ranges: tuple[Range, ...] = ()
    """Private ranges that may reach the API server through `network.hub`: VPNs, runners."""

    def endpoint_or(self, default: str) -> str:
        """The endpoint: as declared, or by the ranges, or without ranges the cloud's default."""
        by_ranges = "public" if self.public_ranges else "private" if self.private_ranges else default
        return self.endpoint or by_ranges


class Kubernetes(Part):
    """The control plane, or the existing cluster of `cloud: local`."""

    version: str = Field("1.35", pattern=r"^1\.\d{2}$", examples=["1.35"])
    """Minor version of Kubernetes, in quotes. A warning comes 90 days before its standard support ends."""
    access: Access = Access()
    """Who may reach the API server."""
    log_retention_days: int = Field(365, ge=1)
    """Days to keep logs of the control plane and of pods."""
    context: str = ""
    """`cloud: local` only: kubeconfig context of the existing cluster. Empty = the current context."""
    kubeconfig: str = ""
    """`cloud: local` only: path of the kubeconfig. Empty = $KUBECONFIG or ~/.kube/config."""
    admins: tuple[str, ...] = ()
    """Administrators of the cluster: role ARNs (aws), e-mail addresses (gcp), group object ids (azure)."""
    launchers: tuple[str, ...] = ()
    """Identities that may only launch trainings: role ARNs (aws), e-mail addresses (gcp), group object ids
    (azure), group names (local).
    """


class SystemPool(Part):
    """The CPU nodes for system pods and Ray heads."""

    size: Literal["small", "medium", "large"] = "medium"
    """2, 8 or 16 vCPU per node on aws; 4, 8 or 16 on other clouds."""
    min_nodes: int = Field(2, ge=1)
    """Number of nodes that always run."""
    max_nodes: int = Field(4, ge=1)
    """Maximum number of nodes."""
    image_release: str = Field("", examples=["1.35.2-20261112"])
    """Release of the node image (aws). Empty = the newest when the pool is created or upgraded. A change
    replaces the nodes.
    """


class Capacity(StrEnum):
    """How a pool's nodes are bought."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    RESERVED = "reserved"
    CAPACITY_BLOCK = "capacity-block"
    FLEX_START = "flex-start"
    QUEUED = "queued"


def _written_as(value: object) -> str:
    return "[list]" if isinstance(value, list | tuple) else "[one]"


Capacities = Annotated[
    Annotated[Capacity, Tag("[one]")] | Annotated[tuple[Capacity, ...], Field(min_length=1), Tag("[list]")],
    Discriminator(_written_as),
]
Rdma = Literal["none", "efa", "gpudirect-tcpx", "gpudirect-tcpxo", "roce", "infiniband"]


class MachineFacts(Part):
    """Facts of a machine that is not in the catalogue. Only x86 machines with NVIDIA GPUs work."""

    vcpu: int = Field(ge=1)
    """Number of vCPU of a node."""
    memory_gib: float = Field(gt=0)
    """Memory of a node."""
    gpu_memory_gib: float = Field(gt=0)
    """Memory of one GPU."""
    network_gbps: float | None = Field(None, gt=0)
    """Bandwidth of the node's network. Default: unknown."""
    rdma: Rdma = "none"
    """The fabric beyond Ethernet."""
    rdma_nics: int = Field(0, ge=0)
    """Number of fabric interfaces of a node; 0 without a fabric."""
    local_nvme_gb: float = Field(0, ge=0)
    """Local NVMe disks of a node, in 10^9 bytes."""
    usd_per_hour: float | None = Field(None, gt=0)
    """Price of a node for the pool's capacity. Default: unknown."""


class GpuPool(Part):
    """A pool of identical GPU nodes, which can scale to zero."""

    name: Name = Field(examples=["h100"])
    """Name of the pool: 1 to 24 lower case letters, digits and hyphens, starting with a letter."""
    accelerator: str = Field(examples=["H100", "A100-80GB", "L4"])
    """SkyPilot's name of the accelerator. `trainfleet machines` lists them."""
    per_node: int = Field(1, ge=1, le=16)
    """Number of accelerators per node."""
    min_nodes: int = Field(0, ge=0)
    """Number of nodes that always run."""
    max_nodes: int = Field(1, ge=1)
    """Maximum number of nodes."""
    kind: Literal["nodes", "hyperpod"] = "nodes"
    """nodes: the cloud's own node pool. hyperpod: SageMaker HyperPod on the same cluster (aws)."""
    capacity: Capacities = Capacity.ON_DEMAND
    """How the nodes are bought. A list is in order of preference, for example [reserved, spot, on-demand]:
    the pool has a node group for each, up to `max_nodes` each, and `min_nodes` is of the first.
    """
    reservation: str = Field("", examples=["cr-0123456789abcdef0"])
    """The reservation of capacity `reserved` or `capacity-block`: its id (aws), name (gcp) or resource id
    (azure); for hyperpod, the ARN of a training plan.
    """
    capacity_block: str = Field("", examples=["cr-0fedcba9876543210"])
    """The id of the capacity block where `capacity` lists `reserved` too (aws). Default: none."""
    placement_group: str = Field("", examples=["h100-cluster"])
    """The placement group in which the `reservation` was created: its name or id (aws). Default: none."""
    max_run_hours: int = Field(168, ge=1, le=168)
    """Hours after which a flex-start or queued node ends, at most a week (gcp)."""
    interconnect: Literal["best", "none"] = "none"
    """best: the fastest fabric of the machine (EFA, GPUDirect, RoCE, InfiniBand). none: Ethernet."""
    compact: bool = False
    """Place the nodes close together (one zone, a placement group), for multi-node training."""
    instance_type: str = ""
    """A machine of the catalogue. Empty = the cheapest with this accelerator and count."""
    machine: MachineFacts | None = None
    """Facts of `instance_type`, for a machine that is not in the catalogue or not in this region of it."""
    zone: str = ""
    """The zone of a compact or reserved pool. Empty = the platform's first zone."""
    disk_gib: int = Field(200, ge=50, le=16384)
    """Size of the root disk of a node, which holds container images."""
    fast_image_pull: bool = False
    """Pull and unpack image layers in parallel (aws; experimental). A change replaces the nodes."""
    version: str = Field("", pattern=r"^(1\.\d{2})?$", examples=["1.34"])
    """Kubernetes version of the nodes, to upgrade them later than the control plane (aws, azure). Empty =
    the control plane's.
    """
    image_release: str = Field("", examples=["1.35.2-20261112"])
    """Release of the node image (aws). Empty = the newest at creation or upgrade. A change replaces nodes."""
    labels: dict[str, str] = {}
    """Additional Kubernetes labels of the pool's nodes."""
    topology: Topology | None = None
    """Place the workers of a run close together (needs `queue.enabled`). Default: any nodes of the pool."""
    pod_template: dict[str, Any] = {}
    """Changes of the pods that train on this pool, applied after `pod_template.workers` of the platform."""

    @property
    def preferred(self) -> Capacity:
        """The capacity that is used first. It decides the machine of the whole pool."""
        return self.capacity if isinstance(self.capacity, Capacity) else self.capacity[0]


class Queue(Part):
    """Queueing of jobs for the GPU pools."""

    enabled: bool = False
    """Queue jobs with Kueue until all their nodes are available."""


class Secrets(Part):
    """Secrets that training pods can read."""

    provider: Literal["cloud", "none"] = "cloud"
    """cloud: the cloud's secret store. none: create secrets in the cluster yourself."""
    names: tuple[Name, ...] = Field((), examples=[["hf-token"]])
    """Names. Pods get them as variables (docs/kuberay.md). Values are in neither the spec nor the state."""


class Layer(Part):
    """Switches for features of the cluster layer. `queue`, `secrets` and `monitoring` have their own."""

    kuberay: bool = True
    """Install the KubeRay operator and its resource definitions."""
    gpu_plugin: bool = True
    """Install the GPU device plugin, unless the cloud provides it."""
    rdma_plugin: bool = True
    """Install the plugin of a fabric (EFA, RoCE, InfiniBand) that a pool uses, unless the cloud has one."""
    gpu_metrics: bool = True
    """Install the DCGM exporter, unless the cloud provides it."""
    autoscaler: bool = True
    """Install the cluster autoscaler, unless the cloud provides it."""
    network_policies: bool = True
    """Close all namespaces, and allow only what Ray, DNS and stores need."""
    priority_classes: bool = True
    """Create priority classes for trainings: high, normal, low."""
    launcher_access: bool = True
    """Create the role of launchers, and their account `launcher`, whose tokens end after hours."""
    launcher_token: bool = False
    """Create a Secret with a token that never ends, for a team's SkyPilot API server: `launcher-token`."""
    storage_classes: bool = True
    """Create the encrypted default storage class."""
    certificates: Literal["own-ca", "cert-manager", "none"] = "own-ca"
    """What signs the certificates of Ray's internal traffic. none requires `ray.tls: false`."""
    logs: bool = True
    """Send the logs of all pods to the cloud's log store, for kubernetes.log_retention_days."""
    node_problems: bool = True
    """Detect broken nodes, and repair them where the cloud can."""


class Monitoring(Part):
    """Metrics of nodes, GPUs and Ray."""

    enabled: bool = True
    """Collect metrics in the cluster."""
    retention_days: int = Field(15, ge=1)
    """Days to keep metrics."""
    receivers: tuple[Receiver, ...] = ()
    """Who gets alerts. Empty: alerts are shown and sent to nobody."""
    alertmanager_secret: SecretName = ""
    """Instead of `receivers`: a Secret of yours in the namespace `monitoring` with Alertmanager's whole
    configuration (key `alertmanager.yaml`).
    """


class Budget(Part):
    """Budget alerts. They never stop anything."""

    monthly_usd: float = Field(gt=0)
    """Budget of a calendar month in USD."""
    alert_at: tuple[Share, ...] = (0.5, 0.8, 1.0)
    """Shares of the budget at which an alert is sent."""
    emails: tuple[Email, ...] = Field((), examples=[["ml-platform@example.com"]])
    """E-mail addresses that receive alerts. Empty = the owner."""


class PolicyException(Part):
    """Exempts a resource, or all resources of a type, from one policy for a limited time."""

    policy: str
    """Name of the policy."""
    resource: str
    """Name of the resource, or `*` for every resource of the type in `type`."""
    type: str = Field("", pattern=r"^([a-z][\w-]*:[^\s:]+:\w+)?$", examples=["aws:s3/bucket:Bucket"])
    """Type of the resource, without an API version. Empty = any type."""
    reason: str = Field(min_length=10)
    """The reason, in a sentence."""
    until: Day
    """The last day of the exception."""


class PlatformSpec(Part):
    """One GPU training platform: the whole input of a stack."""

    name: Name = Field(examples=["prod"])
    """Name of the platform, part of the name of every resource: 1 to 24 lower case letters, digits and
    hyphens, starting with a letter.
    """
    cloud: Cloud
    """Where the platform is built. local = on an existing Kubernetes cluster."""
    region: str = Field("", examples=["us-east-2"])
    """Region of the cloud. Empty only with `cloud: local`."""
    account: str = Field("", examples=["my-project-123456"])
    """Who pays: the project id (gcp) or the subscription id (azure), both required; the account id (aws),
    optional.
    """
    owner: Email = Field(examples=["ml-platform@example.com"])
    """E-mail address of the team that owns the platform."""
    environment: Literal["dev", "staging", "prod"] = "dev"
    """prod: data and keys are protected, and retained on destroy."""
    network: Network = Network()
    identities: Identities = Identities()
    kubernetes: Kubernetes = Kubernetes()
    system_pool: SystemPool = SystemPool()
    gpu_pools: tuple[GpuPool, ...] = ()
    """The GPU pools."""
    storage: Storage = Storage()
    ray: Ray = Ray()
    pod_template: PodTemplate = PodTemplate()
    queue: Queue = Queue()
    secrets: Secrets = Secrets()
    layer: Layer = Layer()
    monitoring: Monitoring = Monitoring()
    budget: Budget | None = None
    """Budget alerts. Default: none."""
    tags: dict[str, str] = {}
    """Additional tags of every cloud resource."""
    exceptions: tuple[PolicyException, ...] = ()
    """Exceptions from policies, each with a reason and an end."""

    @property
    def production(self) -> bool:
        """Whether data and keys are protected and kept on destroy."""
        return self.environment == "prod"
