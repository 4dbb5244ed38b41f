"""Platform: what each cloud hands to the cluster layer above it. The one seam between infra/<cloud> and
infra/kubernetes.

Every cloud's `build(spec)` returns one; `trainfleet.infra.kubernetes.install(platform, spec)` and the stack
outputs read nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pulumi
import pulumi_kubernetes as k8s

from trainfleet.infra.catalog.machines import Machine
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.spec.schema import GpuPool

TRAINING_NAMESPACE = "training"
TRAINING_SERVICE_ACCOUNT = "trainer"
SHARED_CLAIM = "shared"
"""The ReadWriteMany claim of the shared filesystem, in the training namespace."""
LOGS_NAMESPACE, LOGS_SERVICE_ACCOUNT = "logging", "log-shipper"
"""Where the shipper of pod logs runs: the cloud binds `identities["logs"]` to this account."""
LAUNCHERS_GROUP = "trainfleet:launchers"
"""Kubernetes group of who may launch: the cloud's access entries put people and SkyPilot into it."""

ProvidedFeature = Literal[
    "gpu-plugin",
    "rdma-plugin",
    "gpu-metrics",
    "autoscaler",
    "network-metadata-guard",
    "logs",
    "node-problems",
    "storage-class",
]
"""LayerFeatures of the cluster layer that a cloud may bring itself, so that the layer must not install a second one."""


@dataclass(frozen=True)
class Pool:
    """A GPU pool that exists: the wish, the machine that serves it, and the labels its nodes carry (also at
    zero nodes).
    """

    spec: GpuPool
    machine: Machine
    labels: dict[str, str]
    zones: tuple[str, ...]
    nodes: pulumi.Resource | None
    rdma_resource: str = ""
    """Extended resource that a pod asks for to use the fabric; empty where it uses none."""
    pod_annotations: dict[str, str] = field(default_factory=dict)
    """What a pod must carry to use the pool's fabric (GKE: its network interfaces)."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables with which NCCL uses the pool's fabric."""
    selector: dict[str, str] = field(default_factory=dict)
    """Labels that a pod must ask for beside the pool's own (HyperPod: that the node is healthy). Nodes gain
    and lose them by themselves.
    """
    tolerations: tuple[dict[str, str], ...] = ()
    """For taints that the nodes carry beside the GPU taint (AKS: spot): every pod of the pool needs them."""

    @property
    def fabric(self) -> str:
        """The fabric that pods of this pool can use, by a resource or by networks that they name: the
        machine's, or none.
        """
        return self.machine.rdma if self.rdma_resource or self.pod_annotations else "none"


@dataclass(frozen=True)
class ServiceIdentity:
    """A Kubernetes service account bound to a cloud identity; annotations and labels are what the cloud wants
    on it.
    """

    namespace: str
    service_account: str
    cloud_identity: pulumi.Input[str]
    annotations: dict[str, pulumi.Input[str]] = field(default_factory=dict)
    labels: dict[str, pulumi.Input[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Platform:
    cloud: Cloud
    kubernetes: k8s.Provider
    """Provider bound by `cluster_identifier`, so that a new token or endpoint does not replace what it made."""
    cluster: pulumi.Resource | None
    cluster_name: pulumi.Input[str]
    kube_context: pulumi.Input[str]
    kubeconfig: pulumi.Input[str]
    bucket_url: pulumi.Input[str]
    registry: pulumi.Input[str]
    pools: tuple[Pool, ...]
    identities: dict[str, ServiceIdentity]
    """By role: training, autoscaler, secrets, csi-… Only those that the cluster layer must create accounts
    for.
    """
    storage_class_provisioner: str
    """CSI driver of the default encrypted block storage class; empty = the cluster has its own."""
    storage_class_parameters: dict[str, pulumi.Input[str]]
    shared_filesystem: SharedVolume | None
    autoscaler: str
    """SkyPilot's autoscaler kind for this context."""
    api_cidrs: tuple[pulumi.Input[str], ...]
    """Where the control plane and cloud endpoints are, for network policies; empty = TLS to anywhere but
    link-local.
    """
    system_nodes: tuple[pulumi.Resource, ...] = ()
    """Nodes that run the cluster layer itself: made before it, gone after it."""
    secrets: dict[str, pulumi.Input[str]] = field(default_factory=dict)
    """By the spec's name: what the cloud calls a secret that external-secrets may read."""
    provides: frozenset[ProvidedFeature] = frozenset()
    """What the cloud provides itself."""
    secret_store: dict[str, Any] = field(default_factory=dict)
    """The `provider` block of the external-secrets store for this cloud's secret manager; empty = there is
    none.
    """
    log_store: LogStore | None = None
    """Where the layer sends the logs of pods; None where the cloud gathers them itself, or there is no store."""
    launchers: tuple[Subject, ...] = ()
    """Who may launch, beside LAUNCHERS_GROUP: subjects as the cloud's own login names them in the cluster."""
    metadata_endpoints: tuple[tuple[str, int], ...] = ()
    """Link-local addresses (range, port) that pods need for their identity; the rest of link-local stays
    closed.
    """


@dataclass(frozen=True)
class SharedVolume:
    """A ReadWriteMany filesystem that exists: how a PersistentVolume names it."""

    driver: str
    handle: pulumi.Input[str]
    attributes: dict[str, pulumi.Input[str]]
    capacity_gib: int
    mount_options: tuple[str, ...] = ()


@dataclass(frozen=True)
class LogStore:
    """The cloud's log store as a log shipper needs it: a Fluent Bit output and its settings, written under an
    identity of the platform.
    """

    output: str
    """Fluent Bit's output plugin: cloudwatch_logs, stackdriver, azure_logs_ingestion."""
    settings: dict[str, pulumi.Input[str]]
    identity: str
    """Key of `Platform.identities` under which the shipper runs."""


@dataclass(frozen=True)
class Subject:
    """A person, group or account in an RBAC binding."""

    kind: Literal["User", "Group"]
    name: str
