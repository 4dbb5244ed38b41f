"""A platform's monitoring on a cluster, in place of the chart: the Prometheus operator, Prometheus,
Alertmanager and kube-state-metrics in pods, with the rules and monitors that the layer plans.

Three things differ from a platform. Durations of the rules are divided by FASTER or SLOWER, so that a rehearsal
takes minutes. Targets are scraped every SCRAPE. And what needs GPUs or Kueue is served by the stand-ins of
exporters.py.
"""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

from tests.cluster.conftest import Cluster, until
from tests.cluster.monitoring_programs import DEFINITIONS, built, image, load_images
from tests.infra.kubernetes.planned import plan
from trainfleet.infra.kubernetes.names import KUBERAY_NAMESPACE, MONITORING_NAMESPACE
from trainfleet.local_cluster.images import LOCAL

FASTER = 20
"""Durations of the rules, their `for` and their windows, are divided by this: an hour is three minutes."""
SCRAPE = "3s"
API = "monitoring.coreos.com/v1"
SLOWER = {"RayPodRestarts": 10}
"""Rules whose durations are divided by less: the kubelet's back-off between restarts is that of a platform, and
the fourth comes more than a minute after the first."""
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
SELECT_ALL: dict[str, Any] = {
    f"{kind}{what}Selector": {}
    for kind in ("podMonitor", "serviceMonitor", "rule")
    for what in ("", "Namespace")
}
"""As the chart sets them with `...SelectorNilUsesHelmValues: false`."""


def scaled(duration: str, by: int = FASTER) -> str:
    """A duration of Prometheus, divided by a number."""
    number, unit = int(duration[:-1]), duration[-1]
    return f"{number * UNITS[unit] * 1000 // by}ms"


def scaled_rules(spec: dict[str, Any]) -> dict[str, Any]:
    """The spec of a PrometheusRule, with every `for` and every window divided by FASTER."""
    faster: dict[str, Any] = json.loads(json.dumps(spec))
    for group in faster["groups"]:
        group["interval"] = "1s"
        for rule in group["rules"]:
            by = SLOWER.get(rule["alert"], FASTER)
            rule["for"] = scaled(rule["for"], by)
            windows = re.split(r"\[(\d+[smhd])\]", rule["expr"])
            windows[1::2] = [f"[{scaled(window, by)}]" for window in windows[1::2]]
            rule["expr"] = "".join(windows)
    return faster


def platform_objects() -> list[dict[str, Any]]:
    """The layer's rules and monitors, of a platform with GPUs, a queue and certificates."""
    planned = plan({"ray": {"image": LOCAL}})
    found = []
    for kind in ("PrometheusRule", "PodMonitor", "ServiceMonitor"):
        for name, whole in planned.custom(kind).items():
            spec = json.loads(json.dumps(whole["spec"]))
            if kind == "PrometheusRule":
                spec = scaled_rules(spec)
            for endpoint in (*spec.get("endpoints", ()), *spec.get("podMetricsEndpoints", ())):
                endpoint["interval"] = endpoint["scrapeTimeout"] = SCRAPE
            found.append(of(kind, name, spec, API))
    return found


def of(
    kind: str, name: str, spec: dict[str, Any], version: str = "v1", namespace: str = MONITORING_NAMESPACE
) -> dict[str, Any]:
    """An object with a spec, labeled with its own name."""
    metadata = {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/name": name}}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def namespace(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def service_monitor(name: str, space: str, port: str, **endpoint: Any) -> dict[str, Any]:
    """A monitor of the service with this name, as a chart installs it."""
    spec = {
        "namespaceSelector": {"matchNames": [space]},
        "selector": {"matchLabels": {"app.kubernetes.io/name": name}},
        "endpoints": [{"port": port, "interval": SCRAPE, "scrapeTimeout": SCRAPE, **endpoint}],
        "fallbackScrapeProtocol": "PrometheusText0.0.4",  # the stand-ins' server names no type
    }
    return of("ServiceMonitor", name, spec, API, space)


def deployment(name: str, placed: dict[str, Any], *arguments: str) -> dict[str, Any]:
    """One pod of a program, on the node and with the account of `placed`."""
    container = {
        "name": name,
        "image": image(name),
        "args": list(arguments),
        "ports": [{"name": "http", "containerPort": 8080}],
    }
    labels = {"app.kubernetes.io/name": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container], **placed}}
    return of("Deployment", name, {"selector": {"matchLabels": labels}, "template": template}, "apps/v1")


def monitoring_objects(cluster: Cluster) -> list[dict[str, Any]]:
    """The account, the operator and what it runs, and kube-state-metrics, all on the first node."""
    on_first = {"kubernetes.io/hostname": cluster.state.control_plane.name}
    account = "monitoring"
    subject = {"kind": "ServiceAccount", "name": account, "namespace": MONITORING_NAMESPACE}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}

    placed = {"serviceAccountName": account, "nodeSelector": on_first}
    common = {
        "replicas": 1,
        **placed,
        "securityContext": {"runAsUser": 65534, "fsGroup": 65534},
    }
    alertmanagers = [{"namespace": MONITORING_NAMESPACE, "name": "alertmanager-operated", "port": "web"}]
    prometheus = {
        **common,
        **SELECT_ALL,
        "image": image("prometheus"),
        "version": "v3.9.1",  # the newest that this operator knows
        "scrapeInterval": SCRAPE,
        "evaluationInterval": "1s",
        "alerting": {"alertmanagers": alertmanagers},
        "resources": {"requests": {"memory": "200Mi", "cpu": "10m"}},
    }
    state_port = {
        "selector": {"app.kubernetes.io/name": "kube-state-metrics"},
        "ports": [{"name": "http", "port": 8080}],
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": account, "namespace": MONITORING_NAMESPACE},
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "test-monitoring"},
            "roleRef": role,
            "subjects": [subject],
        },
        deployment(
            "operator",
            placed,
            f"--prometheus-config-reloader={image('prometheus-config-reloader')}",
            "--config-reloader-cpu-request=0",
        ),
        deployment("kube-state-metrics", placed, "--port=8080"),
        of("Service", "kube-state-metrics", state_port),
        # The chart sets it: the labels `namespace`, `pod` and `node` are those of the object.
        service_monitor("kube-state-metrics", MONITORING_NAMESPACE, "http", honorLabels=True),
        of(
            "Alertmanager",
            "trainfleet",
            {**common, "image": image("alertmanager"), "version": "v0.31.0"},
            API,
        ),
        of("Prometheus", "trainfleet", prometheus, API),
    ]


def install_definitions(cluster: Cluster) -> None:
    """Load the programs' images, and install the definitions of the operator's kinds."""
    folder = built()
    load_images(cluster, folder)
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(folder / DEFINITIONS))
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")


def install_monitoring(cluster: Cluster) -> None:
    """Install everything else, and wait until it is ready. It remains: the cluster is that of the tests.

    Prometheus starts with the monitors that exist. It can take more than three minutes to notice a later one:
    the kubelet renews the mounted configuration each minute, and the reloader reads it every three if it is
    not notified.
    """
    cluster.apply(*(namespace(name) for name in (MONITORING_NAMESPACE, KUBERAY_NAMESPACE)))
    cluster.apply(*monitoring_objects(cluster), *platform_objects())
    until(lambda: _ready(cluster), "Prometheus and Alertmanager are ready", 240)


def _ready(cluster: Cluster) -> bool:
    asked = ("get", "pods", "-o", "json")
    pods = json.loads(cluster.kubectl("-n", MONITORING_NAMESPACE, *asked))["items"]
    states = [
        {each["type"]: each["status"] for each in pod["status"].get("conditions", [])}.get("Ready")
        for pod in pods
    ]
    return len(states) >= 4 and all(state == "True" for state in states)


class Alerts:
    """What Prometheus and Alertmanager say, through the API server."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def _get(self, service: str, port: int, path: str) -> Any:
        base = f"/api/v1/namespaces/{MONITORING_NAMESPACE}/services/http:{service}:{port}/proxy"
        return json.loads(self.cluster.kubectl("get", "--raw", f"{base}{path}"))

    def firing(self, name: str) -> list[dict[str, Any]]:
        """The alerts of this name that Alertmanager has, each with its labels and annotations."""
        found: list[dict[str, Any]] = self._get(
            "alertmanager-operated", 9093, f"/api/v2/alerts?filter=alertname%3D{name}"
        )
        return found

    def rows(self, expression: str) -> list[dict[str, Any]]:
        """The rows of a query."""
        answer = self._get("prometheus-operated", 9090, f"/api/v1/query?query={quote(expression)}")
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found
