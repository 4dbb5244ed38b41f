"""The pods of a run: Ray's head, which does not train, and the workers, as plain documents of the Kubernetes
API.

Used by `trainfleet.training.launch.kuberay.manifest`. Everything holds to Pod Security's `restricted`, but
that RDMA needs the capability to lock
memory. Easy to get wrong: where KubeRay adds an init container that asks for the head, it copies the first
container's environment and
mounts into it, so what TLS needs must stand in both and the container that makes the certificate must come
first.
"""

from __future__ import annotations

from typing import Any

from trainfleet.infra.outputs.contract import PoolOutput, RayCertificates
from trainfleet.training.launch.kuberay.run_spec import Site, trusting

Document = dict[str, Any]

GPU = "nvidia.com/gpu"
LAUNCH_LABEL = "trainfleet.io/launch"
"""On the submitter's pod: one of an earlier launch may still be on its way out, and its log is not this
one's.
"""
USER_ID = 1000
"""Of the image's user; said, because a cluster that wants pods without root refuses a user that it knows by
name alone.
"""
FILES_MOUNT = "/etc/trainfleet"
SHARED_MOUNT = "/mnt/shared"
CA_FILE = f"{FILES_MOUNT}/ca.crt"
METRICS_PORT, DASHBOARD_PORT, HEAD_PORT, CLIENT_PORT, SERVE_PORT, AGENT_PORT = (
    8080,
    8265,
    6379,
    10001,
    8000,
    52365,
)
HEAD = {"cpu": "500m", "memory": "2Gi"}
WORKER_GIB = 2
"""Memory that a worker without a GPU asks for: Python, torch, Ray's own processes."""
GPU_MEMORY_SHARE = 0.5
"""Memory that a worker asks for, as a share of its GPU's: what every machine that is sold with that GPU has."""
OBJECT_STORE_BYTES = 200 * 2**20
"""The loop sends nothing through Ray's object store."""
STOP_GRACE_S = 45
GOODBYE_S = {"head": 2, "worker": 20}
"""How long Ray's processes may take to end before they are killed. The head trains nothing, and its control
store alone takes 7 s over its goodbye,
which every run that lost its head would wait for."""
HEADLESS_S = 6
"""How long a worker looks for a head that is gone before it starts anew to join the next one. Ray's own
minute is most of a recovery; and it must be
over before the next head answers (10 s here), for that one does not know a worker of the last, which then
stays in limbo for most of a minute."""
WAIT_FOR_HEAD = f"trap 'exit 143' TERM; until (exec 3<>/dev/tcp/$FQ_RAY_IP/{HEAD_PORT}) 2>/dev/null; do sleep 0.2; done; trap - TERM"
"""What a worker does before KubeRay's `ray start`, at every start of its container: one that begins before
its head ends, and is held back longer each time.
"""


def head_pod(site: Site) -> Document:
    """The head: control store, dashboard and the driver of the run."""
    return _template(
        site,
        "head",
        {"requests": HEAD, "limits": {"memory": "6Gi"}},
        ports=[
            {"name": "gcs", "containerPort": HEAD_PORT},
            {"name": "dashboard", "containerPort": DASHBOARD_PORT},
            {"name": "client", "containerPort": CLIENT_PORT},
            {"name": "serve", "containerPort": SERVE_PORT},
        ],
    )


def worker_pod(site: Site) -> Document:
    """A worker, with the pool's labels, tolerations, network and GPUs where there is a pool."""
    template = _template(site, "worker", worker_resources(site), ports=[])
    pool = site.pool
    spec, metadata = template["spec"], template["metadata"]
    spec["containers"][0]["args"] = [WAIT_FOR_HEAD]
    spec["containers"][0]["env"] += _plain({"RAY_gcs_rpc_server_reconnect_timeout_s": str(HEADLESS_S)})
    if pool is not None:
        spec["nodeSelector"] = dict(pool.node_selector)
        spec["tolerations"] = [dict(each) for each in pool.tolerations]
        metadata["annotations"] |= pool.pod_annotations
        spec["containers"][0]["env"] += [
            {"name": key, "value": value} for key, value in sorted(pool.environment.items())
        ]
        if _fabric(site, pool):
            spec["containers"][0]["securityContext"]["capabilities"]["add"] = ["IPC_LOCK"]
    if site.pods > 1:
        spec["topologySpreadConstraints"] = [_near(site)]
    return template


def worker_resources(site: Site) -> Document:
    """What a worker's pod asks for. A limit stands only where Kubernetes wants one: throttled CPUs would hold
    every rank up.
    """
    scaling, pool = site.recipe.scaling, site.pool
    gpus = site.per_pod if scaling.use_gpu else 0
    gib = site.per_pod * max(
        WORKER_GIB, GPU_MEMORY_SHARE * pool.gpu_memory_gib if gpus and pool is not None else 0
    )
    requests: dict[str, str] = {
        "cpu": f"{round(site.per_pod * scaling.cpus_per_worker * 1000)}m",
        "memory": f"{round(gib * 1024)}Mi",
    }
    exact: dict[str, str] = {GPU: str(gpus)} if gpus else {}
    if pool is not None and _fabric(site, pool) and pool.rdma_resource:
        exact[pool.rdma_resource] = str(pool.rdma_nics)
    return {"requests": {**requests, **exact}, **({"limits": exact} if exact else {})}


def submitter_pod(site: Site) -> Document:
    """The pod that hands the run to Ray and repeats what its driver says; it stays when the run's machines
    are gone, and with it the log.
    """
    container = {
        "name": "ray-job-submitter",
        "image": site.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", "trainfleet.training.launch.kuberay.submit"],
        "env": [
            *_plain(
                {
                    "HOME": "/tmp",
                    "USER": "trainfleet",
                    "TRAINFLEET_FILES": FILES_MOUNT,
                    "RAY_USAGE_STATS_ENABLED": "0",
                }
            )
        ],
        "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": _confined(),
        "volumeMounts": [
            {"name": "files", "mountPath": FILES_MOUNT, "readOnly": True},
            {"name": "scratch", "mountPath": "/tmp"},
        ],
    }
    return {
        "metadata": {"labels": {**labels(site), LAUNCH_LABEL: site.launch}},
        "spec": {
            "restartPolicy": "OnFailure",
            **_account(site),
            "securityContext": _pod_security(),
            "containers": [container],
            "volumes": [
                {"name": "files", "configMap": {"name": site.job}},
                {"name": "scratch", "emptyDir": {}},
            ],
        },
    }


def labels(site: Site) -> dict[str, str]:
    """What every object and pod of a run carries."""
    return {"app.kubernetes.io/managed-by": "trainfleet", "trainfleet.io/run": site.recipe.name}


def _template(site: Site, role: str, resources: Document, ports: list[Document]) -> Document:
    outputs = site.outputs
    gpus = int(resources.get("limits", {}).get(GPU, "0"))
    mounts: list[Document] = [
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "scratch", "mountPath": "/tmp"},
    ]
    volumes: list[Document] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi" if gpus else "1Gi"}},
        {"name": "scratch", "emptyDir": {}},
    ]
    if site.ca:
        mounts.append({"name": "files", "mountPath": FILES_MOUNT, "readOnly": True})
        volumes.append({"name": "files", "configMap": {"name": site.cluster or site.job}})
    if outputs.shared_volume:
        mounts.append({"name": "shared", "mountPath": SHARED_MOUNT})
        volumes.append({"name": "shared", "persistentVolumeClaim": {"claimName": outputs.shared_volume}})
    container: Document = {
        "name": f"ray-{role}",
        "image": site.image,
        "imagePullPolicy": "IfNotPresent",
        "env": _environment(site),
        **({"envFrom": [{"secretRef": {"name": name}} for name in site.secrets]} if site.secrets else {}),
        "ports": [*ports, {"name": "metrics", "containerPort": METRICS_PORT}],
        "resources": resources,
        "securityContext": _confined(),
        "volumeMounts": mounts,
        "lifecycle": {
            "preStop": {"exec": {"command": ["/bin/sh", "-c", f"ray stop --grace-period {GOODBYE_S[role]}"]}}
        },
        "readinessProbe": _probe(delay=5, failures=10),
        # A machine that is busy answers late, and a run is worth more than a quick restart: ten minutes.
        "livenessProbe": _probe(delay=60, failures=120),
    }
    spec: Document = {
        **_account(site),
        "securityContext": _pod_security(),
        "terminationGracePeriodSeconds": STOP_GRACE_S,
        "containers": [container],
        "volumes": volumes,
    }
    if outputs.priority_classes:
        spec["priorityClassName"] = outputs.priority_classes[len(outputs.priority_classes) // 2]
    if outputs.ray_tls and outputs.ray_certificates is not None:
        _add_certificate(site, outputs.ray_certificates, spec)
    metadata = {"labels": {**labels(site), **outputs.pod_labels}, "annotations": _scraped()}
    return {"metadata": metadata, "spec": spec}


def _environment(site: Site) -> list[Document]:
    values = {
        "HOME": "/tmp",
        "USER": "trainfleet",  # Python asks for the user's name, and the user may have none in the image
        "PYTHONUNBUFFERED": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        **site.env,
        **(trusting(site.env, CA_FILE) if site.ca else {}),
    }
    return _plain(values) + [_from_secret(name) for name in site.outputs.secrets]


def _from_secret(name: str) -> Document:
    """The platform's secret `hf-token` as HF_TOKEN: the cluster reads it, this program never does."""
    reference = {"name": name, "key": "value", "optional": True}
    return {"name": name.upper().replace("-", "_"), "valueFrom": {"secretKeyRef": reference}}


def _plain(values: dict[str, str]) -> list[Document]:
    return [{"name": key, "value": value} for key, value in sorted(values.items())]


def _account(site: Site) -> Document:
    """The account of the cloud's identity. The run itself asks the cluster for nothing, so it gets no token,
    but for Ray's autoscaler.
    """
    account: Document = {"automountServiceAccountToken": site.autoscaled}
    return (
        {"serviceAccountName": site.outputs.service_account, **account}
        if site.outputs.service_account
        else account
    )


def _pod_security() -> Document:
    return {
        "runAsNonRoot": True,
        "runAsUser": USER_ID,
        "runAsGroup": USER_ID,
        "fsGroup": USER_ID,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _confined() -> Document:
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _probe(delay: int, failures: int) -> Document:
    """Ray's own health of a node, of the head its control store too; it needs no token."""
    return {
        "httpGet": {"path": "/api/healthz", "port": AGENT_PORT},
        "initialDelaySeconds": delay,
        "periodSeconds": 5,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _scraped() -> dict[str, str]:
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(METRICS_PORT),
        "prometheus.io/path": "/metrics",
    }


def _fabric(site: Site, pool: PoolOutput) -> bool:
    """Whether the pod uses RDMA: only a pod that has its machine for itself, and only where there is somebody
    to talk to.
    """
    return pool.rdma != "none" and site.per_pod == pool.per_node and site.pods > 1


def _near(site: Site) -> Document:
    """Workers on different machines, if there are any: two pods of one would share its network for nothing
    and die together.
    """
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {
            "matchLabels": {"trainfleet.io/run": site.recipe.name, "ray.io/node-type": "worker"}
        },
    }


def _add_certificate(site: Site, tls: RayCertificates, spec: Document) -> None:
    """Give the pod a certificate of its own, signed by the platform's authority before Ray starts."""
    container = spec["containers"][0]
    container["env"] += _plain(tls.environment)
    own = {"name": "ray-tls", "mountPath": tls.mount}
    container["volumeMounts"].append({**own, "readOnly": True})
    spec["initContainers"] = [
        {
            "name": "certificate",
            "image": site.image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["/bin/sh", f"{tls.config_mount}/{tls.script}"],
            "env": [
                {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
                {"name": "RAY_CA_FOLDER", "value": tls.ca_mount},
                {"name": "RAY_TLS_FOLDER", "value": tls.mount},
            ],
            "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
            "securityContext": _confined(),
            "volumeMounts": [
                {"name": "ray-ca", "mountPath": tls.ca_mount, "readOnly": True},
                {"name": "ray-tls-setup", "mountPath": tls.config_mount, "readOnly": True},
                own,
            ],
        }
    ]
    spec["volumes"] += [
        {"name": "ray-ca", "secret": {"secretName": tls.ca_secret}},
        {"name": "ray-tls-setup", "configMap": {"name": tls.config}},
        {"name": "ray-tls", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    ]


def mutual_tls(site: Site) -> RayCertificates | None:
    """The certificates of the run's Ray, where the platform has them."""
    return site.outputs.ray_certificates if site.outputs.ray_tls else None
