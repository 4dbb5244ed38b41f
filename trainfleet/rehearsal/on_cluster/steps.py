"""The steps of a rehearsal on a cluster: the usual ones and cluster checks after apply and destroy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from trainfleet.rehearsal.on_cluster.api import ApiError
from trainfleet.rehearsal.on_cluster.cloud import ClusterCloud
from trainfleet.rehearsal.on_cluster.dry_run import pods_refused
from trainfleet.rehearsal.on_cluster.inventory import inventory, leftover
from trainfleet.rehearsal.on_cluster.objects import to_object
from trainfleet.rehearsal.report import Step
from trainfleet.rehearsal.simulation.kubernetes.model import is_object
from trainfleet.rehearsal.steps import selection
from trainfleet.rehearsal.steps.session import Rehearsal
from trainfleet.rehearsal.steps.steps import STEPS as SIMULATED
from trainfleet.rehearsal.steps.steps import found_and_put_right

SOMEONE_ELSE = "somebody-else"
"""Field manager of the simulated drift."""


def _cloud(r: Rehearsal) -> ClusterCloud:
    assert isinstance(r.cloud, ClusterCloud)
    return r.cloud


def on_the_cluster(r: Rehearsal, step: Step) -> None:
    """Check the cluster after the apply: every object exists and admission accepts its pods.

    The row also reports the stand-ins for charts.
    """
    began = time.monotonic()
    cloud = _cloud(r)
    documents = [to_object(record.inputs) for record in cloud.everything() if _is_live(record.token)]
    step.resources = len(cloud.applier.made)
    for path, made in cloud.applier.made.items():
        try:
            found = cloud.api.get(path)
        except ApiError as error:
            r.unexpected(step, f"cannot be read: {error.message}")
            return
        if found is None:
            r.unexpected(step, f"{made.shown} was created and is not on the cluster")
    for shown, why in pods_refused(cloud.api, documents):
        r.unexpected(step, f"a pod of {shown} would be rejected: {why}")
    details = [*cloud.charts.reports.values()]
    namespaces = cloud.applier.namespaces
    details += [
        f"namespace {name} already exists, created by {owners}: used with its own labels and kept"
        for name, owners in namespaces.items()
    ]
    if same := len(cloud.applier.shared) - len(namespaces):
        details.append(f"already present with the same content, left unchanged: {same}")
    details += [f"warning: {text}" for texts in cloud.api.warnings.values() for text in dict.fromkeys(texts)]
    step.detail = "\n    ".join(
        [
            f"{cloud.target.context} holds {len(cloud.applier.made)} objects of this stack",
            *dict.fromkeys(details),
        ]
    )
    step.seconds = time.monotonic() - began


def _is_live(token: str) -> bool:
    return token.startswith("kubernetes:") and is_object(token)


def drift(r: Rehearsal, step: Step) -> None:
    """Remove a label as another field manager: refresh detects it, and the next apply restores it."""
    cloud = _cloud(r)
    found = next(
        (
            (choice, key)
            for choice in selection.updatable(r.resources(), r.rules, r.seed + 1)
            if (key := _own_key(r, choice))
        ),
        None,
    )
    if found is None:
        step.ran, step.detail = False, "no object with labels or annotations"
        return
    choice, key = found
    path = cloud.live_path(choice.urn)
    edit: dict[str, Any] = {"metadata": {choice.path[1]: {key: None}}}
    cloud.api.request("PATCH", path, {"fieldManager": SOMEONE_ELSE}, edit, "application/merge-patch+json")
    step.resources, step.detail = 1, f"{choice.name}, without {key}"

    def still() -> str:
        there = ((cloud.api.get(path) or {}).get("metadata") or {}).get(choice.path[1]) or {}
        return "" if key in there else f"is still without {key}"

    found_and_put_right(r, step, choice.urn, still)


def _own_key(r: Rehearsal, choice: selection.Choice) -> str:
    """Return a label or annotation that the program set on an object it created, or an empty string."""
    if choice.path[:1] != ("metadata",) or not _cloud(r).live_path(choice.urn):
        return ""
    record = r.cloud.of_urn(choice.urn)
    given = ((record.inputs.get("metadata") or {}).get(choice.path[1]) or {}) if record else {}
    return next(iter(sorted(given)), "")


def nothing_left(r: Rehearsal, step: Step) -> None:
    """Check that nothing of the stack is left on the cluster.

    Resources that the program retains are deleted here and reported.
    """
    began = time.monotonic()
    cloud = _cloud(r)
    kept = {path for record in cloud.everything() if (path := cloud.live_path(record.urn))}
    for path, made in cloud.applier.made.items():
        if path not in kept and path not in cloud.charts.provided:
            r.unexpected(step, f"{made.shown} should have been deleted with the stack")
    if kept:
        step.detail = (
            "retained by the stack, deleted now:"
            f" {', '.join(made.shown for path, made in cloud.applier.made.items() if path in kept)}"
        )
    for text in (*cloud.charts.end(), *cloud.applier.clear()):
        r.unexpected(step, text)
    after = inventory(cloud.api)
    step.resources = len(after.objects)
    for path in leftover(cloud.before, after, *_places(r, cloud)):
        r.unexpected(step, f"{path} was not on the cluster before")
    step.seconds = time.monotonic() - began


def _places(r: Rehearsal, cloud: ClusterCloud) -> tuple[set[str], set[str]]:
    """Return the namespaces and definitions that the stack itself created."""

    def names(kind: str) -> set[str]:
        found = (
            ((planned.new or {}).get("inputs") or {}).get("metadata") or {}
            for planned in r.plan
            if planned.token.endswith(f":{kind}")
        )
        return {str(metadata["name"]) for metadata in found if "name" in metadata}

    there = {
        path.rpartition("/")[2] for path in cloud.before.objects if "/customresourcedefinitions/" in path
    }
    # NOTE: others may create objects in a namespace that already existed. The stack's own are found by field
    # manager.
    return names("Namespace") - set(cloud.applier.namespaces), names("CustomResourceDefinition") - there


def _with_the_cluster() -> Iterator[tuple[str, str, Callable[[Rehearsal, Step], None]]]:
    for name, title, act in SIMULATED:
        if name == "again":  # NOTE: what it creates would stay on the cluster
            continue
        yield name, title, drift if name == "drift" else act
        if name == "apply":
            yield "cluster", "on the cluster", on_the_cluster
        if name == "destroy":
            yield "left", "nothing left there", nothing_left


STEPS = tuple(_with_the_cluster())
