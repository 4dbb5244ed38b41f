"""Checks a cluster before a run is created on it, so that a rejected run leaves nothing behind.

A launcher's account may see little beyond its own namespace: what it may not read counts as present.
"""

from __future__ import annotations

from typing import Any

from trainfleet.errors import InputError, MissingToolError, Problem, TrainfleetError
from trainfleet.training.launch.kuberay.long_lived import differences
from trainfleet.training.launch.kuberay.manifest import files, ray_cluster, ray_job
from trainfleet.training.launch.kuberay.run_spec import RunSpec
from trainfleet.training.launch.remote.kubernetes import ApiError, Cluster
from trainfleet.training.launch.remote.platform_objects import (
    PlatformObject,
    missing_objects,
    platform_objects,
)
from trainfleet.training.launch.remote.pod_diagnostics import exceeded_quota
from trainfleet.training.runtime.run_lock import started_elsewhere

KUBERAY = "1.6"
UNSUPPORTED = "unsupported KubeRay version"
ENDED = ("Complete", "Failed", "ValidationFailed")
"""The states of a RayJob that has ended."""
INSTALL = (
    "a stack includes it; by hand: helm install kuberay-operator kuberay/kuberay-operator --version 1.6.0"
)


def reach(cluster: Cluster, namespace: str) -> None:
    """Check that the cluster answers this user, has the namespace, and has KubeRay.

    Raises:
        InputError: the cluster is unreachable, rejects the user, or lacks the namespace.
        MissingToolError: KubeRay is missing or too old.
    """
    try:
        cluster.request("GET", f"/api/v1/namespaces/{namespace}")
    except ApiError as error:
        if error.status != 403:  # an account may use a namespace that it may not read
            raise explain(error, cluster) from error
    try:
        group = cluster.request("GET", "/apis/ray.io")
    except ApiError as error:
        if error.status == 404:
            raise MissingToolError(
                "this cluster has no KubeRay", [Problem(cluster.name, "has no ray.io resources", INSTALL)]
            ) from error
        raise explain(error, cluster) from error
    versions = [str(each.get("version")) for each in group.get("versions", [])]
    if "v1" not in versions:
        what = f"serves ray.io/{', '.join(versions)}, not v1"
        raise MissingToolError(UNSUPPORTED, [Problem(cluster.name, what, f"KubeRay {KUBERAY} or newer")])


def ready_for(cluster: Cluster, run: RunSpec) -> None:
    """Check by a dry run that the run can be created.

    Raises:
        InputError: a run of this name exists, or something that its pods refer to is missing.
        MissingToolError: KubeRay does not support a field of the run.
    """
    reach(cluster, run.namespace)
    if problems := missing_objects(cluster, _required(run)):
        raise InputError("the cluster lacks what the run's pods need", problems)
    existing = cluster.get("RayJob", run.job)
    if existing is not None and state_of(existing) not in ENDED:
        raise already_running(run, cluster)
    if run.cluster and (shared := cluster.get("RayCluster", run.cluster)):
        what, fix = f"the pods of {run.cluster} exist already", "leave it out, or name another --cluster"
        if problems := [Problem(name, what, fix) for name in run.templates.of_run]:
            raise InputError("the launch cannot change these pods", problems)
        if problems := differences(cluster, run, shared):
            raise InputError("the launch cannot change this Ray cluster", problems)
    try:
        documents = [
            files(run),
            *([] if existing is not None else [ray_job(run)]),
            *([ray_cluster(run)] if run.cluster else []),
        ]
        for document in documents:
            if cluster.get(document["kind"], document["metadata"]["name"]) is None:
                cluster.create(document, dry_run=True)
    except ApiError as error:
        raise explain(error, cluster) from error


def already_running(run: RunSpec, cluster: Cluster) -> InputError:
    """The error of a second launch under one name."""
    return started_elsewhere(run.recipe.name, f"{cluster.name} {run.namespace}/{run.job}")


def is_handled(job: dict[str, Any]) -> bool:
    """Whether an operator has seen the job."""
    return bool(state_of(job)) or bool(job.get("spec", {}).get("suspend"))


def state_of(job: dict[str, Any]) -> str:
    """A RayJob's jobDeploymentStatus; empty until an operator has seen it."""
    return str(job.get("status", {}).get("jobDeploymentStatus") or "")


def known_to_ray(job: dict[str, Any]) -> bool:
    """Whether Ray has the job. KubeRay submits it once all pods of its cluster are ready, and clears its
    status when a queue suspends the run.
    """
    return bool(job.get("status", {}).get("jobStatus"))


def _required(run: RunSpec) -> list[PlatformObject]:
    """What the run's pods refer to."""
    found = platform_objects(run.outputs, run.secrets)
    if run.gcs_store and run.gcs_store.secret:
        fix = "the platform's Job `ray-redis-password` creates it, or you do for a Redis of yours"
        found.append(PlatformObject("secrets", run.gcs_store.secret, fix, created_later=True))
    return found


def explain(error: ApiError, cluster: Cluster) -> TrainfleetError:
    """An API server's rejection as an error that the user can act on."""
    summary, where, what, fix = _explanation(error, cluster)
    unsupported = summary == UNSUPPORTED
    return (MissingToolError if unsupported else InputError)(summary, [Problem(where, what, fix)])


def _explanation(error: ApiError, cluster: Cluster) -> tuple[str, str, str, str]:
    """Summary, where, what and fix."""
    message, name = error.message, cluster.name
    match error.status:
        case 0:
            fix = "is it running, and are you in its network? `kubectl cluster-info` asks the same"
            return "the cluster does not answer", name, message, fix
        case 401:
            what = "your login has expired, or is not valid for this cluster"
            return "the cluster rejects your login", name, what, cluster.renew
        case 404 if "namespaces" in message:
            what = f"{cluster.namespace} is not in {name}"
            return "no such namespace", "--namespace", what, "create it, or apply the stack"
        case 403:
            return _forbidden(message, cluster)
        case 400 | 422 if "unknown field" in message or "strict decoding" in message:
            what = f"does not support: {message.rpartition('strict decoding error: ')[2]}"
            return UNSUPPORTED, name, what, f"KubeRay {KUBERAY} or newer, with its resource definitions"
        case _:
            return _rejected(message, name)


def _rejected(message: str, name: str) -> tuple[str, str, str, str]:
    if "failed calling webhook" in message and "kueue" in message:
        fix = "try again in a minute; `kubectl -n kueue-system get pods` shows the controller"
        return "the cluster's queue does not answer", name, message.rpartition("failed to call ")[2], fix
    return "the cluster rejects the run", name, message, ""


def _forbidden(message: str, cluster: Cluster) -> tuple[str, str, str, str]:
    if "exceeded quota" in message:
        what = exceeded_quota(message) or message
        return "the namespace's quota is too small", cluster.name, what, "a larger quota, or fewer workers"
    if "being terminated" in message:
        what = f"{cluster.namespace} is being deleted"
        return "the namespace is being deleted", cluster.name, what, "wait until it is gone, or use another"
    return "permission denied by the cluster", cluster.name, message, "ask for the role `trainfleet-launcher`"
