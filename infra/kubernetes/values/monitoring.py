"""Values of kube-prometheus-stack: Prometheus that finds every monitor, and Grafana without accounts.

Alerts on etcd, the scheduler and the controllers are disabled, because managed clusters hide them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trainfleet.infra.kubernetes.alertmanager import CONFIG_SECRET, mounted_secrets
from trainfleet.infra.kubernetes.manifest_model import document
from trainfleet.infra.kubernetes.names import NODE_NAMESPACE, STORAGE_CLASS
from trainfleet.infra.kubernetes.values.common import EVERYWHERE, Amounts, Resources, Switch, Toleration
from trainfleet.infra.spec.schema import Monitoring

POOL_METRIC_LABEL = "label_trainfleet_io_pool"
CAPACITY_METRIC_LABEL = "label_trainfleet_io_capacity"
"""How kube-state-metrics shows the node labels `trainfleet.io/pool` and `trainfleet.io/capacity`."""
DASHBOARD_LABEL = "grafana_dashboard"
VOLUME_GIB = 50
OFF = Switch(False)


@document
class Webhooks:
    enabled: bool


@document
class Operator:
    admission_webhooks: Webhooks
    tls: Switch
    resources: Resources


@document
class Requests:
    storage: str


@document
class ClaimResources:
    requests: Requests


@document
class ClaimSpec:
    access_modes: tuple[str, ...]
    resources: ClaimResources
    storage_class_name: str


@document
class Claim:
    spec: ClaimSpec


@document
class StorageSpec:
    volume_claim_template: Claim


@document
class PrometheusSpec:
    retention: str
    retention_size: str
    resources: Resources
    storage_spec: StorageSpec | None
    priority_class_name: str | None
    # False: use every monitor and rule of the cluster, not only those of this release.
    service_monitor_selector_nil_uses_helm_values: bool = False
    pod_monitor_selector_nil_uses_helm_values: bool = False
    rule_selector_nil_uses_helm_values: bool = False
    probe_selector_nil_uses_helm_values: bool = False
    scrape_config_selector_nil_uses_helm_values: bool = False


@document
class Prometheus:
    prometheus_spec: PrometheusSpec


@document
class Dashboards:
    enabled: bool
    label: str
    label_value: str
    search_namespace: str
    # A reload needs an account. Grafana finds new dashboards itself.
    skip_reload: bool = True


@document
class Datasources:
    # Before Grafana starts, because without a reload it reads them only then.
    init_datasources: bool = True
    skip_reload: bool = True


@document
class Sidecar:
    dashboards: Dashboards
    datasources: Datasources


@document
class Environment:
    KEYS: ClassVar = {"no_admin": "GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"}
    no_admin: str


@document
class Anonymous:
    KEYS: ClassVar = {"org_role": "org_role"}
    enabled: bool
    org_role: str


@document
class Auth:
    KEYS: ClassVar = {"disable_login_form": "disable_login_form"}
    disable_login_form: bool


@document
class Analytics:
    KEYS: ClassVar = {"check_for_updates": "check_for_updates", "reporting_enabled": "reporting_enabled"}
    check_for_updates: bool
    reporting_enabled: bool


@document
class Ini:
    KEYS: ClassVar = {"anonymous": "auth.anonymous"}
    anonymous: Anonymous
    auth: Auth
    analytics: Analytics


@document
class Grafana:
    KEYS: ClassVar = {"ini": "grafana.ini"}
    env: Environment
    ini: Ini
    sidecar: Sidecar
    test_framework: Switch
    resources: Resources
    default_dashboards_timezone: str = "utc"


@document
class StateMetrics:
    metric_labels_allowlist: tuple[str, ...]
    resources: Resources


@document
class NodeExporter:
    namespace_override: str
    tolerations: tuple[Toleration, ...]
    resources: Resources


@document
class AlertmanagerSpec:
    config_secret: str | None = None
    use_existing_secret: bool | None = None
    secrets: tuple[str, ...] | None = None
    priority_class_name: str | None = None


@document
class Alertmanager:
    enabled: bool
    alertmanager_spec: AlertmanagerSpec | None


@dataclass(frozen=True, kw_only=True)
class Stack:
    KEYS: ClassVar = {"state_metrics": "kube-state-metrics", "node_exporter": "prometheus-node-exporter"}
    crds: Switch
    prometheus_operator: Operator
    prometheus: Prometheus
    alertmanager: Alertmanager
    grafana: Grafana
    state_metrics: StateMetrics
    node_exporter: NodeExporter
    kube_etcd: Switch = OFF
    kube_scheduler: Switch = OFF
    kube_controller_manager: Switch = OFF
    kube_proxy: Switch = OFF
    core_dns: Switch | None = None


def stack(
    settings: Monitoring,
    namespace: str,
    *,
    volume: bool,
    node_labels: tuple[str, ...],
    dns_metrics: bool,
    priority: str | None,
) -> Stack:
    claim = Claim(ClaimSpec(("ReadWriteOnce",), ClaimResources(Requests(f"{VOLUME_GIB}Gi")), STORAGE_CLASS))
    spec = PrometheusSpec(
        retention=f"{settings.retention_days}d",
        # NOTE: a full disk stops the collection.
        retention_size=f"{VOLUME_GIB * 9 // 10}GB",
        resources=Resources(Amounts("250m", "1Gi"), Amounts(memory="4Gi")),
        storage_spec=StorageSpec(claim) if volume else None,
        priority_class_name=priority,
    )
    small = Resources(Amounts("20m", "64Mi"), Amounts(memory="256Mi"))
    receivers = CONFIG_SECRET if settings.receivers else settings.alertmanager_secret
    alerts = AlertmanagerSpec(
        config_secret=receivers or None,
        use_existing_secret=True if receivers else None,
        secrets=mounted_secrets(settings.receivers) or None,
        priority_class_name=priority,
    )
    return Stack(
        # They have a chart of their own, which upgrades them.
        crds=Switch(False),
        # The webhook only checks rules, and ours are checked before they get here; without it no certificate
        # is made by a job.
        prometheus_operator=Operator(Webhooks(False), Switch(False), small),
        prometheus=Prometheus(spec),
        # The operator uses a configuration without receivers where the Secret or its key is missing
        # (prometheus-operator, loadConfigurationFromSecret).
        alertmanager=Alertmanager(True, alerts if receivers or priority else None),
        grafana=Grafana(
            # No account and no password: anonymous read-only access for people who may port-forward.
            env=Environment("true"),
            ini=Ini(Anonymous(True, "Viewer"), Auth(True), Analytics(False, False)),
            sidecar=Sidecar(Dashboards(True, DASHBOARD_LABEL, "1", namespace), Datasources()),
            test_framework=Switch(False),
            resources=Resources(Amounts("100m", "256Mi"), Amounts(memory="512Mi")),
        ),
        state_metrics=StateMetrics((f"nodes=[{','.join(node_labels)}]",), small),
        # It reads the host, which its own namespace may allow and this one need not.
        node_exporter=NodeExporter(NODE_NAMESPACE, EVERYWHERE, small),
        # A target that never answers is an alert.
        core_dns=None if dns_metrics else OFF,
    )
