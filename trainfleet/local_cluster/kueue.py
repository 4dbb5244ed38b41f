"""Kueue's controller in a pod of the first node: the objects of its own release with the stacks' values. The
executable is built from the pins and takes the place of the image.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import yaml

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.infra.kubernetes.manifest_model import plain
from trainfleet.infra.kubernetes.names import QUEUE_NAMESPACE
from trainfleet.infra.kubernetes.values.queue import NODE_START
from trainfleet.infra.kubernetes.values.queue import kueue as chart_values
from trainfleet.local_cluster import builds, pins
from trainfleet.local_cluster.kubectl import kubectl
from trainfleet.local_cluster.servers import PAUSE
from trainfleet.local_cluster.state import State

CONTROLLER = "kueue-controller-manager"
SELECTOR = "control-plane=controller-manager"
USER = 65532
START_LOG = "kueue-start"
GROUP = "kueue.x-k8s.io"
FRAMEWORKS = {"pods": "pod", "deployments": "deployment", "statefulsets": "statefulset"}
"""Kinds whose webhook may fail if Kueue does not manage them, and the names of their frameworks."""
_NAMESPACE = ("--namespace", QUEUE_NAMESPACE)


def apply(state: State) -> bool:
    """Apply Kueue's objects; whether the API server accepted them."""
    document = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects(state)})
    flags = ("--server-side", "--force-conflicts", "--field-manager=trainfleet-cluster")
    done = kubectl(state, "apply", *flags, "-f", "-", check=False, stdin=document)
    state.file("logs", f"{START_LOG}.log").write_text(done.stdout + done.stderr)
    return done.returncode == 0


def objects(state: State) -> list[dict[str, Any]]:
    """Kueue's objects.

    Raises:
        TrainfleetError: they cannot be rendered.
    """
    folder = builds.folder_of(pins.KUEUE) / "config" / "default"
    done = kubectl(state, "kustomize", str(folder), check=False)
    if done.returncode:
        problem = Problem(str(folder), done.stderr.strip()[-300:])
        raise TrainfleetError("Kueue's objects cannot be rendered", [problem])
    return adapted(list(yaml.load_all(done.stdout, yaml.CSafeLoader)), state.control_plane.name)


def adapted(rendered: list[dict[str, Any]], node: str) -> list[dict[str, Any]]:
    """The objects with the stacks' values. The API of pending workloads is left out: no command reads it, and
    it needs an aggregated API server.
    """
    values = plain(chart_values(monitored=False, start_within=NODE_START))
    text = values["managerConfig"]["controllerManagerConfigYaml"]
    kept = [each for each in rendered if each["kind"] != "APIService"]
    for each in kept:
        if each["kind"] == "ConfigMap":
            each["data"] = {"controller_manager_config.yaml": text}
        elif each["kind"] == "Deployment":
            template = each["spec"]["template"]
            _adapt_pod(template, values["controllerManager"]["manager"]["resources"], node)
            # A changed configuration replaces the pod, as with the chart.
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            template["metadata"]["annotations"]["trainfleet.io/configuration"] = digest
        elif each["kind"].endswith("WebhookConfiguration"):
            for webhook in each["webhooks"]:
                _adapt_webhook(webhook, json.loads(text))
    return kept


def _adapt_webhook(webhook: dict[str, Any], configuration: dict[str, Any]) -> None:
    """As the chart does: only the namespaces that the configuration selects depend on the webhook."""
    (rule,) = webhook["rules"]
    if GROUP in rule["apiGroups"]:
        return
    webhook["namespaceSelector"] = configuration["managedJobsNamespaceSelector"]
    framework = FRAMEWORKS.get(rule["resources"][0])
    if framework and framework not in configuration["integrations"]["frameworks"]:
        webhook["failurePolicy"] = "Ignore"


def _adapt_pod(template: dict[str, Any], resources: dict[str, Any], node: str) -> None:
    spec = template["spec"]
    (container,) = spec["containers"]
    container |= {
        "image": PAUSE,
        "imagePullPolicy": "Never",
        "command": ["/files/kueue"],
        "args": [*container["args"], "--feature-gates=VisibilityOnDemand=false"],
        "resources": resources,
    }
    container["volumeMounts"].append({"name": "program", "mountPath": "/files/kueue", "readOnly": True})
    program = {"path": str(builds.executable(pins.KUEUE)), "type": "File"}
    spec["volumes"].append({"name": "program", "hostPath": program})
    spec["securityContext"]["runAsUser"] = USER
    spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    spec["priorityClassName"] = "system-cluster-critical"
    spec["tolerations"] = [{"operator": "Exists"}]


def is_ready(state: State) -> bool:
    """Whether the controller answers.

    It creates its certificate at its first start. The kubelet brings it to the pod within a minute, or as
    soon as the pod changes.
    """
    found = kubectl(state, *_NAMESPACE, "get", f"deployment/{CONTROLLER}", "--output=json", check=False)
    if found.returncode:
        return False
    document = json.loads(found.stdout)
    status = document.get("status", {})
    ready = [status.get(key) for key in ("replicas", "updatedReplicas", "readyReplicas")]
    if status.get("observedGeneration") == document["metadata"]["generation"] and ready == [1, 1, 1]:
        return True
    certificate = ("secret/kueue-webhook-server-cert", "--output=jsonpath={.metadata.resourceVersion}")
    if version := kubectl(state, *_NAMESPACE, "get", *certificate, check=False).stdout:
        change = (f"--selector={SELECTOR}", "--overwrite", f"trainfleet.io/certificate={version}")
        kubectl(state, *_NAMESPACE, "annotate", "pod", *change, check=False)
    _write_log(state)
    return False


def _write_log(state: State) -> None:
    """Write the controller's log, or what its pod waits for, to the cluster's logs."""
    done = kubectl(state, *_NAMESPACE, "logs", f"deployment/{CONTROLLER}", check=False)
    if not done.stdout.strip():
        done = kubectl(state, *_NAMESPACE, "describe", "pod", check=False)
    state.file("logs", f"{START_LOG}.log").write_text(done.stdout or done.stderr)
