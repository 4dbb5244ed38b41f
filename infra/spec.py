"""PlatformSpec: the one typed input of a platform, as written under `config: trainfleet:platform:` in a stack file.

Read by `stacks/__main__.py` (through Pulumi config), by the rehearsal and by the command line. Fields only: what one
field may be is said here, what several fields or a cloud say together is in `infra/rules.py`. Units are in the names.
"""

from __future__ import annotations

from datetime import date
from enum import StrEnum
from ipaddress import IPv4Network
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

SPEC_VERSION = 1


class Cloud(StrEnum):
    AWS = "aws"
    GCP = "gcp"
    AZURE = "azure"
    LOCAL = "local"


Name = Annotated[str, Field(pattern=r"^[a-z]([a-z0-9-]{0,22}[a-z0-9])?$", description="lower case letters, digits and hyphens, 1 to 24")]
Email = Annotated[str, Field(pattern=r"^[^@\s]+@[^@\s]+\.[^@\s]+$")]


def _written_range(value: object) -> object:
    """Numbers and bytes would be taken for packed addresses; a range is written as text."""
    if not isinstance(value, str | IPv4Network):
        raise PydanticCustomError("ip_v4_network", "must be an IPv4 range")
    return value


Range = Annotated[IPv4Network, BeforeValidator(_written_range)]
Share = Annotated[float, Field(gt=0, le=10)]


class Part(BaseModel):
    """A part of the spec: immutable, and no key beside the declared ones."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


class Network(Part):
    cidr: Range = IPv4Network("10.40.0.0/16")
    """Range of the whole platform; every subnet and pod range is computed from it."""
    zones: int = Field(3, ge=1, le=6)
    """How many availability zones the platform spreads over (a managed control plane needs 2)."""
    nat: Literal["per-zone", "single", "none"] = "per-zone"
    """One NAT gateway per zone (a zone may fail), one for all (cheaper), or none (closed network)."""
    allowed_cidrs: tuple[Range, ...] = ()
    """Ranges that may reach a public control plane endpoint; never 0.0.0.0/0."""
    flow_logs: bool = True


class Kubernetes(Part):
    version: str = Field("1.34", pattern=r"^1\.\d{2}$")
    private_endpoint: bool = True
    """True: the control plane answers inside the network only. False: also to `network.allowed_cidrs`."""
    log_retention_days: int = Field(365, ge=1)
    context: str = ""
    """cloud: local only: the kubeconfig context of the cluster that is already there; empty = the current one."""
    kubeconfig: str = ""
    """cloud: local only: the kubeconfig file; empty = $KUBECONFIG or ~/.kube/config."""
    admins: tuple[str, ...] = ()
    """Who may administer the cluster: role ARNs (aws), e-mails (gcp), group object ids (azure)."""


class SystemPool(Part):
    size: Literal["small", "medium", "large"] = "medium"
    min_nodes: int = Field(2, ge=1)
    max_nodes: int = Field(4, ge=1)


class Capacity(StrEnum):
    ON_DEMAND = "on-demand"
    SPOT = "spot"
    RESERVED = "reserved"
    CAPACITY_BLOCK = "capacity-block"
    FLEX_START = "flex-start"
    QUEUED = "queued"


class GpuPool(Part):
    name: Name
    accelerator: str
    """SkyPilot's name of the accelerator: H100, A100-80GB, L4 … (`trainfleet machines` lists them)."""
    per_node: int = Field(1, ge=1, le=16)
    min_nodes: int = Field(0, ge=0)
    max_nodes: int = Field(1, ge=1)
    kind: Literal["nodes", "hyperpod"] = "nodes"
    """nodes: the cloud's own node pool. hyperpod: SageMaker HyperPod instance group (aws, comes with issue 2)."""
    capacity: Capacity = Capacity.ON_DEMAND
    reservation: str = ""
    """The reservation's id, for capacity `reserved` and `capacity-block`."""
    interconnect: Literal["best", "none"] = "none"
    """best: the fastest fabric the machine has (EFA, GPUDirect, InfiniBand); none: plain Ethernet."""
    compact: bool = False
    """Place the nodes close together (one zone, a placement group): for multi-node training."""
    instance_type: str = ""
    """A machine of the catalogue, where more than one carries this accelerator and count; empty = the cheapest."""
    zone: str = ""
    """The one zone of a compact or reserved pool; empty = the platform's first zone."""
    disk_gib: int = Field(200, ge=50, le=16384)
    labels: dict[str, str] = {}


class SharedFilesystem(Part):
    kind: Literal["lustre", "nfs"] = "lustre"
    capacity_gib: int = Field(1200, ge=100)
    throughput_mbps_per_tib: Literal[125, 250, 500, 1000] = 125


class Storage(Part):
    retention_days: int = Field(30, ge=1)
    """Days a deleted or overwritten object can be brought back."""
    versioning: bool = True
    shared_filesystem: SharedFilesystem | None = None
    bucket_url: str = ""
    """cloud: local only: the object store that is already there (s3://, gs://, az:// or file://)."""


class Ray(Part):
    operator: str = Field("1.6.0", pattern=r"^\d+\.\d+\.\d+$")
    version: str = Field("2.60.0", pattern=r"^\d+\.\d+\.\d+$")
    tls: bool = True
    token_auth: bool = True
    image: str = ""
    """The container image of training pods; empty = the platform's registry with this version's tag."""


class Queue(Part):
    enabled: bool = False


class Secrets(Part):
    provider: Literal["cloud", "none"] = "cloud"
    names: tuple[Name, ...] = ()
    """Secrets that will exist (names only: a value never stands in a spec or in state)."""


class Monitoring(Part):
    enabled: bool = True
    retention_days: int = Field(15, ge=1)


class Budget(Part):
    monthly_usd: float = Field(gt=0)
    alert_at: tuple[Share, ...] = (0.5, 0.8, 1.0)
    """Shares of the budget at which an alert is sent."""
    emails: tuple[Email, ...] = ()
    """Empty = the owner."""


class PolicyException(Part):
    policy: str
    resource: str
    """The resource's name, or `*` for every resource of the stack."""
    reason: str = Field(min_length=10)
    until: date


class PlatformSpec(Part):
    """One GPU training platform. The whole input of a stack; see docs/architecture.md for a commented example."""

    name: Name
    cloud: Cloud
    region: str = ""
    """The cloud's region; may be empty for cloud: local only."""
    owner: Email
    environment: Literal["dev", "staging", "prod"] = "dev"
    """prod: data and keys are protected and retained on destroy."""
    network: Network = Network()
    kubernetes: Kubernetes = Kubernetes()
    system_pool: SystemPool = SystemPool()
    gpu_pools: tuple[GpuPool, ...] = ()
    storage: Storage = Storage()
    ray: Ray = Ray()
    queue: Queue = Queue()
    secrets: Secrets = Secrets()
    monitoring: Monitoring = Monitoring()
    budget: Budget | None = None
    tags: dict[str, str] = {}
    exceptions: tuple[PolicyException, ...] = ()

    @property
    def production(self) -> bool:
        """Whether data and keys are protected and kept on destroy."""
        return self.environment == "prod"
