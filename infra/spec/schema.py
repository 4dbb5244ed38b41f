"""PlatformSpec: the one typed input of a platform, as written under `config: trainfleet:platform:` in a stack
file.

Read by `stacks/__main__.py` (through Pulumi config), by the rehearsal and by the command line. Fields only:
what one
field may be is said here, what several fields or a cloud say together is in `infra/validation/`. Units are in
the names; the
docstrings of fields are what editors and messages show, by `trainfleet.infra.spec.field_docs`.
"""

from __future__ import annotations

from datetime import date
from enum import StrEnum
from ipaddress import IPv4Network
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from trainfleet.infra.clouds import Cloud


def _written_range(value: object) -> object:
    """Numbers and bytes would be taken for packed addresses; a range is written as text."""
    if not isinstance(value, str | IPv4Network):
        raise PydanticCustomError("ip_v4_network", "must be an IPv4 range")
    return value


def _written_day(value: object) -> object:
    """Pulumi's engine hands a date over as Go prints a time: 2027-01-31 00:00:00 +0000 UTC."""
    return value.removesuffix(" 00:00:00 +0000 UTC") if isinstance(value, str) else value


Name = Annotated[str, Field(pattern=r"^[a-z]([a-z0-9-]{0,22}[a-z0-9])?$")]
Email = Annotated[str, Field(pattern=r"^[^@\s]+@[^@\s]+\.[^@\s]+$")]
Range = Annotated[IPv4Network, BeforeValidator(_written_range)]
Day = Annotated[date, BeforeValidator(_written_day)]
Share = Annotated[float, Field(gt=0, le=10)]


class Part(BaseModel):
    """A part of the spec: immutable, and no key beside the declared ones."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Network(Part):
    """The platform's own network; every subnet is computed from one range."""

    cidr: Range = IPv4Network("10.40.0.0/16")
    """Range of the whole platform; every subnet and pod range is computed from it."""
    zones: int = Field(3, ge=1, le=6)
    """How many availability zones the platform spreads over (a managed control plane needs 2)."""
    nat: Literal["per-zone", "single", "none"] = "per-zone"
    """One NAT gateway per zone (a zone may fail), one for all (cheaper), or none (closed network)."""
    allowed_cidrs: tuple[Range, ...] = ()
    """Ranges that may reach a public control plane endpoint; never 0.0.0.0/0."""
    flow_logs: bool = True
    """Whether accepted and refused connections of the network are logged."""


class Kubernetes(Part):
    """The control plane, or the cluster that is already there."""

    version: str = Field("1.34", pattern=r"^1\.\d{2}$", examples=["1.34"])
    """Kubernetes' minor version, in quotes."""
    private_endpoint: bool = True
    """True: the control plane answers inside the network only. False: also to `network.allowed_cidrs`."""
    log_retention_days: int = Field(365, ge=1)
    """How many days the control plane's logs are kept."""
    context: str = ""
    """cloud: local only: the kubeconfig context of the cluster that is already there; empty = the current
    one.
    """
    kubeconfig: str = ""
    """cloud: local only: the kubeconfig file; empty = $KUBECONFIG or ~/.kube/config."""
    admins: tuple[str, ...] = ()
    """Who may administer the cluster: role ARNs (aws), e-mails (gcp), group object ids (azure)."""
    launchers: tuple[str, ...] = ()
    """Who may launch trainings, and no more: role ARNs (aws), e-mails (gcp), group object ids (azure), group
    names (local).
    """


class SystemPool(Part):
    """The CPU nodes that carry the cluster's own pods."""

    size: Literal["small", "medium", "large"] = "medium"
    """2, 8 or 16 vCPU per node on aws; 4, 8 or 16 elsewhere."""
    min_nodes: int = Field(2, ge=1)
    """Nodes that always run."""
    max_nodes: int = Field(4, ge=1)
    """Nodes at most."""


class Capacity(StrEnum):
    """How a pool's nodes are bought."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    RESERVED = "reserved"
    CAPACITY_BLOCK = "capacity-block"
    FLEX_START = "flex-start"
    QUEUED = "queued"


class GpuPool(Part):
    """One pool of equal GPU nodes, from zero up."""

    name: Name = Field(examples=["h100"])
    """The pool's name: 1 to 24 lower case letters, digits and hyphens, a letter first."""
    accelerator: str = Field(examples=["H100", "A100-80GB", "L4"])
    """SkyPilot's name of the accelerator (`trainfleet machines` lists them)."""
    per_node: int = Field(1, ge=1, le=16)
    """How many of them a node carries."""
    min_nodes: int = Field(0, ge=0)
    """Nodes that always run."""
    max_nodes: int = Field(1, ge=1)
    """Nodes at most."""
    kind: Literal["nodes", "hyperpod"] = "nodes"
    """nodes: the cloud's own node pool. hyperpod: SageMaker HyperPod instance group on the same cluster
    (aws).
    """
    capacity: Capacity = Capacity.ON_DEMAND
    """How the nodes are bought."""
    reservation: str = Field("", examples=["cr-0123456789abcdef0"])
    """The reservation for capacity `reserved` and `capacity-block`: its id (aws), name (gcp), resource id
    (azure); a training plan's ARN (hyperpod).
    """
    max_run_hours: int = Field(168, ge=1, le=168)
    """Hours after which a flex-start or queued node ends (gcp; a week at most)."""
    interconnect: Literal["best", "none"] = "none"
    """best: the fastest fabric the machine has (EFA, GPUDirect, InfiniBand); none: plain Ethernet."""
    compact: bool = False
    """Place the nodes close together (one zone, a placement group): for multi-node training."""
    instance_type: str = ""
    """A machine of the catalogue, where more than one carries this accelerator and count; empty = the
    cheapest.
    """
    zone: str = ""
    """The one zone of a compact or reserved pool; empty = the platform's first zone."""
    disk_gib: int = Field(200, ge=50, le=16384)
    """The root disk of a node; images and their layers live there."""
    labels: dict[str, str] = {}
    """More Kubernetes labels for the pool's nodes."""


class SharedFilesystem(Part):
    """One filesystem that every training pod mounts."""

    kind: Literal["lustre", "nfs"] = "lustre"
    """lustre: parallel and linked to the bucket; nfs: a plain share."""
    capacity_gib: int = Field(1200, ge=100)
    """On aws 1200, 2400, and more in steps of 2400."""
    throughput_mbps_per_tib: Literal[125, 250, 500, 1000] = 125
    """MB/s for each TiB of capacity."""


class Storage(Part):
    """The bucket of runs and data, and a shared filesystem where wished."""

    retention_days: int = Field(30, ge=1)
    """Days a deleted or overwritten object can be brought back."""
    versioning: bool = True
    """Whether overwritten objects are kept for that time."""
    shared_filesystem: SharedFilesystem | None = None
    """A filesystem beside the bucket; none when left out."""
    bucket_url: str = Field("", examples=["s3://my-bucket"])
    """cloud: local only: where runs are stored, in an object store that is already there (s3://, gs://, az://
    or file://).
    """


class Ray(Part):
    """Ray and its operator."""

    operator: str = Field("1.6.0", pattern=r"^\d+\.\d+\.\d+$", examples=["1.6.0"])
    """KubeRay's version, three numbers."""
    version: str = Field("2.60.0", pattern=r"^\d+\.\d+\.\d+$", examples=["2.60.0"])
    """Ray's version in the training image, three numbers."""
    tls: bool = True
    """Whether Ray's own traffic is encrypted."""
    token_auth: bool = True
    """Whether Ray's endpoints ask for a token."""
    image: str = ""
    """The container image of training pods; empty = the platform's registry with this version's tag."""


class Queue(Part):
    """A queue before the GPU pools."""

    enabled: bool = False
    """Whether jobs wait in a queue (Kueue) until all their nodes are free."""


class Secrets(Part):
    """Secrets that training pods may read."""

    provider: Literal["cloud", "none"] = "cloud"
    """cloud: the cloud's own secret store; none: secrets are made in the cluster by hand."""
    names: tuple[Name, ...] = Field((), examples=[["hf-token"]])
    """Secrets that will exist (names only: a value never stands in a spec or in state)."""


class Layer(Part):
    """LayerFeatures of the cluster layer, each with its off switch; `queue`, `secrets` and `monitoring` have their
    own.
    """

    kuberay: bool = True
    """The KubeRay operator and its resource definitions."""
    gpu_plugin: bool = True
    """The GPU device plugin, where the cloud provides none."""
    rdma_plugin: bool = True
    """The plugin of the machines' fabric (EFA, RoCE, InfiniBand), where a pool asks for it and the cloud
    provides none.
    """
    gpu_metrics: bool = True
    """The DCGM exporter, where the cloud provides none."""
    autoscaler: bool = True
    """The cluster autoscaler, where the cloud provides none."""
    network_policies: bool = True
    """Namespaces are closed, and opened for what Ray, DNS and stores need."""
    priority_classes: bool = True
    """Priorities for trainings: high, normal, low."""
    launcher_access: bool = True
    """The role of those who launch, and an account with a token for SkyPilot's controllers."""
    storage_classes: bool = True
    """The encrypted default storage class."""
    certificates: Literal["own-ca", "cert-manager", "none"] = "own-ca"
    """Who signs the certificates of Ray's own traffic; none only without ray.tls."""
    logs: bool = True
    """Logs of every pod go to the cloud's log store, kept for kubernetes.log_retention_days."""
    node_problems: bool = True
    """Broken nodes are found and repaired, by the cloud where it can."""


class Monitoring(Part):
    """Metrics of nodes, GPUs and Ray."""

    enabled: bool = True
    """Whether metrics are gathered in the cluster."""
    retention_days: int = Field(15, ge=1)
    """How many days they are kept."""


class Budget(Part):
    """What the platform may cost; alerts only, nothing is stopped."""

    monthly_usd: float = Field(gt=0)
    """The budget of a calendar month."""
    alert_at: tuple[Share, ...] = (0.5, 0.8, 1.0)
    """Shares of the budget at which an alert is sent."""
    emails: tuple[Email, ...] = Field((), examples=[["ml-platform@example.com"]])
    """Who is told, by e-mail; empty = the owner."""


class PolicyException(Part):
    """One resource that need not keep one policy for some time."""

    policy: str
    """The policy's name."""
    resource: str
    """The resource's name, or `*` for every resource of the stack."""
    reason: str = Field(min_length=10)
    """Why, in a sentence."""
    until: Day
    """The last day on which the exception holds."""


class PlatformSpec(Part):
    """One GPU training platform. The whole input of a stack; see docs/architecture.md for a commented
    example.
    """

    name: Name = Field(examples=["prod"])
    """The platform's name: 1 to 24 lower case letters, digits and hyphens, a letter first. Names every
    resource.
    """
    cloud: Cloud
    """Where it is built. local = on a Kubernetes that is already there."""
    region: str = Field("", examples=["us-east-2"])
    """The cloud's region; may be empty for cloud: local only."""
    account: str = Field("", examples=["my-project-123456"])
    """Whose bill it is: the project id (gcp) or the subscription id (azure), both needed; the account id
    (aws), where only that one is meant.
    """
    owner: Email = Field(examples=["ml-platform@example.com"])
    """The e-mail address of those who answer for the platform."""
    environment: Literal["dev", "staging", "prod"] = "dev"
    """prod: data and keys are protected and retained on destroy."""
    network: Network = Network()
    kubernetes: Kubernetes = Kubernetes()
    system_pool: SystemPool = SystemPool()
    gpu_pools: tuple[GpuPool, ...] = ()
    """The GPU pools, each from zero nodes up."""
    storage: Storage = Storage()
    ray: Ray = Ray()
    queue: Queue = Queue()
    secrets: Secrets = Secrets()
    layer: Layer = Layer()
    monitoring: Monitoring = Monitoring()
    budget: Budget | None = None
    """What the platform may cost; no alerts when left out."""
    tags: dict[str, str] = {}
    """More tags for every resource of the cloud."""
    exceptions: tuple[PolicyException, ...] = ()
    """Exceptions from policies, each with a reason and an end."""

    @property
    def production(self) -> bool:
        """Whether data and keys are protected and kept on destroy."""
        return self.environment == "prod"
