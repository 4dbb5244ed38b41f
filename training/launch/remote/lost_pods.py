"""Pods of a node that no longer answers, which Kubernetes keeps because nobody confirms their end.

KubeRay counts them as running and replaces none of them (reconcilePods of its v1.6), so a run would wait
until somebody deletes the node. Their objects are therefore deleted without that confirmation. A process that
still runs there can join no rank again, and the kubelet ends it once the node answers.

Kubernetes notices such a node after 50 s. Ray's head notices it earlier, and never takes a node back that it
has given up. Until Kubernetes notices, the scheduler may place the replacement on the same node. Such a pod
is therefore released first: with another value of the label by which KubeRay counts a cluster's pods, it is
replaced while it still takes its share of the node, which workers avoid meanwhile (`avoid_lost_nodes`). It is
deleted once the replacement is placed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from trainfleet.training.launch.remote.ray_nodes import RayNodes

Document = Mapping[str, Any]
CONFIRM_S = 5.0
"""How long a pod that has started must look lost before it is deleted."""
OVERDUE_S = 120.0
"""How long after its grace period a pod may remain before it counts as lost, however it looks."""
RELEASED_S = 30.0
"""How long a released pod is kept if no replacement is placed. By then Kubernetes has noticed a lost node."""
CLUSTER_LABEL = "ray.io/cluster"
RELEASED = "trainfleet.lost"
"""The label's value on a released pod. No Ray cluster has a dot in its name."""


def is_lost(pod: Document, now: float) -> bool:
    """Whether the node of a pod that is being deleted no longer answers.

    The taint manager evicts such a pod, and only the node's controller can have set `Ready` to false while
    the kubelet's own report, `ContainersReady`, is still true. A replacement that was placed on the node
    before Kubernetes had noticed has no start, which the kubelet sets first.

    Args:
        pod: the pod as the API server returns it.
        now: seconds since the epoch.
    """
    deleted = pod["metadata"].get("deletionTimestamp")
    if not deleted:
        return False
    # The time at which its grace period ends.
    if now > datetime.fromisoformat(str(deleted).replace("Z", "+00:00")).timestamp() + OVERDUE_S:
        return True
    status = pod.get("status", {})
    found = {each["type"]: each for each in status.get("conditions", [])}
    evicted = found.get("DisruptionTarget", {}).get("reason") == "DeletionByTaintManager"
    states = [found.get(kind, {}).get("status") for kind in ("Ready", "ContainersReady")]
    placed = bool(pod.get("spec", {}).get("nodeName"))
    return evicted and (states == ["False", "True"] or (placed and not _started(pod)))


def _started(pod: Document) -> bool:
    """Whether a kubelet has taken up the pod."""
    return bool(pod.get("status", {}).get("startTime"))


def left_ray(pod: Document, nodes: RayNodes) -> bool:
    """Whether Ray has given up a pod that Kubernetes still takes for running.

    If only Ray's process has ended, its container ends too, and KubeRay replaces the pod by itself. A pod
    that is being deleted may still be saving.
    """
    status = pod.get("status", {})
    running = status.get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
    return running and status.get("podIP") in nodes.dead - nodes.alive


class LostPods:
    """Deletes the pods that have looked lost for a while, and at once those that no kubelet has taken up.

    Args:
        delete: deletes a pod's object at once. An error ends `look`, and the next one tries again.
        note: takes a line for the user.
        clock: a monotonic clock, in seconds.
        release: releases a pod; False if that is rejected. None: pods are only deleted.
    """

    def __init__(
        self,
        delete: Callable[[Document], Any],
        note: Callable[[str], Any],
        clock: Callable[[], float] = time.monotonic,
        release: Callable[[Document], bool] | None = None,
    ) -> None:
        self._delete, self._note, self._clock = delete, note, clock
        self._release = release or (lambda _: False)
        self._since: dict[str, float] = {}
        self._joined: set[str] = set()
        self._noted: set[str] = set()
        self._released: dict[str, tuple[float, frozenset[str]]] = {}

    @property
    def waiting(self) -> bool:
        """Whether a pod looked lost, or was released and not deleted, when they were looked at last."""
        return bool(self._since or self._released)

    def look(self, pods: Iterable[Document], nodes: RayNodes | None = None) -> None:
        """Look at the pods of a run, and at Ray's nodes where they are known, as they are now."""
        now, nodes = self._clock(), nodes or RayNodes()
        found = list(pods)
        released = {str(pod["metadata"]["uid"]): pod for pod in found if is_released(pod)}
        by_uid = {str(pod["metadata"]["uid"]): pod for pod in found if not is_released(pod)}
        # A new pod may have the address of one that was lost.
        alive = {uid for uid, pod in by_uid.items() if pod.get("status", {}).get("podIP") in nodes.alive}
        self._joined = (self._joined | alive) & by_uid.keys()
        lost = {
            uid: pod
            for uid, pod in by_uid.items()
            if is_lost(pod, time.time()) or (uid in self._joined and left_ray(pod, nodes))
        }
        self._since = {uid: self._since.get(uid, now) for uid in lost}
        for uid, pod in lost.items():
            if not _started(pod) or now - self._since[uid] >= CONFIRM_S:
                if is_lost(pod, time.time()) or not self._release(pod):
                    self._delete(pod)
                else:
                    self._released[uid] = (now, frozenset(by_uid))
                if uid not in self._noted:
                    self._noted.add(uid)
                    node = pod.get("spec", {}).get("nodeName", "its node")
                    self._note(f"{node} no longer answers; its pod {pod['metadata']['name']} is replaced")
        self._delete_released(released, by_uid, now)

    def _delete_released(
        self, released: Mapping[str, Document], others: Mapping[str, Document], now: float
    ) -> None:
        """Delete the released pods whose replacements are placed, and those that have waited long enough."""
        placed = all(pod.get("spec", {}).get("nodeName") for pod in others.values())
        self._released = {
            uid: seen for uid, seen in self._released.items() if uid in released or uid in others
        }
        # Another process may have released a pod: its replacement is then unknown.
        unknown = released.keys() - self._released.keys()
        self._released |= dict.fromkeys(unknown, (now, frozenset(others)))
        for uid, pod in released.items():
            since, before = self._released[uid]
            replaced = placed and bool(others.keys() - before)
            if replaced or is_lost(pod, time.time()) or now - since >= RELEASED_S:
                self._delete(pod)


def is_released(pod: Document) -> bool:
    """Whether KubeRay counts a pod no longer, because its node was lost."""
    return bool(pod["metadata"].get("labels", {}).get(CLUSTER_LABEL) == RELEASED)


def selector(cluster: str) -> str:
    """Selects the pods of a Ray cluster, and the released pods of all clusters."""
    return f"{CLUSTER_LABEL} in ({cluster},{RELEASED})"


def is_of(cluster: str, pod: Document) -> bool:
    """Whether a pod that the selector found is of this cluster, or was."""
    owners = pod["metadata"].get("ownerReferences", ())
    return not is_released(pod) or any(each["name"] == cluster for each in owners)


def release_patch(pod: Document) -> dict[str, Any]:
    """The merge patch that releases this very pod."""
    return {"metadata": {"uid": pod["metadata"]["uid"], "labels": {CLUSTER_LABEL: RELEASED}}}


def avoid_lost_nodes() -> dict[str, Any]:
    """The anti-affinity of a worker: not to the node of a released pod, of whichever cluster."""
    term = {
        "labelSelector": {"matchLabels": {CLUSTER_LABEL: RELEASED}},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}


def delete_options(pod: Document) -> dict[str, Any]:
    """The body of the request that deletes this very pod's object at once."""
    return {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": pod["metadata"]["uid"]},
    }
