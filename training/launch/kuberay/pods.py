"""The pods of a run: Ray's head, which does not train, the workers, and the submitter. Pure.

They comply with Pod Security's `restricted` profile.
"""

from __future__ import annotations

from typing import Any

from trainfleet.infra.outputs.contract import RayCertificates
from trainfleet.training.launch.kuberay.run_spec import RunSpec
from trainfleet.training.launch.kuberay.worker_size import worker_size
from trainfleet.training.launch.remote.fabric import FabricSettings, fabric_settings
from trainfleet.training.launch.remote.lost_pods import avoid_lost_nodes
from trainfleet.training.launch.remote.node_groups import group_affinity
from trainfleet.training.launch.remote.pod_settings import (
    environment,
    lost_node_tolerations,
    pod_security,
    restricted,
    variables,
)
from trainfleet.training.launch.remote.pod_template import grace_seconds, pull_secrets, with_patches
from trainfleet.training.launch.remote.ray_certificate import (
    certificate_container,
    certificate_mount,
    certificate_volumes,
)
from trainfleet.training.launch.remote.ray_job import (
    AGENT_PORT,
    CLIENT_PORT,
    DASHBOARD_PORT,
    DRIVER,
    FILES_FOLDER,
    HEAD_PORT,
    METRICS_PORT,
    SERVE_PORT,
    SUBMIT,
)
from trainfleet.training.launch.remote.storage_env import SHARED_MOUNT
from trainfleet.training.runtime import pod_drain

Document = dict[str, Any]

GPU = "nvidia.com/gpu"
LAUNCH_LABEL = "trainfleet.io/launch"
"""On the submitter's pod: the pod of an earlier launch may still be terminating, and its log is another one.
"""
FILES_MOUNT = "/etc/trainfleet"
CA_FILE = f"{FILES_MOUNT}/ca.crt"
HEAD_CPUS, HEAD_CPUS_PER_POD, HEAD_MAX_CPUS = 0.5, 0.05, 8.0
HEAD_GIB, HEAD_PODS_PER_GIB, HEAD_MAX_GIB = 2, 8, 32
"""Requests of the head. Their limits are Ray's recommendation for large clusters, 8 CPUs and 32 GB
(docs.ray.io, "Best practices for deploying large clusters"), which 160 and 256 pods reach."""
CHECKPOINT_WAIT_S = 480
"""How long a drained worker waits for its checkpoint, from the notice on. It ends as soon as its ranks saved.
"""
SHUTDOWN_MARGIN_S = 60
"""What of a worker's grace period is left for Ray."""
STOP_GRACE_S = {"head": 45, DRIVER: 45, "worker": CHECKPOINT_WAIT_S + SHUTDOWN_MARGIN_S}
"""NOTE: less than the clouds wait for a node (CloudSupport.drain_minutes), and less than the ten minutes of
the cluster autoscaler (max-graceful-termination-sec); a longer one would be cut off or block the upgrade."""
RANKS_FOLDER = "/tmp/trainfleet-ranks"
SHUTDOWN_S = {"head": 2, DRIVER: 2, "worker": 20}
"""How long Ray's processes may take to shut down. The head's control store alone takes 7 s to shut down
gracefully, which every run that lost its head would wait for, so the head gets less."""
RECONNECT_S = 120
"""How long a worker tries to reach a head that does not answer before it restarts; with GCS fault tolerance
KubeRay sets 600."""
SELF_CHECK_S = 2
"""How often a worker asks its head whether it is known there. A head that replaced a lost one answers no, and
the worker restarts; a head that does not answer says nothing (Ray's `raylet_liveness_self_check_interval_ms`,
a minute by default)."""
HEALTH_CHECKS = {
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "8",
}
"""A worker that fails 8 checks in a row counts as lost: the submitter has its pod replaced (`lost_pods`), and
a run with `scaling.min_workers` continues without it. A check takes 2 s if its machine is known to be
unreachable and 3 s if nothing answers, so 16 to 24 s. Ray's default is 5 checks of 3 to 13 s.
"""
WAIT_FOR_HEAD = (
    f"trap 'exit 143' TERM; until (exec 3<>/dev/tcp/$FQ_RAY_IP/{HEAD_PORT}) 2>/dev/null; "
    "do sleep 0.2; done; trap - TERM"
)
"""Runs before KubeRay's `ray start`. A worker that starts before its head exits, and backs off longer each
time.
"""
FOLLOW_HEAD = (
    "{{ (first=; while sleep {seconds}; do set -- $(getent hosts $FQ_RAY_IP); "
    'if [ -n "$1" ] && [ "$1" != "${{first:=$1}}" ] && (exec 3<>/dev/tcp/$1/{port}) 2>/dev/null; '
    "then pkill -KILL -x raylet; exit; fi; done) > /dev/null 2>&1 & }}"
)
"""Runs alongside `ray start`: ends Ray once the head's name belongs to another pod that answers, so that the
container restarts. Ray itself would wait for gRPC, which looks up a name every 30 s at most
(`grpc.dns_min_time_between_resolutions_ms`), and lost 23 s.
"""


def head_pod(run: RunSpec) -> Document:
    """The head: control store, dashboard and the driver of the run."""
    template = _template(
        run,
        "head",
        head_resources(run),
        ports={"gcs": HEAD_PORT, "dashboard": DASHBOARD_PORT, "client": CLIENT_PORT, "serve": SERVE_PORT},
    )
    template["spec"]["containers"][0]["env"] += variables(HEALTH_CHECKS)
    return with_patches(template, run.templates.head, "ray-head")


def _before_ray(run: RunSpec) -> list[str]:
    """What a worker's container runs before `ray start`. With GCS fault tolerance, workers outlive a head."""
    seconds = max(SELF_CHECK_S, run.pods // 50)  # a limit of what all pods ask the cluster's DNS
    follow = FOLLOW_HEAD.format(seconds=seconds, port=HEAD_PORT)
    return [WAIT_FOR_HEAD] if run.gcs_store else [WAIT_FOR_HEAD, follow]


def _reconnect(run: RunSpec) -> dict[str, str]:
    """Variables of a pod that joins a head: what it does when the head is lost or cut off."""
    own = {} if run.gcs_store else {"RAY_gcs_rpc_server_reconnect_timeout_s": str(RECONNECT_S)}
    return {"RAY_raylet_liveness_self_check_interval_ms": str(1000 * SELF_CHECK_S), **own}


def driver_pod(run: RunSpec) -> Document:
    """The pod of drivers, where the head may be lost without them. It has the changes of the head's pod."""
    template = _template(run, DRIVER, driver_resources(), ports={})
    container = template["spec"]["containers"][0]
    container["args"] = [WAIT_FOR_HEAD]
    container["env"] += variables(_reconnect(run))
    return with_patches(template, run.templates.head, container["name"])


def worker_pod(run: RunSpec) -> Document:
    """A worker, with the labels, tolerations, network and GPUs of its pool."""
    template = _template(run, "worker", worker_resources(run), ports={})
    pool = run.pool
    spec, metadata = template["spec"], template["metadata"]
    spec["containers"][0]["args"] = ["; ".join(_before_ray(run))]
    spec["containers"][0]["env"] += variables(_reconnect(run) | {pod_drain.RANKS: RANKS_FOLDER})
    spec["affinity"] = {"podAntiAffinity": avoid_lost_nodes()}
    if pool is not None:
        spec["nodeSelector"] = dict(pool.node_selector)
        spec["tolerations"] += [dict(each) for each in pool.tolerations]
        spec["affinity"] |= group_affinity(pool, worker_labels(run), run.pods)
        fabric = _fabric(run)
        metadata["annotations"] |= {**fabric.annotations, **pool.queue_annotations}
        spec["containers"][0]["env"] += variables(dict(fabric.environment))
    # The spread would outweigh the order of the node groups: it would fill one node of each.
    if run.pods > 1 and not (pool and pool.groups):
        spec["topologySpreadConstraints"] = [_spread(run)]
    return with_patches(template, run.templates.workers, "ray-worker")


def head_resources(run: RunSpec) -> Document:
    """The resources of the head, which grow with the number of pods: it stores the state of all of them, and
    answers their health checks.
    """
    cpus = min(HEAD_MAX_CPUS, max(HEAD_CPUS, HEAD_CPUS_PER_POD * run.pods))
    memory = min(HEAD_MAX_GIB, max(HEAD_GIB, -(-run.pods // HEAD_PODS_PER_GIB)))
    return {
        "requests": {"cpu": f"{round(cpus * 1000)}m", "memory": f"{memory}Gi"},
        "limits": {"memory": f"{3 * memory}Gi"},
    }


def driver_resources() -> Document:
    """The resources of the pod of drivers: the least that a head needs, which holds a driver elsewhere."""
    return {
        "requests": {"cpu": f"{round(HEAD_CPUS * 1000)}m", "memory": f"{HEAD_GIB}Gi"},
        "limits": {"memory": f"{3 * HEAD_GIB}Gi"},
    }


def worker_resources(run: RunSpec) -> Document:
    """The resources of a worker's pod. CPUs have no limit: throttling one rank would delay all of them."""
    gpus = run.per_pod if run.recipe.scaling.use_gpu else 0
    size = worker_size(run.recipe, run.pool, run.per_pod)
    requests: dict[str, str] = {
        "cpu": f"{round(size.cpus * 1000)}m",
        "memory": f"{round(size.memory_gib * 1024)}Mi",
    }
    exact: dict[str, str] = {GPU: str(gpus)} if gpus else {}
    exact |= {name: str(amount) for name, amount in _fabric(run).resources.items()}
    return {"requests": {**requests, **exact}, **({"limits": exact} if exact else {})}


def submitter_pod(run: RunSpec) -> Document:
    """The pod that submits the run and prints its driver's lines. It outlives the run's machines."""
    own = {"HOME": "/tmp", "USER": "trainfleet", "RAY_USAGE_STATS_ENABLED": "0"}
    env, secrets = variables(own), {}
    # It reports a driver that failed, so it needs the addresses and the run's storage.
    if run.recipe.notifications.enabled:
        env, secrets = environment(run.env, CA_FILE if run.ca else "", run.outputs.secrets), _env_from(run)
    container = {
        "name": "ray-job-submitter",
        "image": run.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", SUBMIT],
        "env": [*env, {"name": FILES_FOLDER, "value": FILES_MOUNT}],
        **secrets,
        "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": restricted(),
        "volumeMounts": [
            {"name": "files", "mountPath": FILES_MOUNT, "readOnly": True},
            {"name": "scratch", "mountPath": "/tmp"},
        ],
    }
    return {
        "metadata": {"labels": {**labels(run), **run.outputs.pod_labels, LAUNCH_LABEL: run.launch}},
        "spec": {
            "restartPolicy": "OnFailure",
            "tolerations": lost_node_tolerations(),
            "affinity": _near_head(run),
            **_account(run, token=bool(run.outputs.service_account)),
            **pull_secrets(run.templates),
            "securityContext": pod_security(),
            "containers": [container],
            "volumes": [
                {"name": "files", "configMap": {"name": run.job}},
                {"name": "scratch", "emptyDir": {}},
            ],
        },
    }


def _near_head(run: RunSpec) -> Document:
    """The affinity of the submitter, which has lost workers replaced, and should not be lost with one."""
    own = {"ray.io/cluster": run.cluster} if run.cluster else labels(run)
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {**own, "ray.io/node-type": "head"}},
    }
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}


def labels(run: RunSpec) -> dict[str, str]:
    """The labels of every object and pod of a run, or of a service."""
    return {"app.kubernetes.io/managed-by": "trainfleet", **_name(run)}


def _name(run: RunSpec) -> dict[str, str]:
    """Its own label: the disruption budget of a run does not count the pods of a service of its model."""
    return {"trainfleet.io/service" if run.serving else "trainfleet.io/run": run.recipe.name}


def _template(run: RunSpec, role: str, resources: Document, ports: dict[str, int]) -> Document:
    outputs = run.outputs
    gpus = int(resources.get("limits", {}).get(GPU, "0"))
    patches = run.templates.workers if role == "worker" else run.templates.head
    grace = grace_seconds(patches, STOP_GRACE_S[role])
    serves = run.serving and role == "worker"
    mounts: list[Document] = [
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "scratch", "mountPath": "/tmp"},
    ]
    volumes: list[Document] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi" if gpus else "1Gi"}},
        {"name": "scratch", "emptyDir": {}},
    ]
    # NOTE: a head whose state is in Redis opens no store, and its cleanup Job has the same volumes: the run's
    # ConfigMap is deleted before it.
    if run.ca and not (role == "head" and run.driver_pod and not run.cluster):
        mounts.append({"name": "files", "mountPath": FILES_MOUNT, "readOnly": True})
        volumes.append({"name": "files", "configMap": {"name": run.cluster or run.job}})
    if outputs.shared_volume:
        mounts.append({"name": "shared", "mountPath": SHARED_MOUNT})
        volumes.append({"name": "shared", "persistentVolumeClaim": {"claimName": outputs.shared_volume}})
    container: Document = {
        "name": f"ray-{role}",
        "image": run.image,
        "imagePullPolicy": "IfNotPresent",
        "env": environment(run.env, CA_FILE if run.ca else "", run.outputs.secrets),
        **_env_from(run),
        "ports": [
            # NOTE: without the protocol, Kueue never starts a RayJob whose definition has no default for it.
            {"name": name, "containerPort": port, "protocol": "TCP"}
            for name, port in {**ports, "metrics": METRICS_PORT}.items()
        ],
        "resources": resources,
        "securityContext": restricted(),
        "volumeMounts": mounts,
        "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", _stop(role, grace)]}}},
        "readinessProbe": _probe(delay=5, failures=10) if not serves else _serve_probe(),
        # Ten minutes: a busy machine answers late, and restarting it would cost more than waiting.
        "livenessProbe": _probe(delay=60, failures=120),
    }
    spec: Document = {
        **_account(run, token=role == "head" and run.autoscaled),
        "securityContext": pod_security(),
        "terminationGracePeriodSeconds": grace,
        "tolerations": lost_node_tolerations(),
        "containers": [container],
        "volumes": volumes,
    }
    if run.priority:
        spec["priorityClassName"] = run.priority
    if outputs.ray_tls and outputs.ray_certificates is not None:
        _add_certificate(run, outputs.ray_certificates, spec)
    metadata = {"labels": {**labels(run), **outputs.pod_labels}, "annotations": _scrape_annotations()}
    return {"metadata": metadata, "spec": spec}


def _env_from(run: RunSpec) -> Document:
    return {"envFrom": [{"secretRef": {"name": name}} for name in run.secrets]} if run.secrets else {}


def _stop(role: str, grace_s: int) -> str:
    """The preStop hook: a worker saves first, and Ray shuts down."""
    shutdown = f"ray stop --grace-period {SHUTDOWN_S[role]}"
    saving = f"python -m {pod_drain.__name__} {max(1, grace_s - SHUTDOWN_MARGIN_S)}"
    return f"{saving}; {shutdown}" if role == "worker" else shutdown


def _account(run: RunSpec, *, token: bool) -> Document:
    """The service account of the cloud identity. Its token is for Ray's autoscaler, which runs in the head's
    pod, and for the submitter, which deletes lost pods (`lost_pod_watcher`).
    """
    account: Document = {"automountServiceAccountToken": token}
    return (
        {"serviceAccountName": run.outputs.service_account, **account}
        if run.outputs.service_account
        else account
    )


def _serve_probe() -> Document:
    """The health check of a node's Serve proxy: without it, a Service sends requests to a worker that cannot
    answer them yet. KubeRay adds it only to pods that have no readiness probe.
    """
    return {**_probe(delay=5, failures=1), "httpGet": {"path": "/-/healthz", "port": SERVE_PORT}}


def _probe(delay: int, failures: int) -> Document:
    """Ray's health check of a node, and on the head of the control store. It needs no token."""
    return {
        "httpGet": {"path": "/api/healthz", "port": AGENT_PORT},
        "initialDelaySeconds": delay,
        "periodSeconds": 5,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _scrape_annotations() -> dict[str, str]:
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(METRICS_PORT),
        "prometheus.io/path": "/metrics",
    }


def _fabric(run: RunSpec) -> FabricSettings:
    gpus = run.per_pod if run.recipe.scaling.use_gpu else 0
    return fabric_settings(run.pool, gpus, run.pods)


def _spread(run: RunSpec) -> Document:
    """Spread the workers over machines where possible: pods on one machine share its network and its
    failures.
    """
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": worker_labels(run)},
    }


def worker_labels(run: RunSpec) -> dict[str, str]:
    """Labels of the run's workers."""
    return {**_name(run), "ray.io/node-type": "worker"}


def _add_certificate(run: RunSpec, tls: RayCertificates, spec: Document) -> None:
    """Give the pod its own certificate, before Ray starts.

    NOTE: KubeRay puts an init container that contacts the head after these, and copies the first container's
    environment and mounts into it: TLS settings must be in both, and this init container must come first.
    """
    container = spec["containers"][0]
    container["env"] += variables(tls.environment)
    container["volumeMounts"].append(certificate_mount(tls))
    spec["initContainers"] = [certificate_container(tls, run.image)]
    spec["volumes"] += certificate_volumes(tls)


def mutual_tls(run: RunSpec) -> RayCertificates | None:
    """The TLS certificates of the run's Ray, where the platform has them."""
    return run.outputs.ray_certificates if run.outputs.ray_tls else None
