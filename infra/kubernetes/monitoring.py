"""Monitoring: Prometheus, Grafana with dashboards, scrape targets of Ray, and alert rules.

Nothing is exposed outside; use `kubectl port-forward -n monitoring svc/kube-prometheus-stack-grafana
3000:80`. The definitions have a chart of their own: it is installed before every chart that provides a
monitor, and deleted last.
"""

from __future__ import annotations

from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from trainfleet.infra.kubernetes.alertmanager import CONFIG_KEY, CONFIG_SECRET, configuration
from trainfleet.infra.kubernetes.charts import PROMETHEUS_DEFINITIONS, PROMETHEUS_STACK, release
from trainfleet.infra.kubernetes.custom import custom
from trainfleet.infra.kubernetes.dashboards.alerts import alert_rules
from trainfleet.infra.kubernetes.dashboards.boards import boards
from trainfleet.infra.kubernetes.features import LayerFeatures
from trainfleet.infra.kubernetes.manifest_model import document
from trainfleet.infra.kubernetes.names import KUBERAY_NAMESPACE, MONITORING_NAMESPACE
from trainfleet.infra.kubernetes.values.monitoring import DASHBOARD_LABEL, stack
from trainfleet.infra.platform import TRAINING_NAMESPACE, Platform
from trainfleet.infra.spec.node_group import CAPACITY_LABEL, POOL_LABEL
from trainfleet.infra.spec.schema import PlatformSpec

API_VERSION = "monitoring.coreos.com/v1"


@document
class Relabeling:
    target_label: str
    source_labels: tuple[str, ...]


@document
class Endpoint:
    port: str
    interval: str
    relabelings: tuple[Relabeling, ...] | None = None


@document
class Namespaces:
    match_names: tuple[str, ...]


@document
class Selector:
    match_labels: dict[str, str]


@document
class PodMonitorSpec:
    namespace_selector: Namespaces
    selector: Selector
    pod_metrics_endpoints: tuple[Endpoint, ...]


@document
class ServiceMonitorSpec:
    namespace_selector: Namespaces
    selector: Selector
    endpoints: tuple[Endpoint, ...]


PROVIDED_EXPORTER = PodMonitorSpec(
    # Only GKE provides an exporter (docs: "Collect and view DCGM metrics"); its own collector feeds another
    # store.
    Namespaces(("gke-managed-system",)),
    Selector({"app.kubernetes.io/name": "gke-managed-dcgm-exporter"}),
    (Endpoint("metrics", "15s"),),
)


class Monitoring(pulumi.ComponentResource):
    """The definitions, the stack, dashboards, monitors and rules. Empty if monitoring is off."""

    def __init__(
        self, platform: Platform, spec: PlatformSpec, features: LayerFeatures, opts: pulumi.ResourceOptions
    ) -> None:
        super().__init__("trainfleet:kubernetes:Monitoring", f"{spec.name}-monitoring", None, opts)
        self._spec = spec
        self.definitions: list[pulumi.Resource] = []
        if features.monitoring:
            self.definitions = [
                release(
                    f"{spec.name}-monitoring-definitions",
                    PROMETHEUS_DEFINITIONS,
                    MONITORING_NAMESPACE,
                    {},
                    parent=self,
                )
            ]
            receivers = self._receivers()
            listed = any(pool.spec.preferences for pool in platform.pools)
            values = stack(
                spec.monitoring,
                MONITORING_NAMESPACE,
                volume=features.storage_class,
                node_labels=(POOL_LABEL, CAPACITY_LABEL) if listed else (POOL_LABEL,),
                dns_metrics=platform.dns_metrics,
                priority=features.own_priority,
            )
            release(
                f"{spec.name}-prometheus",
                PROMETHEUS_STACK,
                MONITORING_NAMESPACE,
                values,
                parent=self,
                depends_on=[*self.definitions, *receivers],
            )
            for board in boards(platform, features):
                self._dashboard(board.uid, board.json())
            for kind in ("head", "worker"):
                self._resource("PodMonitor", f"ray-{kind}", ray_pods(kind))
            if features.provided_gpu_metrics:
                self._resource("PodMonitor", "gpu-metrics", PROVIDED_EXPORTER)
            if features.kuberay:
                self._resource("ServiceMonitor", "kuberay-operator", operator())
            self._resource("PrometheusRule", "trainfleet", alert_rules(platform, features))
        self.register_outputs({})

    def _receivers(self) -> list[pulumi.Resource]:
        """The Secret with Alertmanager's configuration, which holds no secret."""
        receivers = self._spec.monitoring.receivers
        if not receivers:
            return []
        secret = k8s.core.v1.Secret(
            f"{self._spec.name}-alertmanager-receivers",
            metadata=k8s.meta.v1.ObjectMetaArgs(name=CONFIG_SECRET, namespace=MONITORING_NAMESPACE),
            string_data={CONFIG_KEY: configuration(receivers)},
            opts=pulumi.ResourceOptions(parent=self),
        )
        return [secret]

    def _dashboard(self, uid: str, text: str) -> None:
        k8s.core.v1.ConfigMap(
            f"{self._spec.name}-dashboard-{uid.removeprefix('trainfleet-')}",
            metadata=k8s.meta.v1.ObjectMetaArgs(
                name=f"dashboard-{uid}", namespace=MONITORING_NAMESPACE, labels={DASHBOARD_LABEL: "1"}
            ),
            data={f"{uid}.json": text},
            opts=pulumi.ResourceOptions(parent=self, delete_before_replace=True),
        )

    def _resource(self, kind: str, name: str, spec: Any) -> None:
        metadata = {"name": name, "namespace": MONITORING_NAMESPACE}
        resource = f"{self._spec.name}-{kind.lower()}-{name}"
        custom(
            resource,
            f"{API_VERSION}:{kind}",
            metadata,
            {"spec": spec},
            parent=self,
            depends_on=self.definitions,
        )


def ray_pods(kind: str) -> PodMonitorSpec:
    """Ray's pods of one kind, by the labels and the port's name that KubeRay gives them. The head tells its
    autoscaler's and dashboard's too.
    """
    labels = tuple(
        Relabeling(label, (f"__meta_kubernetes_pod_label_{label}",))
        for label in ("ray_io_cluster", "ray_io_node_type")
    )
    ports = ("metrics", "as-metrics", "dash-metrics") if kind == "head" else ("metrics",)
    endpoints = tuple(Endpoint(port, "15s", labels) for port in ports)
    return PodMonitorSpec(Namespaces((TRAINING_NAMESPACE,)), Selector({"ray.io/node-type": kind}), endpoints)


def operator() -> ServiceMonitorSpec:
    """The KubeRay operator, by its chart's labels."""
    return ServiceMonitorSpec(
        Namespaces((KUBERAY_NAMESPACE,)),
        Selector({"app.kubernetes.io/name": "kuberay-operator"}),
        (Endpoint("http", "30s"),),
    )
