"""The objects of a run on KubeRay: a RayJob with its files, a long-lived RayCluster, a RayService; pure
functions of a `Site`.

Used by `trainfleet.training.launch.kuberay` and `trainfleet launch --print`. Easy to get wrong: the RayJob
has no retries of its own (a run that fails
for a reason would start again from nothing), since workers are Ray Train's to start again and a lost head is
the submitter's.
"""

from __future__ import annotations

import json
from typing import Any

import yaml

from trainfleet.training.launch.kuberay.pods import (
    DASHBOARD_PORT,
    OBJECT_STORE_BYTES,
    SERVE_PORT,
    Document,
    head_pod,
    labels,
    mutual_tls,
    submitter_pod,
    worker_pod,
)
from trainfleet.training.launch.kuberay.run_spec import Site
from trainfleet.training.recipe.load import dump
from trainfleet.training.runtime import events

API = "ray.io/v1"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
ENTRYPOINT = "python -m trainfleet.training.launch.kuberay.entry"
RECIPE_FILE, JOB_FILE = "recipe.yaml", "job.json"
DOCUMENT = "TRAINFLEET_RECIPE_DOCUMENT"
"""The recipe, to the driver; a variable, since a long-lived cluster's pods were made without knowing the run."""
SUBMIT_TRIES = 50
"""Of the submitter's container: each is a head that was lost, or an image that starts slowly."""
SHUT_DOWN_AFTER_S = 0
WORKERS = "workers"


def run_objects(site: Site) -> list[Document]:
    """What starts a run, in the order in which it is made; for `--cluster` the cluster comes first."""
    cluster = [files_of_cluster(site), ray_cluster(site)] if site.cluster else []
    return [*cluster, ray_job(site), files(site)]


def ray_job(site: Site) -> Document:
    """The RayJob: its own Ray cluster, or a place on a long-lived one."""
    spec: Document = {
        "entrypoint": ENTRYPOINT,
        "submissionMode": "K8sJobMode",
        "submitterPodTemplate": submitter_pod(site),
        "submitterConfig": {"backoffLimit": SUBMIT_TRIES},
    }
    if site.cluster:
        spec["clusterSelector"] = {"ray.io/cluster": site.cluster}
    else:
        spec |= {
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": SHUT_DOWN_AFTER_S,
            # Also for a run that nobody watches: no half of it holds machines for ever while the other half
            # waits. A launch that
            # watches gives up a little earlier, and says why.
            "preRunningDeadlineSeconds": round(site.within_s) + 30,
            "backoffLimit": 0,
            "rayClusterSpec": cluster_spec(site),
        }
    return {
        "apiVersion": API,
        "kind": "RayJob",
        "metadata": {
            "name": site.job,
            "namespace": site.namespace,
            "labels": {**labels(site), **({} if site.cluster else queue_labels(site))},
            "annotations": {
                "trainfleet.io/storage": site.recipe.home_url(),
                "trainfleet.io/launch": site.launch,
            },
        },
        "spec": spec,
    }


def queue_labels(site: Site) -> dict[str, str]:
    """What puts a run into Kueue's queue, which starts all of it or nothing; the priority is that of its
    pods.
    """
    outputs = site.outputs
    if not outputs.queue:
        return {}
    classes = outputs.priority_classes
    return {QUEUE_LABEL: outputs.queue, **({PRIORITY_LABEL: classes[len(classes) // 2]} if classes else {})}


def cluster_spec(site: Site) -> Document:
    """Head and workers."""
    scaling = site.recipe.scaling
    start = {"object-store-memory": str(OBJECT_STORE_BYTES)}
    gpus = {"num-gpus": str(site.per_pod)} if scaling.use_gpu else {}
    spec: Document = {
        "rayVersion": site.outputs.ray_version,
        "authOptions": {"mode": "token" if site.outputs.ray_token_auth else "disabled"},
        # The head trains nothing: it may be small, and its loss costs the run a restart and no rank.
        "headGroupSpec": {
            "rayStartParams": {**start, "num-cpus": "0", "dashboard-host": "0.0.0.0"},
            "template": head_pod(site),
        },
        "workerGroupSpecs": [
            {
                "groupName": WORKERS,
                "replicas": site.pods,
                "minReplicas": site.fewest_pods if site.autoscaled else site.pods,
                "maxReplicas": site.pods,
                "rayStartParams": {
                    **start,
                    "num-cpus": str(-int(-site.per_pod * scaling.cpus_per_worker // 1)),
                    **gpus,
                },
                "template": worker_pod(site),
            }
        ],
    }
    if site.autoscaled:
        spec |= {"enableInTreeAutoscaling": True, "autoscalerOptions": _autoscaler(site)}
    return spec


def _autoscaler(site: Site) -> Document:
    options: Document = {
        "version": "v2",
        "idleTimeoutSeconds": 300,
        "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    if tls := mutual_tls(site):
        options["env"] = [{"name": key, "value": value} for key, value in sorted(tls.environment.items())]
        options["volumeMounts"] = [{"name": "ray-tls", "mountPath": tls.mount, "readOnly": True}]
    return options


def files(site: Site) -> Document:
    """What the submitter hands to Ray: the recipe, and the variables of the driver. No secret is among them."""
    return _config_map(
        site,
        site.job,
        {RECIPE_FILE: dump(site.recipe), JOB_FILE: json.dumps(job_document(site), indent=1)} | _ca(site),
    )


def files_of_cluster(site: Site) -> Document:
    """What the pods of a long-lived cluster mount."""
    return _config_map(site, str(site.cluster), _ca(site))


def files_of_service(site: Site) -> list[Document]:
    """What the pods of a service mount, if anything."""
    return [_config_map(site, site.cluster or site.job, _ca(site))] if site.ca else []


def job_document(site: Site) -> dict[str, Any]:
    """What the submitter asks Ray to do."""
    variables = {
        events.EVENTS: events.STDOUT,
        events.LAUNCH: site.launch,
        events.RUN_DIR: f"/tmp/trainfleet/runs/{site.recipe.name}",
        events.STOP_FILE: stop_file(site.launch),
        "PYTHONUNBUFFERED": "1",
        **({events.ALLOW_CHANGES: ",".join(site.allow_changes)} if site.allow_changes else {}),
        "TRAINFLEET_AUTOSCALED": "1",  # a new head has no workers yet; they come
        **({} if site.cluster else {events.RAY_FOR_RUN: "1"}),
    }
    return {"entrypoint": ENTRYPOINT, "env": variables, "metadata": {"run": site.recipe.name}}


def stop_file(launch: str) -> str:
    """The file in a pod whose appearance asks the run to save and end."""
    return f"/tmp/trainfleet-stop-{launch}"


def _ca(site: Site) -> dict[str, str]:
    return {"ca.crt": site.ca} if site.ca else {}


def _config_map(site: Site, name: str, data: dict[str, str]) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": site.namespace, "labels": labels(site)},
        "data": data,
    }


def ray_cluster(site: Site) -> Document:
    """A Ray cluster that outlives its runs; `--cluster NAME` trains on it."""
    spec = cluster_spec(site)
    return {
        "apiVersion": API,
        "kind": "RayCluster",
        "metadata": {
            "name": site.cluster,
            "namespace": site.namespace,
            "labels": {"app.kubernetes.io/managed-by": "trainfleet", **queue_labels(site)},
        },
        "spec": spec,
    }


def ray_service(site: Site, name: str, *, source: str, which: str, limits: dict[str, Any]) -> Document:
    """`trainfleet serve` on a cluster: KubeRay keeps it up, and replaces it without a gap when it changes. A
    replica for each worker.
    """
    scaling = site.recipe.scaling
    application = {
        "name": "trainfleet",
        "import_path": "trainfleet.training.inference.serve.app:build",
        "route_prefix": "/",
        "args": {
            "source": source,
            "which": which,
            "replicas": scaling.workers,
            "gpu": scaling.use_gpu,
            "limits": limits,
        },
    }
    config = {
        "proxy_location": "EveryNode",
        "http_options": {"host": "0.0.0.0", "port": SERVE_PORT},
        "applications": [application],
    }
    return {
        "apiVersion": API,
        "kind": "RayService",
        "metadata": {
            "name": name,
            "namespace": site.namespace,
            "labels": {"app.kubernetes.io/managed-by": "trainfleet"},
        },
        "spec": {
            "serveConfigV2": yaml.safe_dump(config, sort_keys=False),
            "rayClusterConfig": cluster_spec(site),
        },
    }


def render(objects: list[Document]) -> str:
    """Objects as YAML, as `kubectl apply -f` takes them."""
    return "---\n".join(yaml.safe_dump(each, sort_keys=False, width=150) for each in objects)


__all__ = [
    "DASHBOARD_PORT",
    "Document",
    "files",
    "ray_cluster",
    "ray_job",
    "ray_service",
    "render",
    "run_objects",
]
