"""The objects of a run on KubeRay: a RayJob with its files, a long-lived RayCluster, a RayService. Pure."""

from __future__ import annotations

import math
from typing import Any

import yaml

from trainfleet.training.launch.kuberay.own_job import LAUNCH_ANNOTATION
from trainfleet.training.launch.kuberay.pods import (
    Document,
    driver_pod,
    head_pod,
    labels,
    mutual_tls,
    submitter_pod,
    worker_pod,
)
from trainfleet.training.launch.kuberay.run_spec import RunSpec
from trainfleet.training.launch.remote import ray_job as job
from trainfleet.training.launch.remote.pod_settings import restricted
from trainfleet.training.launch.remote.queue_state import QUEUE_LABEL
from trainfleet.training.launch.remote.ray_certificate import certificate_mount
from trainfleet.training.launch.remote.ray_job import (
    DRIVER,
    ENTRYPOINT,
    JOB_FILE,
    OBJECT_STORE_BYTES,
    RECIPE_FILE,
    SERVE_PORT,
    RayJob,
)
from trainfleet.training.launch.remote.run_price import price_variable
from trainfleet.training.recipe.load import dump
from trainfleet.training.runtime.code_archive import CODE
from trainfleet.training.runtime.events import JOB, RANK_CPUS

API = "ray.io/v1"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
SUBMIT_TRIES = 50
"""Restarts of the submitter's container: each is a head that was lost, or an image that starts slowly."""
SHUT_DOWN_AFTER_S = 0
WORKERS_START = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
WORKERS, DRIVERS = "workers", "drivers"


def run_objects(run: RunSpec) -> list[Document]:
    """What starts a run, in the order of creation; with `--cluster` the cluster comes first."""
    return [*cluster_objects(run), *objects_of_run(run)]


def cluster_objects(run: RunSpec) -> list[Document]:
    """What starts the long-lived cluster of a run with `--cluster`: files, RayCluster, disruption budget."""
    if not run.cluster:
        return []
    cluster = ray_cluster(run)
    return [files_of_cluster(run), cluster, cluster_budget(cluster)]


def objects_of_run(run: RunSpec) -> list[Document]:
    """What starts a run on the cluster that it has."""
    return [ray_job(run), *([] if run.cluster else [disruption_budget(run)]), files(run)]


def disruption_budget(run: RunSpec) -> Document:
    """The disruption budget of a run with a Ray cluster of its own."""
    metadata = {"name": run.job, "namespace": run.namespace, "labels": labels(run)}
    return _budget(metadata, {"trainfleet.io/run": run.recipe.name}, cluster_spec(run))


def cluster_budget(cluster: Document) -> Document:
    """The disruption budget of a long-lived Ray cluster, which is deleted with it.

    NOTE: one for all of its runs. A pod with two budgets cannot be evicted.

    Args:
        cluster: the RayCluster, as `ray_cluster` builds it or as the API server returns it.
    """
    name, uid = cluster["metadata"]["name"], cluster["metadata"].get("uid")
    owner = {"apiVersion": API, "kind": "RayCluster", "name": name, "uid": uid}
    metadata = {
        "name": name,
        "namespace": cluster["metadata"]["namespace"],
        "labels": {"app.kubernetes.io/managed-by": "trainfleet"},
        **({"ownerReferences": [owner]} if uid else {}),
    }
    return _budget(metadata, {"ray.io/cluster": name}, cluster["spec"])


def _budget(metadata: Document, selected: dict[str, str], cluster: Document) -> Document:
    """Lets a drain evict one pod of a Ray cluster at a time: the next one waits until the cluster is whole
    again.

    NOTE: it states how many pods must stay. A RayCluster has no scale, without which a share of the pods or
    `maxUnavailable` allows no eviction at all (Kubernetes documentation, arbitrary workloads and selectors).
    """
    count = "minReplicas" if cluster.get("enableInTreeAutoscaling") else "replicas"
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata,
        "spec": {
            # Of the head and the workers, all but one.
            "minAvailable": sum(group.get(count, 0) for group in cluster.get("workerGroupSpecs", [])),
            "selector": {
                "matchLabels": selected,
                "matchExpressions": [{"key": "ray.io/node-type", "operator": "Exists"}],
            },
            # A pod that is not ready blocks no drain.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def ray_job(run: RunSpec) -> Document:
    """The RayJob, with a Ray cluster of its own or on a long-lived one.

    It has no retries: Ray Train restarts workers, the submitter resubmits after a lost head, and a run that
    fails for any other reason would only fail again.
    """
    spec: Document = {
        "entrypoint": ENTRYPOINT,
        "submissionMode": "K8sJobMode",
        "submitterPodTemplate": submitter_pod(run),
        "submitterConfig": {"backoffLimit": SUBMIT_TRIES},
    }
    if run.cluster:
        spec["clusterSelector"] = {"ray.io/cluster": run.cluster}
    else:
        spec |= {
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": SHUT_DOWN_AFTER_S,
            # NOTE: without a deadline, half of a detached run could hold machines for ever while the other
            # half waits. A launch that follows the run gives up a little earlier, and reports why.
            "preRunningDeadlineSeconds": round(run.within_s) + 30,
            "backoffLimit": 0,
            "rayClusterSpec": cluster_spec(run),
        }
        if run.deadline_s is not None:
            spec["activeDeadlineSeconds"] = run.deadline_s
    return {
        "apiVersion": API,
        "kind": "RayJob",
        "metadata": {
            "name": run.job,
            "namespace": run.namespace,
            "labels": {**labels(run), **({} if run.cluster else queue_labels(run))},
            "annotations": {
                "trainfleet.io/storage": run.recipe.home_url(),
                "trainfleet.io/owner": run.owner,
                LAUNCH_ANNOTATION: run.launch,
            },
        },
        "spec": spec,
    }


def queue_labels(run: RunSpec) -> dict[str, str]:
    """What puts a run into Kueue's queue, which admits it as a whole; the priority is that of its pods."""
    queue = run.outputs.queue
    return {QUEUE_LABEL: queue, **({PRIORITY_LABEL: run.priority} if run.priority else {})} if queue else {}


def cluster_spec(run: RunSpec) -> Document:
    """Head and workers."""
    scaling = run.recipe.scaling
    start = {"object-store-memory": str(OBJECT_STORE_BYTES)}
    gpus = {"num-gpus": str(run.per_pod)} if scaling.use_gpu else {}
    spec: Document = {
        "rayVersion": run.outputs.ray_version,
        "authOptions": {"mode": "token" if run.outputs.ray_token_auth else "disabled"},
        # The head does not train: it may be small, and losing it costs a restart but no rank.
        "headGroupSpec": {
            "rayStartParams": {**start, "num-cpus": "0", "dashboard-host": "0.0.0.0"},
            "template": head_pod(run),
        },
        "workerGroupSpecs": [
            {
                "groupName": WORKERS,
                "replicas": run.pods,
                "minReplicas": run.min_pods if run.autoscaled else run.pods,
                "maxReplicas": run.pods,
                "rayStartParams": {
                    **start,
                    "num-cpus": str(_ray_cpus(run)),
                    **gpus,
                },
                "template": worker_pod(run),
            }
        ],
    }
    if run.driver_pod:
        spec["workerGroupSpecs"].append(_drivers(run, start))
    if run.gcs_store:
        spec["gcsFaultToleranceOptions"] = run.gcs_store.options()
    if run.autoscaled:
        spec |= {"enableInTreeAutoscaling": True, "autoscalerOptions": _autoscaler(run)}
    return spec


def _ray_cpus(run: RunSpec) -> int:
    """CPUs of a worker's pod as Ray counts them: whole ones."""
    return math.ceil(run.per_pod * run.recipe.cpus_per_rank)


def _drivers(run: RunSpec, start: dict[str, str]) -> Document:
    """One pod without CPUs for Ray, so that no rank trains there."""
    return {
        "groupName": DRIVERS,
        "replicas": 1,
        "minReplicas": 1,
        "maxReplicas": 1,
        "rayStartParams": {**start, "num-cpus": "0", "resources": f"'{{\"{DRIVER}\": 1}}'"},
        "template": driver_pod(run),
    }


def _autoscaler(run: RunSpec) -> Document:
    options: Document = {
        "version": "v2",
        "idleTimeoutSeconds": 300,
        "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": restricted(),
    }
    if tls := mutual_tls(run):
        options["env"] = [{"name": key, "value": value} for key, value in sorted(tls.environment.items())]
        options["volumeMounts"] = [certificate_mount(tls)]
    return options


def files(run: RunSpec) -> Document:
    """What the submitter passes to Ray: the recipe, and the variables of the driver. Holds no secret."""
    return _config_map(
        run,
        run.job,
        {RECIPE_FILE: dump(run.recipe), JOB_FILE: submitted_job(run).model_dump_json(indent=1)} | _ca(run),
    )


def files_of_cluster(run: RunSpec) -> Document:
    """What the pods of a long-lived cluster mount."""
    return _config_map(run, str(run.cluster), _ca(run))


def files_of_service(run: RunSpec) -> list[Document]:
    """What the pods of a service mount, if anything."""
    return [_config_map(run, run.cluster or run.job, _ca(run))] if run.ca else []


def submitted_job(run: RunSpec) -> RayJob:
    """What the submitter asks Ray to do."""
    variables = {name: value for name, value in ((CODE, run.code), (JOB, run.instead)) if value}
    variables |= price_variable(run.usd_per_hour)
    if not run.cluster:  # the pods of a long-lived cluster may have been sized for another recipe
        # Rounded down to what Ray distinguishes, so that all ranks of a pod fit.
        rank = _ray_cpus(run) / run.per_pod - run.recipe.data_loading.reserved_cpus
        variables[RANK_CPUS] = f"{math.floor(rank * 1e4) / 1e4:g}"
    variables[WORKERS_START] = str(round(run.timeouts.workers_start_s))
    return job.ray_job(run.recipe.name, run.launch, run.allow_changes, variables, driver_pod=run.driver_pod)


def _ca(run: RunSpec) -> dict[str, str]:
    return {"ca.crt": run.ca} if run.ca else {}


def _config_map(run: RunSpec, name: str, data: dict[str, str]) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": run.namespace, "labels": labels(run)},
        "data": data,
    }


def ray_cluster(run: RunSpec) -> Document:
    """A Ray cluster that outlives its runs; `--cluster NAME` trains on it. The queue admits it as a whole,
    and skips the RayJobs that select it.
    """
    spec = cluster_spec(run)
    return {
        "apiVersion": API,
        "kind": "RayCluster",
        "metadata": {
            "name": run.cluster,
            "namespace": run.namespace,
            "labels": {"app.kubernetes.io/managed-by": "trainfleet", **queue_labels(run)},
        },
        "spec": spec,
    }


def ray_service(
    run: RunSpec,
    name: str,
    *,
    source: str,
    which: str,
    limits: dict[str, Any],
    precision: str | None = None,
) -> Document:
    """A served model, with one replica per worker. KubeRay replaces it without downtime when it changes.

    KubeRay copies its labels to its RayCluster, which the queue admits.

    Args:
        run: where it runs.
        name: of the RayService.
        source: the run, checkpoint or published folder.
        which: the checkpoint of a run.
        limits: of `serve.request_handler.Limits`.
        precision: of the weights; None for fp32.
    """
    scaling = run.recipe.scaling
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
            **({"precision": precision} if precision else {}),
            **({"code": run.code} if run.code else {}),
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
            "namespace": run.namespace,
            "labels": {"app.kubernetes.io/managed-by": "trainfleet", **queue_labels(run)},
        },
        "spec": {
            "serveConfigV2": yaml.safe_dump(config, sort_keys=False),
            "rayClusterConfig": cluster_spec(run),
        },
    }


def render(objects: list[Document]) -> str:
    """Objects as YAML, as `kubectl apply -f` takes them."""
    return "---\n".join(yaml.safe_dump(each, sort_keys=False, width=150) for each in objects)
