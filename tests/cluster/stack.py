"""Apply the local stack to a real cluster for the duration of a block, and compare what exists on it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from trainfleet.rehearsal.engine.find import find_engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.rehearsal.on_cluster.api import Api, connected
from trainfleet.rehearsal.on_cluster.cloud import ClusterCloud
from trainfleet.rehearsal.on_cluster.cluster_target import Target, built_in
from trainfleet.rehearsal.on_cluster.inventory import Inventory, inventory
from trainfleet.rehearsal.report import Step
from trainfleet.rehearsal.steps.session import APPLY, Rehearsal, RehearsalOptions, rehearsal_session

ROOT = Path(__file__).resolve().parents[2]
NAMESPACES = ("training", "ray-certificates", "kuberay-system", "monitoring", "default", "kube-system")


@contextlib.contextmanager
def applied(cluster: str, stack: str = "local") -> Iterator[Rehearsal]:
    """Apply a stack. At the end of the block the cluster is as before."""
    with rehearsal_session(
        read_project(ROOT, stack), find_engine(), RehearsalOptions(cluster=built_in(cluster))
    ) as r:
        outcome = r.run(Step("apply", "apply"), *APPLY)
        assert outcome.ok, outcome.errors
        yield r


def api_of(r: Rehearsal) -> Api:
    """The API server of the cluster that a stack is applied to."""
    assert isinstance(r.cloud, ClusterCloud)
    return r.cloud.api


def everything(target: Target) -> Inventory:
    """All objects on a cluster."""
    with connected(target) as api:
        return inventory(api)


def unlike(before: Inventory, after: Inventory) -> list[str]:
    """The objects that were added or removed, outside of the namespaces that existed before."""
    spaces = {
        path.rpartition("/")[2]
        for path in before.objects
        if path.startswith("/api/v1/namespaces/") and path.count("/") == 4
    }

    def of_others(path: str) -> bool:
        parts = path.split("/")
        return "namespaces" in parts[:-1] and parts[parts.index("namespaces") + 1] in spaces

    changed = [
        *after.news(before),
        *(path for path in after.lost(before) if "/persistentvolumes/" not in path),
    ]
    return sorted([*(path for path in changed if not of_others(path)), *(made.path for made in after.ours)])
