"""Small exporters in place of two that the local cluster lacks: DCGM's, which needs GPUs, and Kueue's.

Each serves the metrics of the exporter that it stands in for, with its labels, and is scraped as the chart of
that exporter says. A test sets the values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.cluster.conftest import Cluster
from tests.cluster.monitoring_stack import namespace, of, service_monitor
from trainfleet.infra.kubernetes.names import GPU_NAMESPACE, QUEUE_NAMESPACE
from trainfleet.local_cluster.servers import PAUSE

PORT = 9400
GPUS = 2
DCGM_LABEL = {"app.kubernetes.io/name": "dcgm-exporter"}
"""As the chart labels the exporter, by which its monitor and the runbooks select it."""
KUEUE_LABEL = {"app.kubernetes.io/name": "kueue-metrics-stand-in"}


def exporter(labels: dict[str, str], text: str) -> dict[str, Any]:
    """A pod's template that serves a text until a test replaces it: a new pod serves the first text again."""
    start = '/busybox mkdir -p /www && echo "$TEXT" > /www/metrics'
    script = f"{start} && exec /busybox httpd -f -p {PORT} -h /www"
    container = {
        "name": "stand-in",
        "image": PAUSE,
        "command": ["/busybox", "sh", "-c", script],
        "env": [{"name": "TEXT", "value": text}],
        "ports": [{"name": "metrics", "containerPort": PORT}],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
    }
    return {
        "metadata": {"labels": labels},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }


def replace_text(cluster: Cluster, space: str, labels: Mapping[str, str], text: str) -> None:
    """Replace what the pod of a stand-in serves."""
    (key, value), *_ = labels.items()
    asked = ("-n", space, "get", "pods", "-l", f"{key}={value}", "-o", "name")
    (pod,) = cluster.kubectl(*asked).split()
    write = ("/busybox", "sh", "-c", "/busybox cat > /www/new && /busybox mv /www/new /www/metrics")
    cluster.kubectl("-n", space, "exec", "-i", pod, "--", *write, given=text)


@dataclass
class GpuMetrics:
    """The stand-in for dcgm-exporter on one node with GPUS GPUs."""

    cluster: Cluster
    node: str
    values: dict[tuple[int, str], float] = field(default_factory=dict)
    """By GPU and metric; 0 where nothing is set."""
    pods: dict[int, str] = field(default_factory=dict)
    """The pod in `training` that holds a GPU."""

    METRICS = ("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_GPU_UTIL")

    def install(self) -> None:
        template = exporter(DCGM_LABEL, self._text())
        template["spec"] |= {
            "nodeSelector": {"kubernetes.io/hostname": self.node},
            "tolerations": [{"operator": "Exists"}],
        }
        daemons = {"selector": {"matchLabels": DCGM_LABEL}, "template": template}
        service = {"selector": DCGM_LABEL, "ports": [{"name": "metrics", "port": PORT}]}
        name = "dcgm-exporter-stand-in"
        found = of("Service", name, service, namespace=GPU_NAMESPACE)
        found["metadata"]["labels"] = DCGM_LABEL
        self.cluster.apply(
            namespace(GPU_NAMESPACE),
            of("DaemonSet", name, daemons, "apps/v1", GPU_NAMESPACE),
            found,
            service_monitor("dcgm-exporter", GPU_NAMESPACE, "metrics"),
        )
        self.cluster.kubectl("-n", GPU_NAMESPACE, "rollout", "status", f"daemonset/{name}")

    def set(self, gpu: int, metric: str, value: float) -> None:
        assert metric in self.METRICS
        self.values[gpu, metric] = value
        self.publish()

    def hold(self, gpu: int, pod: str) -> None:
        """Let a pod hold a GPU; an empty name releases it."""
        self.pods[gpu] = pod
        self.publish()

    def reset(self) -> None:
        """The exporter was restarted: it serves its first text."""
        self.values.clear()
        self.pods.clear()

    def publish(self) -> None:
        replace_text(self.cluster, GPU_NAMESPACE, DCGM_LABEL, self._text())

    def _text(self) -> str:
        lines = []
        for metric in self.METRICS:
            for gpu in range(GPUS):
                labels = {
                    "gpu": str(gpu),
                    "UUID": f"GPU-stand-in-{gpu}",
                    "device": f"nvidia{gpu}",
                    "modelName": "stand-in",
                    "Hostname": self.node,
                }
                if pod := self.pods.get(gpu):
                    labels |= {"container": "ray-worker", "namespace": "training", "pod": pod}
                shown = ",".join(f'{key}="{value}"' for key, value in labels.items())
                lines.append(f"{metric}{{{shown}}} {self.values.get((gpu, metric), 0)}")
        return "\n".join(lines) + "\n"


def install_queue_metrics(cluster: Cluster) -> None:
    """The stand-in for Kueue's controller: its two metrics that the rules use."""
    name = KUEUE_LABEL["app.kubernetes.io/name"]
    template = exporter(KUEUE_LABEL, "up 1")
    template["spec"]["nodeSelector"] = {"kubernetes.io/hostname": cluster.state.control_plane.name}
    spec = {"selector": {"matchLabels": KUEUE_LABEL}, "template": template}
    service = {"selector": KUEUE_LABEL, "ports": [{"name": "metrics", "port": PORT}]}
    cluster.apply(
        namespace(QUEUE_NAMESPACE),
        of("Deployment", name, spec, "apps/v1", QUEUE_NAMESPACE),
        of("Service", name, service, namespace=QUEUE_NAMESPACE),
        service_monitor(name, QUEUE_NAMESPACE, "metrics"),
    )
    cluster.kubectl("-n", QUEUE_NAMESPACE, "rollout", "status", f"deployment/{name}")


def set_queue(cluster: Cluster, *, active: int, inadmissible: int, admitted: int) -> None:
    """Workloads of the queue `training`, as Kueue 0.17 reports them (pkg/metrics/metrics.go)."""
    queue = 'cluster_queue="training",replica_role="standalone"'
    lines = [
        f'kueue_pending_workloads{{{queue},status="active"}} {active}',
        f'kueue_pending_workloads{{{queue},status="inadmissible"}} {inadmissible}',
        f"kueue_admitted_active_workloads{{{queue}}} {admitted}",
    ]
    replace_text(cluster, QUEUE_NAMESPACE, KUEUE_LABEL, "\n".join(lines) + "\n")
