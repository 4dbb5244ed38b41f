"""The pods of `trainfleet fabric check`: workers of a training on two nodes that run all-reduces. Pure.

They are made from a training's worker pod, so they have the fabric settings that a training has.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from trainfleet.errors import InputError, Problem
from trainfleet.infra.outputs.contract import PlatformOutputs, PoolOutput
from trainfleet.training.launch.kuberay.manifest import PRIORITY_LABEL
from trainfleet.training.launch.kuberay.pods import Document, labels, worker_labels, worker_pod
from trainfleet.training.launch.kuberay.run_spec import RunSpec
from trainfleet.training.launch.remote.fabric import unusable_fabric
from trainfleet.training.launch.remote.pod_template import PodTemplates, of_platform
from trainfleet.training.launch.remote.pool_choice import choose_pool
from trainfleet.training.launch.remote.priority import choose_priority
from trainfleet.training.launch.remote.queue_state import QUEUE_LABEL
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import ScalingConfig
from trainfleet.training.runtime import all_reduce

NODES = 2
CONTAINER = "all-reduce"
CHECK_LABEL = "trainfleet.io/fabric-check"
POD_GROUP = "kueue.x-k8s.io/pod-group-name"
POD_GROUP_SIZE = "kueue.x-k8s.io/pod-group-total-count"
"""Kueue admits the two pods together (kueue.sigs.k8s.io/docs/tasks/run/plain_pods)."""
MEASURE_S = 900.0
"""How long the all-reduces may take once both pods run."""
STOP_GRACE_S = 5
NCCL_LOG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}
CPUS = 0.25
"""Of a process of `--backend gloo`."""


@dataclass(frozen=True)
class Backend:
    """nccl measures the fabric with all GPUs of two nodes; gloo the pods' ordinary network without GPUs."""

    name: str

    @property
    def gpus(self) -> bool:
        """Whether the pods request GPUs."""
        return self.name == "nccl"


@dataclass(frozen=True)
class FabricCheck:
    """A check, resolved."""

    name: str
    run: RunSpec
    """The training whose worker pods the check's pods are."""
    pool: PoolOutput
    backend: Backend

    @property
    def pods(self) -> list[str]:
        """The names of the pods."""
        return [f"{self.name}-{number}" for number in range(NODES)]

    @property
    def processes(self) -> int:
        """Of both pods."""
        return NODES * self.run.per_pod


def resolve(
    outputs: PlatformOutputs,
    pool_name: str,
    backend: Backend,
    *,
    image: str | None = None,
    context: str | None = None,
    namespace: str | None = None,
    within_s: float = 1800.0,
) -> FabricCheck:
    """What a check runs, and where.

    Args:
        outputs: the platform's.
        pool_name: the pool that is checked.
        backend: nccl, or gloo for a pool without a fabric.
        image: another image than the platform's.
        context: a context of the kubeconfig; None: that of the platform.
        namespace: another namespace than the platform's.
        within_s: how long the pods may wait for their nodes.

    Raises:
        InputError: the pool does not exist, has no fabric, or cannot have two nodes.
    """
    recipe = load_recipe("lm-tiny", [], {})
    pool, problems = choose_pool(recipe, outputs, pool_name)
    if pool is not None:
        problems = _unsuitable(pool, backend)
    if not (image or outputs.image):
        problems.append(Problem("--image", "is missing: the platform names no image", "--image REF"))
    if pool is None or problems:
        raise InputError("the fabric of this pool cannot be checked", problems)
    per_pod = pool.per_node if backend.gpus else 1
    name = f"fabric-{pool.name[:40]}-{secrets.token_hex(3)}"
    # The check has no Ray and reads no data.
    bare = outputs.model_copy(update={"ray_tls": False, "shared_volume": "", "secrets": []})
    run = RunSpec(
        recipe=recipe.model_copy(update={"name": name, "scaling": _scaling(backend, per_pod)}),
        outputs=bare,
        context=context,
        namespace=namespace or outputs.namespace,
        image=image or outputs.image,
        pool=pool,
        per_pod=per_pod,
        pods=NODES,
        min_pods=NODES,
        job=name,
        launch=name,
        cluster=None,
        secrets=(),
        env={},
        ca="",
        within_s=within_s,
        allow_changes=(),
        templates=PodTemplates(workers=of_platform(outputs, pool)),
        priority=choose_priority(outputs.priority_classes, None)[0],
    )
    return FabricCheck(name, run, pool, backend)


def _scaling(backend: Backend, per_pod: int) -> ScalingConfig:
    scaling = ScalingConfig(workers=NODES * per_pod, use_gpu=backend.gpus)
    return scaling if backend.gpus else scaling.model_copy(update={"cpus_per_worker": CPUS})


def _unsuitable(pool: PoolOutput, backend: Backend) -> list[Problem]:
    problems = []
    if 0 < pool.max_nodes < NODES:
        what = f"pool {pool.name} grows to {pool.max_nodes} node, and the check needs {NODES}"
        problems.append(Problem("--pool", what, "a pool with `max_nodes` of 2 or more"))
    if not backend.gpus:
        return problems
    if pool.rdma == "none":
        what = f"pool {pool.name} has no fabric (`interconnect: none`), so there is nothing to check"
        problems.append(
            Problem("--pool", what, "--backend gloo checks the ordinary network between two pods")
        )
    elif why := unusable_fabric(pool, pool.per_node, NODES):
        problems.append(Problem("--pool", why, "another pool, or `interconnect: none` in its spec"))
    elif not pool.environment.get("NCCL_NET"):
        what = f"the platform's outputs name no network of NCCL (NCCL_NET) for pool {pool.name}"
        problems.append(Problem("--pool", what, "apply the stack again with this version of Trainfleet"))
    return problems


def check_objects(check: FabricCheck) -> list[Document]:
    """The service by which the pods find one another, and the pods."""
    return [_service(check), *(_pod(check, number) for number in range(NODES))]


def _service(check: FabricCheck) -> Document:
    spec = {
        "clusterIP": "None",
        # The second pod connects before the first is ready.
        "publishNotReadyAddresses": True,
        "selector": {CHECK_LABEL: check.name},
        "ports": [{"name": "store", "port": all_reduce.PORT}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": check.name, "labels": {**labels(check.run), CHECK_LABEL: check.name}},
        "spec": spec,
    }


def _pod(check: FabricCheck, number: int) -> Document:
    run = check.run
    template = worker_pod(run)
    metadata, spec = template["metadata"], template["spec"]
    metadata["name"] = check.pods[number]
    metadata["labels"] |= {CHECK_LABEL: check.name}
    metadata["annotations"] = {
        name: value
        for name, value in metadata["annotations"].items()
        if not name.startswith("prometheus.io/")
    }
    if run.outputs.queue:
        metadata["labels"] |= {QUEUE_LABEL: run.outputs.queue, POD_GROUP: check.name}
        metadata["annotations"][POD_GROUP_SIZE] = str(NODES)
        if run.priority:
            metadata["labels"][PRIORITY_LABEL] = run.priority
    container = next(each for each in spec["containers"] if each["name"] == "ray-worker")
    # A sidecar of the platform would keep the pod from ending.
    spec["containers"] = [container]
    for ray_only in ("args", "ports", "lifecycle", "readinessProbe", "livenessProbe"):
        container.pop(ray_only, None)
    container["name"] = CONTAINER
    container["command"] = _command(check, number)
    debug = NCCL_LOG if check.backend.gpus else {}
    container["env"] = [
        each for each in container["env"] if each["name"] not in debug and not each["name"].startswith("RAY_")
    ] + [{"name": name, "value": value} for name, value in debug.items()]
    _select_pods(check, spec)
    spec |= {
        "hostname": check.pods[number],
        "subdomain": check.name,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": STOP_GRACE_S,
        # The pods end by themselves if the command was killed.
        "activeDeadlineSeconds": round(run.within_s + MEASURE_S),
    }
    return {"apiVersion": "v1", "kind": "Pod", **template}


def _select_pods(check: FabricCheck, spec: Document) -> None:
    """Let what places the workers of a training place the pods of the check, which KubeRay does not label."""
    together = (spec.get("affinity") or {}).get("podAffinity") or {}
    required = together.get("requiredDuringSchedulingIgnoredDuringExecution", [])
    for term in (*required, *spec.get("topologySpreadConstraints", [])):
        if term.get("labelSelector") == {"matchLabels": worker_labels(check.run)}:
            term["labelSelector"] = {"matchLabels": {CHECK_LABEL: check.name}}


def _command(check: FabricCheck, number: int) -> list[str]:
    options = {
        "backend": check.backend.name,
        "machines": NODES,
        "machine": number,
        "per-machine": check.run.per_pod,
        "address": f"{check.pods[0]}.{check.name}",
        "wait": round(check.run.within_s + MEASURE_S),
    }
    return ["python", "-m", all_reduce.__name__, *(f"--{name}={value}" for name, value in options.items())]
