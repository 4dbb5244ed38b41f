"""Values of Kueue, and its own configuration, which the chart takes as text."""

from __future__ import annotations

import json

from trainfleet.infra.kubernetes.chart_keys import known, refuse_unknown
from trainfleet.infra.kubernetes.manifest_model import document, plain
from trainfleet.infra.kubernetes.names import TRAINING_NAMESPACE
from trainfleet.infra.kubernetes.values.common import Amounts, Image, Resources

VERSION = "v0.17.1"
NODE_START = "45m"
"""An eight-GPU node takes up to half an hour to start."""


@document
class Manager:
    image: Image
    resources: Resources
    priority_class_name: str | None


@document
class ControllerManager:
    manager: Manager


@document
class ManagerConfig:
    controller_manager_config_yaml: str


@document
class Kueue:
    enable_prometheus: bool
    controller_manager: ControllerManager
    manager_config: ManagerConfig


@document
class Selector:
    match_labels: dict[str, str]


@document
class Frameworks:
    frameworks: tuple[str, ...]


@document
class QuotaResources:
    exclude_resource_prefixes: tuple[str, ...]


@document
class Retention:
    after_finished: str


@document
class RetentionPolicies:
    workloads: Retention


@document
class Health:
    health_probe_bind_address: str


@document
class Bind:
    bind_address: str
    enable_cluster_queue_resources: bool


@document
class Port:
    port: int


@document
class Election:
    leader_elect: bool
    resource_name: str


@document
class WaitForPods:
    timeout: str
    recovery_timeout: str
    block_admission: bool


@document
class Configuration:
    api_version: str
    kind: str
    health: Health
    metrics: Bind
    webhook: Port
    leader_election: Election
    managed_jobs_namespace_selector: Selector
    wait_for_pods_ready: WaitForPods
    integrations: Frameworks
    resources: QuotaResources
    object_retention_policies: RetentionPolicies
    manage_jobs_without_queue_name: bool = False


def kueue(*, monitored: bool, start_within: str, priority: str | None = None) -> Kueue:
    """Kueue's values.

    Args:
        monitored: whether the cluster has the definitions of monitors.
        start_within: how long an admitted job may wait for its pods.
        priority: the priority class of Kueue's pod.
    """
    manager = Manager(
        # The chart's default differs between its repository (staging) and its packages.
        image=Image(tag=VERSION, repository="registry.k8s.io/kueue/kueue", pull_policy="IfNotPresent"),
        resources=Resources(Amounts("500m", "512Mi"), Amounts(memory="1Gi")),
        priority_class_name=priority,
    )
    document = plain(configuration(start_within))
    refuse_unknown(
        "Kueue's configuration", known()["kinds"][f"{document['apiVersion']}:{document['kind']}"], document
    )
    return Kueue(monitored, ControllerManager(manager), ManagerConfig(json.dumps(document, indent=2)))


def configuration(start_within: str) -> Configuration:
    return Configuration(
        api_version="config.kueue.x-k8s.io/v1beta2",
        kind="Configuration",
        health=Health(":8081"),
        metrics=Bind(":8443", enable_cluster_queue_resources=True),
        webhook=Port(9443),
        leader_election=Election(True, "c1f6bfd2.kueue.x-k8s.io"),
        # Pods of other namespaces are never queued and never wait for the webhook.
        managed_jobs_namespace_selector=Selector({"kubernetes.io/metadata.name": TRAINING_NAMESPACE}),
        # A job that was admitted but cannot start returns its quota.
        wait_for_pods_ready=WaitForPods(start_within, "15m", False),
        # RayJob and RayCluster for KubeRay, pod for SkyPilot. Kueue skips the cluster of a RayJob that it
        # manages (FindAncestorJobManagedByKueue in pkg/controller/jobframework of this version; before, it
        # was queued twice: ray-project/kuberay#4064). NOTE: not rayservice: Kueue then suspends the
        # RayService, and KubeRay 1.6 never resumes its cluster (#4686). Its cluster has the label and is
        # queued by itself, since Kueue passes over an owner whose integration is disabled.
        integrations=Frameworks(("batch/job", "ray.io/rayjob", "ray.io/raycluster", "pod")),
        # A request for a resource without a quota is never admitted; these are not scarce.
        resources=QuotaResources(
            ("ephemeral-storage", "hugepages-", "smarter-devices/", "networking.gke.io")
        ),
        object_retention_policies=RetentionPolicies(Retention("168h")),
    )
