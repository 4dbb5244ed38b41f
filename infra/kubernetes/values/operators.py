"""Values of the operators that have few: KubeRay, the cluster autoscaler, external-secrets, cert-manager,
node problem detector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pulumi

from trainfleet.infra.kubernetes.manifest_model import document
from trainfleet.infra.kubernetes.values.common import (
    EVERYWHERE,
    SMALL,
    Account,
    Amounts,
    ContainerSecurity,
    Image,
    PodSecurity,
    Resources,
    Switch,
    Toleration,
)
from trainfleet.infra.platform import TRAINING_NAMESPACE, Platform, ServiceIdentity
from trainfleet.infra.spec.schema import PlatformSpec

AUTOSCALERS = {"1.33": "v1.33.0", "1.34": "v1.34.1", "1.35": "v1.35.0", "1.36": "v1.36.1"}
"""The autoscaler's release per Kubernetes version; others use the chart's default."""


@document
class Variable:
    name: str
    value: str


@document
class KubeRay:
    image: Image
    watch_namespace: tuple[str, ...]
    single_namespace_install: bool
    leader_election_enabled: bool
    env: tuple[Variable, ...]
    security_context: ContainerSecurity
    resources: Resources
    priority_class_name: str | None


def kuberay(spec: PlatformSpec, priority: str | None) -> KubeRay:
    return KubeRay(
        image=Image(f"v{spec.ray.operator}"),
        # `featureGates` is replaced as a whole list, so it is left to the chart.
        watch_namespace=(TRAINING_NAMESPACE,),
        single_namespace_install=True,
        leader_election_enabled=True,
        # KubeRay's own init container takes 15 s more per worker. Workers of a launch wait themselves, and
        # others restart until their head runs.
        env=(Variable("ENABLE_INIT_CONTAINER_INJECTION", "false"),),
        # Explicit, because the namespace rejects a pod without it.
        security_context=ContainerSecurity(),
        # Measured upstream: 500 Ray pods need about 500 MB.
        resources=Resources(Amounts("100m", "512Mi"), Amounts("500m", "1Gi")),
        priority_class_name=priority,
    )


@document
class Discovery:
    cluster_name: pulumi.Input[str]


@document
class Rbac:
    service_account: Account


@document
class ScalerArguments:
    KEYS: ClassVar = {
        "balance_similar_node_groups": "balance-similar-node-groups",
        "skip_nodes_with_system_pods": "skip-nodes-with-system-pods",
        "skip_nodes_with_local_storage": "skip-nodes-with-local-storage",
        "scale_down_unneeded_time": "scale-down-unneeded-time",
        "max_node_provision_time": "max-node-provision-time",
    }
    expander: str
    balance_similar_node_groups: bool
    # System pods must not keep a GPU node; training pods with local scratch must.
    skip_nodes_with_system_pods: bool = False
    skip_nodes_with_local_storage: bool = True
    scale_down_unneeded_time: str = "10m"
    # In a busy zone, an eight-GPU machine takes longer than the default 15 minutes to start.
    max_node_provision_time: str = "30m"


@document
class Autoscaler:
    cloud_provider: str
    aws_region: str
    auto_discovery: Discovery
    rbac: Rbac
    fullname_override: str
    dns_policy: str
    extra_args: ScalerArguments
    resources: Resources
    security_context: PodSecurity
    container_security_context: ContainerSecurity
    image: Image | None


def autoscaler(
    platform: Platform, spec: PlatformSpec, identity: ServiceIdentity, *, ordered: bool
) -> Autoscaler:
    """`ordered`: whether node groups have priorities. Groups of one priority compete by the waste. They are
    one pool in several zones and are not balanced, which would spread the workers of a run over the zones.
    """
    expander = "priority,least-waste" if ordered else "least-waste"
    tag = AUTOSCALERS.get(spec.kubernetes.version)
    return Autoscaler(
        # Auto Scaling groups, found by tags.
        cloud_provider="aws",
        aws_region=spec.region,
        auto_discovery=Discovery(platform.cluster_name),
        rbac=Rbac(Account(False, identity.service_account)),
        fullname_override="cluster-autoscaler",
        # The autoscaler must run without cluster DNS, which may wait for a node.
        dns_policy="Default",
        extra_args=ScalerArguments(expander, balance_similar_node_groups=not ordered),
        resources=Resources(Amounts("100m", "600Mi"), Amounts(memory="600Mi")),
        security_context=PodSecurity(run_as_user=65534, run_as_group=65534),
        container_security_context=ContainerSecurity(run_as_non_root=None, seccomp_profile=None),
        image=Image(tag) if tag else None,
    )


@document
class Workload:
    resources: Resources


@dataclass(frozen=True, kw_only=True)
class ExternalSecrets:
    KEYS: ClassVar = {"install_crds": "installCRDs"}
    install_crds: bool
    leader_elect: bool
    process_cluster_external_secret: bool
    process_push_secret: bool
    process_cluster_push_secret: bool
    service_account: Account
    resources: Resources
    webhook: Workload
    cert_controller: Workload
    service_monitor: Switch


def external_secrets(identity: ServiceIdentity, *, monitored: bool) -> ExternalSecrets:
    return ExternalSecrets(
        # Templates of this chart, which are upgraded, unlike its `crds` folder.
        install_crds=True,
        leader_elect=True,
        # Secrets are only read, into one namespace.
        process_cluster_external_secret=False,
        process_push_secret=False,
        process_cluster_push_secret=False,
        service_account=Account(False, identity.service_account),
        resources=SMALL,
        webhook=Workload(SMALL),
        cert_controller=Workload(SMALL),
        service_monitor=Switch(monitored),
    )


@document
class Definitions:
    enabled: bool
    keep: bool


@document
class Election:
    namespace: str


@document
class Global:
    leader_election: Election


@dataclass(frozen=True, kw_only=True)
class CertManager:
    KEYS: ClassVar = {"global_": "global"}
    crds: Definitions
    global_: Global
    resources: Resources
    webhook: Workload
    cainjector: Workload
    prometheus: Switch


def cert_manager(namespace: str, *, retain: bool) -> CertManager:
    return CertManager(
        # Templates of this chart. NOTE: kept in production, or its certificates are lost.
        crds=Definitions(True, retain),
        # The default namespace of its lease is kube-system, which managed clusters protect.
        global_=Global(Election(namespace)),
        resources=SMALL,
        webhook=Workload(SMALL),
        cainjector=Workload(Resources(Amounts("50m", "256Mi"), Amounts(memory="512Mi"))),
        prometheus=Switch(False),
    )


@document
class Metrics:
    enabled: bool
    service_monitor: Switch


@document
class ProblemDetector:
    resources: Resources
    tolerations: tuple[Toleration, ...]
    metrics: Metrics


def node_problems(*, monitored: bool) -> ProblemDetector:
    resources = Resources(Amounts("20m", "64Mi"), Amounts(memory="128Mi"))
    return ProblemDetector(resources, tolerations=EVERYWHERE, metrics=Metrics(monitored, Switch(monitored)))
