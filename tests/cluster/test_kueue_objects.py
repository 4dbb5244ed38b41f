"""Kueue's objects on the local cluster: those of its release, changed as the stacks' chart values say."""

from __future__ import annotations

import json
from typing import Any

from trainfleet.infra.kubernetes.manifest_model import plain
from trainfleet.infra.kubernetes.values.queue import NODE_START, configuration
from trainfleet.local_cluster import kueue


def webhook(name: str, group: str, resource: str) -> dict[str, Any]:
    return {"name": name, "failurePolicy": "Fail", "rules": [{"apiGroups": [group], "resources": [resource]}]}


def rendered() -> list[dict[str, Any]]:
    container = {"name": "manager", "args": ["--config=/c.yaml"], "command": ["/manager"], "volumeMounts": []}
    spec = {"containers": [container], "volumes": [], "securityContext": {"runAsNonRoot": True}}
    hooks = [
        webhook("mpod.kb.io", "", "pods"),
        webhook("mrayjob.kb.io", "ray.io", "rayjobs"),
        webhook("mdeployment.kb.io", "apps", "deployments"),
        webhook("mworkload.kb.io", "kueue.x-k8s.io", "workloads"),
    ]
    return [
        {"kind": "APIService"},
        {"kind": "ConfigMap", "data": {"controller_manager_config.yaml": "kind: Configuration"}},
        {"kind": "Deployment", "spec": {"template": {"metadata": {"annotations": {}}, "spec": spec}}},
        {"kind": "MutatingWebhookConfiguration", "webhooks": hooks},
    ]


def test_the_controller_has_the_configuration_and_limits_of_the_stacks() -> None:
    config, deployment, _ = kueue.adapted(rendered(), "node-1")
    assert json.loads(config["data"]["controller_manager_config.yaml"]) == plain(configuration(NODE_START))
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"memory": "1Gi"}
    assert container["command"] == ["/files/kueue"]
    assert pod["securityContext"] == {"runAsNonRoot": True, "runAsUser": kueue.USER}
    assert pod["nodeSelector"] == {"kubernetes.io/hostname": "node-1"}


def test_only_pods_and_jobs_of_trainings_depend_on_the_webhook() -> None:
    *_, hooks = kueue.adapted(rendered(), "node-1")
    pod, job, deployment, workload = hooks["webhooks"]
    training = {"matchLabels": {"kubernetes.io/metadata.name": "training"}}
    assert [each["namespaceSelector"] for each in (pod, job, deployment)] == [training] * 3
    assert "namespaceSelector" not in workload
    policies = [each["failurePolicy"] for each in (pod, job, deployment, workload)]
    assert policies == ["Fail", "Fail", "Ignore", "Fail"]
