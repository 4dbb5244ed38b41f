"""The Ray cluster of `--cluster NAME`: the first run creates it, and later ones use it as it is."""

from __future__ import annotations

from typing import Any

from trainfleet.errors import Problem
from trainfleet.training.launch.kuberay.manifest import cluster_budget, ray_cluster
from trainfleet.training.launch.kuberay.run_spec import RunSpec
from trainfleet.training.launch.remote.kubernetes import Cluster
from trainfleet.training.launch.remote.storage_env import CA_BUNDLE, CERTIFICATE, STORES

Document = dict[str, Any]
ANOTHER = "name another --cluster"


def ensure(cluster: Cluster, objects: list[Document]) -> Document:
    """Create a long-lived Ray cluster unless it exists.

    The files of one that exists stay: they have the certificates that its pods trust.

    Args:
        cluster: where.
        objects: `manifest.cluster_objects`.

    Returns:
        The disruption budget of the cluster that exists now. Its pods may be fewer or more than this run's
        recipe asks for.
    """
    files, requested, _ = objects
    found = cluster.get("RayCluster", requested["metadata"]["name"])
    if found is None:
        cluster.apply(files)
        found = cluster.apply(requested)
    return cluster_budget(found)


def differences(cluster: Cluster, run: RunSpec, existing: Document) -> list[Problem]:
    """What a launch asks of an existing long-lived cluster that its pods do not have: where drivers run, the
    image, Secrets, and the run's store.
    """
    there, asked = _container(existing["spec"]), _container(ray_cluster(run)["spec"])
    has, requested = _variables(there), _variables(asked)
    found = [*_gcs_store(run, existing), *_other_image(run, there), *_no_secrets(run, there, asked)]
    found += [
        _other_store(run, name, requested.get(name), has.get(name))
        for name in STORES
        if requested.get(name) != has.get(name)
    ]
    files = (cluster.get("ConfigMap", str(run.cluster)) or {}) if CA_BUNDLE in has else {}
    trusted = set(CERTIFICATE.findall((files.get("data") or {}).get("ca.crt", "")))
    if not trusted.issuperset(CERTIFICATE.findall(run.ca)):
        what = f"has certificates that the pods of {run.cluster} do not trust"
        found.append(Problem(CA_BUNDLE, what, f"unset it if the store needs none of them, or {ANOTHER}"))
    return found


def _gcs_store(run: RunSpec, existing: Document) -> list[Problem]:
    has = "gcsFaultToleranceOptions" in existing["spec"]
    if has == (run.gcs_store is not None):
        return []
    what = f"{run.cluster} exists already {'with' if has else 'without'} GCS fault tolerance"
    fix = "--gcs-fault-tolerance always, or --redis" if has else f"leave it out, or {ANOTHER}"
    return [Problem("--gcs-fault-tolerance", what, fix)]


def _other_image(run: RunSpec, there: Document) -> list[Problem]:
    has = there.get("image")
    if has == run.image:
        return []
    what = f"is {run.image}, and the pods of {run.cluster} have {has}"
    return [Problem("--image", what, f"--image {has}, or {ANOTHER}")]


def _no_secrets(run: RunSpec, there: Document, asked: Document) -> list[Problem]:
    missing = [name for name in _secrets(asked) if name not in _secrets(there)]
    what = f"the pods of {run.cluster} do not have its variables"
    return [
        Problem(f"storage.secret {name}", what, ANOTHER)
        if name == run.outputs.storage_secret
        else Problem(f"--from-secret {name}", what, f"leave it out, or {ANOTHER}")
        for name in missing
    ]


def _other_store(run: RunSpec, name: str, requested: str | None, has: str | None) -> Problem:
    here = f"is {requested}" if requested else "is not set"
    there = f"have {has}" if has else "do not have it"
    fix = f"{name}={has}" if has else f"unset {name}"
    return Problem(name, f"{here}, and the pods of {run.cluster} {there}", f"{fix}, or {ANOTHER}")


def _container(spec: Document) -> Document:
    """Ray's container in the workers."""
    group = (spec.get("workerGroupSpecs") or [spec["headGroupSpec"]])[0]
    return dict(group["template"]["spec"]["containers"][0])


def _variables(container: Document) -> dict[str, str | None]:
    return {each["name"]: each.get("value") for each in container.get("env", [])}


def _secrets(container: Document) -> list[str]:
    """The Secrets whose keys are variables of the container."""
    return [each["secretRef"]["name"] for each in container.get("envFrom", []) if "secretRef" in each]
