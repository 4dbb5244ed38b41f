"""What is looked at before a run is handed to a cluster, so that what cannot work is refused with the reason
and nothing is left there.

Used by `trainfleet.training.launch.kuberay`. Easy to get wrong: a launcher may see its own namespace and
little else, so what it may not look
at is not missing.
"""

from __future__ import annotations

from typing import Any

from trainfleet.errors import InputError, MissingToolError, Problem, TrainfleetError
from trainfleet.training.launch.kuberay.client import ApiError, Cluster
from trainfleet.training.launch.kuberay.manifest import files, ray_cluster, ray_job
from trainfleet.training.launch.kuberay.run_spec import Site

KUBERAY = "1.6"
ENDED = ("Complete", "Failed", "ValidationFailed")
"""How a RayJob that will do nothing more stands."""
INSTALL = "trainfleet installs it with a stack; by hand: helm install kuberay-operator kuberay/kuberay-operator --version 1.6.0"


def reach(cluster: Cluster, namespace: str) -> None:
    """See that the cluster answers this user, has the namespace, and has KubeRay.

    Raises:
        InputError: not reached, not let in, or no such namespace.
        MissingToolError: no KubeRay there, or one that is too old.
    """
    try:
        cluster.request("GET", f"/api/v1/namespaces/{namespace}")
    except ApiError as error:
        if error.status != 403:  # a launcher may use a namespace that it may not look at
            raise in_words(error, cluster) from error
    try:
        group = cluster.request("GET", "/apis/ray.io")
    except ApiError as error:
        if error.status == 404:
            raise MissingToolError(
                "this cluster has no KubeRay", [Problem(cluster.name, "knows no ray.io objects", INSTALL)]
            ) from error
        raise in_words(error, cluster) from error
    versions = [str(each.get("version")) for each in group.get("versions", [])]
    if "v1" not in versions:
        what = f"serves ray.io/{', '.join(versions)} and not v1"
        raise MissingToolError(
            "this cluster has another KubeRay", [Problem(cluster.name, what, f"KubeRay {KUBERAY} or newer")]
        )


def ready_for(cluster: Cluster, site: Site) -> None:
    """See that the run may be made as it stands, without making it.

    Raises:
        InputError: a run of this name is going on, or something that its pods name is not there.
        MissingToolError: KubeRay does not know what is asked of it.
    """
    reach(cluster, site.namespace)
    problems = [*_absent(cluster, site)]
    if problems:
        raise InputError("the cluster lacks what the run's pods need", problems)
    there = cluster.get("RayJob", site.job)
    if there is not None and state_of(there) not in ENDED:
        raise already_going(site, cluster)
    try:
        documents = [
            files(site),
            *([] if there is not None else [ray_job(site)]),
            *([ray_cluster(site)] if site.cluster else []),
        ]
        for document in documents:
            if cluster.get(document["kind"], document["metadata"]["name"]) is None:
                cluster.create(document, dry_run=True)
    except ApiError as error:
        raise in_words(error, cluster) from error


def already_going(site: Site, cluster: Cluster) -> InputError:
    """The error for a second launch under one name."""
    run = site.recipe.name
    fix = f"`trainfleet runs attach {run}` to watch it, `trainfleet runs stop {run}` to end it, or --run NAME for another"
    return InputError(
        "this run is going on already",
        [Problem(f"{cluster.name} {site.namespace}/{site.job}", "another launch started it", fix)],
    )


def state_of(job: dict[str, Any]) -> str:
    """A RayJob's jobDeploymentStatus; empty while no operator has seen it."""
    return str(job.get("status", {}).get("jobDeploymentStatus") or "")


def _absent(cluster: Cluster, site: Site) -> list[Problem]:
    named = [
        ("serviceaccounts", site.outputs.service_account, "apply the stack again"),
        *(("secrets", each, "kubectl create secret generic …") for each in site.secrets),
    ]
    if site.outputs.shared_volume:
        named.append(("persistentvolumeclaims", site.outputs.shared_volume, "apply the stack again"))
    if site.outputs.ray_tls and site.outputs.ray_certificates is not None:
        named.append(
            (
                "secrets",
                site.outputs.ray_certificates.ca_secret,
                "the platform's Job `ray-ca` makes it; has it run?",
            )
        )
    problems = []
    for plural, name, fix in named:
        if not name:
            continue
        try:
            cluster.request("GET", f"/api/v1/namespaces/{site.namespace}/{plural}/{name}")
        except ApiError as error:
            if error.status == 404:
                problems.append(Problem(f"{plural}/{name}", f"is not in namespace {site.namespace}", fix))
    return problems


def in_words(error: ApiError, cluster: Cluster) -> TrainfleetError:  # noqa: PLR0911 - one answer per kind of refusal
    """An API server's refusal as the error that the user can act on."""
    message, name = error.message, cluster.name
    if error.status == 0:
        return InputError(
            "no cluster answers there",
            [
                Problem(
                    name,
                    message,
                    "is it running, and are you in its network? `kubectl cluster-info` asks the same",
                )
            ],
        )
    if error.status == 401:
        return InputError(
            "the cluster does not know you",
            [Problem(name, "your login has expired, or never was one of this cluster", "log in again")],
        )
    if error.status == 404 and "namespaces" in message:
        return InputError(
            "no such namespace",
            [
                Problem(
                    "--namespace", f"{cluster.namespace} is not in {name}", "create it, or apply the stack"
                )
            ],
        )
    if error.status == 403 and "exceeded quota" in message:
        from trainfleet.training.launch.kuberay.pod_diagnostics import quota

        return InputError(
            "the namespace's quota is too small",
            [Problem(name, quota(message) or message, "ask for more, or for fewer workers")],
        )
    if error.status == 403 and "being terminated" in message:
        return InputError(
            "the namespace is going",
            [Problem(name, f"{cluster.namespace} is being deleted", "wait until it is gone, or use another")],
        )
    if error.status == 403:
        return InputError(
            "you may not do this in the cluster",
            [Problem(name, message, "ask for the role `trainfleet-launcher`")],
        )
    if error.status in (400, 422) and ("unknown field" in message or "strict decoding" in message):
        what = f"does not know what a run asks for: {message.rpartition('strict decoding error: ')[2]}"
        return MissingToolError(
            "this cluster has another KubeRay",
            [Problem(name, what, f"KubeRay {KUBERAY} or newer, with its resource definitions")],
        )
    return InputError("the cluster refuses the run", [Problem(name, message)])
