"""Platform: what each cloud hands to the cluster layer. The only interface between infra/<cloud> and
infra/kubernetes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pulumi
import pulumi_kubernetes as k8s

from trainfleet.infra.catalog.machines import Machine
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.kubernetes import names
from trainfleet.infra.spec.node_group import NodeGroup
from trainfleet.infra.spec.part import STORE_PORT

TRAINING_NAMESPACE = names.TRAINING_NAMESPACE
TRAINING_SERVICE_ACCOUNT = "trainer"
SHARED_CLAIM = "shared"
SCRATCH = "scratch"
"""Folder of the shared filesystem that is linked to no bucket."""
"""The ReadWriteMany claim of the shared filesystem, in the training namespace."""
LOGS_NAMESPACE, LOGS_SERVICE_ACCOUNT = "logging", "log-shipper"
"""The account of the log shipper, to which the cloud binds `identities["logs"]`."""
HCA_SHARES = 63
"""How many shares of its InfiniBand adapters a node announces. A training's pod requests as many as there
are adapters.
"""
LAUNCHERS_GROUP = "trainfleet:launchers"
"""Kubernetes group of launchers: people and SkyPilot."""

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
"""LayerFeatures of the cluster layer that a cloud may bring itself, so that the layer must not install a
second one.
"""


@dataclass(frozen=True)
class Pool:
    """A node group of a GPU pool: its spec, its machine, and the labels of its nodes (also at zero nodes)."""

    spec: NodeGroup
    machine: Machine
    labels: dict[str, str]
    zones: tuple[str, ...]
    nodes: pulumi.Resource | None
    rdma_resource: str = ""
    """Extended resource that a pod requests to use the fabric; empty if there is none."""
    pod_annotations: dict[str, str] = field(default_factory=dict)
    """Annotations that a pod needs to use the pool's fabric (GKE: its network interfaces)."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables that make NCCL use the pool's fabric."""
    selector: dict[str, str] = field(default_factory=dict)
    """Labels that a pod must select in addition to the pool's own (HyperPod: that the node is healthy)."""
    tolerations: tuple[dict[str, str], ...] = ()
    """For taints in addition to the GPU taint (AKS: spot): every pod of the pool needs them."""
    group_name: pulumi.Input[str] = ""
    """The group's name in the cluster's autoscaler (GKE), or a regular expression of it (others); empty if
    it has none.
    """
    provisioning_class: str = ""
    """Class of the ProvisioningRequest that alone adds nodes (GKE: queued provisioning); empty: none."""

    @property
    def fabric(self) -> str:
        """The fabric that pods of this pool can use: the machine's, or none."""
        return self.machine.rdma if self.rdma_resource or self.pod_annotations else "none"


@dataclass(frozen=True)
class ServiceIdentity:
    """A Kubernetes service account bound to a cloud identity, with the annotations and labels that the cloud
    requires.
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
    """Bound by `cluster_identifier`, so that a new token or endpoint does not replace its resources."""
    cluster: pulumi.Resource | None
    cluster_name: pulumi.Input[str]
    kube_context: pulumi.Input[str]
    kubeconfig: pulumi.Input[str]
    bucket_url: pulumi.Input[str]
    registry: pulumi.Input[str]
    pools: tuple[Pool, ...]
    """Every node group, in the order of the pools and of their capacities."""
    identities: dict[str, ServiceIdentity]
    """By role (training, autoscaler, secrets, …): those for which the cluster layer creates accounts."""
    storage_class_provisioner: str
    """CSI driver of the encrypted default storage class; empty = the cluster has its own."""
    storage_class_parameters: dict[str, pulumi.Input[str]]
    shared_filesystem: SharedVolume | None
    autoscaler: str
    """SkyPilot's autoscaler kind for this context."""
    api_cidrs: tuple[pulumi.Input[str], ...]
    """Ranges of the control plane and cloud endpoints, for network policies; empty = TLS to anywhere except
    link-local.
    """
    system_nodes: tuple[pulumi.Resource, ...] = ()
    """Nodes that run the cluster layer: created before it, deleted after it."""
    secrets: dict[str, pulumi.Input[str]] = field(default_factory=dict)
    """The cloud's name of each secret, by the spec's name."""
    provides: frozenset[ProvidedFeature] = frozenset()
    """Features that the cloud provides."""
    secret_store: dict[str, Any] = field(default_factory=dict)
    """The `provider` block of the external-secrets store for this cloud's secret manager; empty = none."""
    log_store: LogStore | None = None
    """Where the layer sends the logs of pods; None if the cloud collects them, or without a store."""
    priorities_namespace: str = ""
    """Where the cluster autoscaler reads the priorities of node groups; empty = nowhere."""
    launchers: tuple[Subject, ...] = ()
    """Launchers in addition to LAUNCHERS_GROUP: subjects as the cloud's login names them."""
    limits_critical_pods: bool = False
    """Whether pods of a system-*-critical class are admitted only to a namespace with a quota for these
    classes. GKE has one in kube-system, and answers elsewhere: `insufficient quota to match these scopes`
    (NVIDIA/gpu-operator#660, aws-observability/helm-charts#358). EKS and AKS admit them anywhere.
    """
    dns_metrics: bool = True
    """Whether the cluster's DNS serves its metrics at the port of CoreDNS. GKE's does since 1.36, where it is
    CoreDNS (GKE, About kube-dns); its own kube-dns before has another port for them (10054).
    """
    store_port: int = STORE_PORT
    """TCP port of the object store."""
    metadata_endpoints: tuple[tuple[str, int], ...] = ()
    """Link-local addresses (range, port) that pods need for their identity. All others stay closed."""

    def groups_by_pool(self) -> tuple[tuple[Pool, ...], ...]:
        """The node groups of each pool, in order of preference."""
        names = dict.fromkeys(group.spec.pool for group in self.pools)
        return tuple(tuple(group for group in self.pools if group.spec.pool == name) for name in names)


@dataclass(frozen=True)
class SharedVolume:
    """A ReadWriteMany filesystem, as a PersistentVolume refers to it."""

    driver: str
    handle: pulumi.Input[str]
    attributes: dict[str, pulumi.Input[str]]
    capacity_gib: int
    mount_options: tuple[str, ...] = ()
    folders: tuple[str, ...] = ("datasets", "runs", SCRATCH)
    """Folders that training pods may write."""


@dataclass(frozen=True)
class LogStore:
    """The cloud's log store: a Fluent Bit output, its settings, and the identity that writes."""

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
