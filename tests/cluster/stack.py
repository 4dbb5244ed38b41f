"""The local stack, applied to a real cluster for as long as a block runs; and a way to ask its API server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from rehearsal.engine import find_engine
from rehearsal.on_cluster.api import Api
from rehearsal.on_cluster.cloud import ClusterCloud
from rehearsal.on_cluster.target import built_in
from rehearsal.report import Step
from rehearsal.sandbox import read_project
from rehearsal.stage import APPLY, Rehearsal, Wishes, staged

ROOT = Path(__file__).resolve().parents[2]
NAMESPACES = ("training", "kuberay-system", "monitoring", "default", "kube-system")


@contextlib.contextmanager
def applied(cluster: str, stack: str = "local") -> Iterator[Rehearsal]:
    """A stack applied; at the end the cluster is as before."""
    with staged(read_project(ROOT, stack), find_engine(), Wishes(cluster=built_in(cluster))) as r:
        outcome = r.run(Step("apply", "apply"), *APPLY)
        assert outcome.ok, outcome.errors
        yield r


def api_of(r: Rehearsal) -> Api:
    """The API server of the cluster that a stack is applied to."""
    assert isinstance(r.cloud, ClusterCloud)
    return r.cloud.api
