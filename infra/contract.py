"""The stack's outputs as a versioned model: all that launchers may know of a platform. No Pulumi import.

Written by `stacks/__main__.py` as the stack output `platform`; read from a saved stack export, `pulumi stack output
--json` or a file. A newer major version than this code knows is refused with the reason; older ones are brought forward.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

CONTRACT_VERSION = 1


class Output(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PoolOutput(Output):
    """One node pool as a launcher sees it."""

    name: str
    accelerator: str
    per_node: int
    instance_type: str
    min_nodes: int
    max_nodes: int
    spot: bool
    node_selector: dict[str, str]
    tolerations: list[dict[str, str]]
    rdma: str
    """none, efa, gpudirect-tcpx, gpudirect-tcpxo, roce or infiniband: what pods of this pool can use."""
    rdma_resource: str
    """Extended resource to request for RDMA (vpc.amazonaws.com/efa), or empty."""
    rdma_nics: int
    gpu_memory_gib: float
    usd_per_hour: float | None


class PlatformOutputs(Output):
    """What a stack hands to launchers."""

    contract_version: int = Field(CONTRACT_VERSION)
    trainfleet_version: str
    name: str
    cloud: str
    region: str
    environment: str
    kube_context: str
    kubeconfig: str
    """A kubeconfig document (JSON) for the cluster, without stored credentials (exec or empty user)."""
    bucket_url: str
    """s3://, gs://, az:// or file:// URL under which runs are stored."""
    registry: str
    """Image repository prefix, or empty."""
    image: str
    """Container image of training pods."""
    namespace: str
    """Where training pods run."""
    service_account: str
    """Kubernetes service account bound to the bucket by workload identity."""
    training_identity: str
    """The cloud's identity behind it: role ARN, service account e-mail, client id; empty on local."""
    queue: str
    """Kueue local queue, or empty."""
    autoscaler: str
    """SkyPilot's `autoscaler` setting for this context: generic, gke, karpenter or empty."""
    shared_volume: str
    """ReadWriteMany claim name in the namespace, or empty."""
    secrets: list[str]
    pools: list[PoolOutput]
    ray_version: str
    ray_tls: bool
    ray_token_auth: bool


def read_outputs(document: dict[str, Any]) -> PlatformOutputs:
    """Read outputs from a `pulumi stack output --json`, a stack export or the bare `platform` object.

    Raises:
        InputError: not a Trainfleet output, or of a version that cannot be read; says which and why.
    """
    raise NotImplementedError
