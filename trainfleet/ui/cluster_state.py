"""The state of the clusters that `--stack` names: nodes of each pool, queues, what waits in them, and runs.

A cluster can be slow or out of reach, so it is read in a thread, and a page shows what was read last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.training.launch.find_run import list_cluster
from trainfleet.training.launch.platform_outputs import NamedPlatform, load_platform
from trainfleet.training.launch.remote.kubernetes import ApiError, Cluster
from trainfleet.training.launch.remote.pod_diagnostics import queued
from trainfleet.training.launch.remote.queue_state import GROUP, VERSIONS
from trainfleet.training.launch.remote.where import Where, explained, rejections_explained
from trainfleet.training.runs.listing import RunInfo
from trainfleet.ui.refreshed import Refreshed

READ_EVERY_S = 15.0
Result = TypeVar("Result")


@dataclass(frozen=True)
class PoolState:
    """A pool: what the platform declares, and how many nodes it has."""

    name: str
    machine: str
    least: int
    most: int
    usd_per_hour: float | None
    nodes: int | None = None
    ready: int | None = None


@dataclass(frozen=True)
class QuotaState:
    """A resource of a flavor in a queue: what is used, of which quota."""

    flavor: str
    resource: str
    used: str
    quota: str


@dataclass(frozen=True)
class QueueState:
    """A ClusterQueue of Kueue."""

    name: str
    pending: int
    admitted: int
    quotas: tuple[QuotaState, ...]


@dataclass(frozen=True)
class ClusterState:
    """What was read of a cluster. `problems` are the parts that could not be read, each with its reason."""

    source: str
    name: str = ""
    namespace: str = ""
    where: str = ""
    pools: tuple[PoolState, ...] = ()
    queues: tuple[QueueState, ...] = ()
    waiting: tuple[tuple[str, str], ...] = ()
    runs: tuple[RunInfo, ...] = ()
    problems: tuple[Problem, ...] = ()
    answered: bool = False
    asked: bool = True


@dataclass
class ClusterStates:
    """The clusters by the value of `--stack`, and those of outputs that were found, which are not asked."""

    stacks: list[str]
    found: list[str] = field(default_factory=list)
    states: list[Refreshed[ClusterState]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.states = [Refreshed(_reader(stack), ClusterState(stack), READ_EVERY_S) for stack in self.stacks]
        self.states += [
            Refreshed(partial(read_declared, file), ClusterState(file), READ_EVERY_S) for file in self.found
        ]

    def all(self, wait_s: float) -> list[tuple[ClusterState, float | None]]:
        """What was read last of each cluster, and how many seconds ago; None if nothing was read yet."""
        for each in self.states:
            each.refresh()
        return [(each.get(wait_s), each.age_s) for each in self.states]


def outputs_files(root: Path | None) -> list[str]:
    """The files with outputs in the folder of a project, by their usual names; no links."""
    names = [] if root is None else [*root.glob("outputs.json"), *root.glob("*.outputs.json")]
    return [str(file) for file in sorted(names) if file.is_file() and not file.is_symlink()]


def read_declared(file: str) -> ClusterState:
    """What outputs declare of a cluster. It is not asked, and no login is started."""
    try:
        return replace(_declared(file, load_platform(file)), asked=False)
    except TrainfleetError as error:
        problems = error.problems or (Problem(file, error.summary),)
        return ClusterState(file, problems=problems, asked=False)


def _reader(stack: str) -> Callable[[], ClusterState]:
    return lambda: read_cluster(stack)


def read_cluster(stack: str) -> ClusterState:
    """Read a cluster. What cannot be read is a problem, and the rest is shown."""
    try:
        platform = load_platform(stack)
    except TrainfleetError as error:
        return ClusterState(stack, problems=error.problems or (Problem(stack, error.summary),))
    state = _declared(stack, platform)
    try:
        cluster = Where(stack).connect()
    except TrainfleetError as error:
        return replace(state, problems=error.problems or (Problem(stack, error.summary),))
    state = replace(state, name=cluster.name)
    try:
        cluster.request("GET", "/version")
    except ApiError as error:
        if error.status in (0, 401):  # each further call would wait for as long
            return replace(state, problems=explained(error, cluster).problems)
    problems: list[Problem] = []
    nodes = _part(cluster, lambda: cluster.request("GET", "/api/v1/nodes").get("items", []), problems)
    queues = _part(cluster, lambda: _queues(cluster), problems)
    waiting = _part(cluster, lambda: _waiting(cluster, platform.outputs.queue), problems)
    runs = _part(cluster, lambda: list_cluster(cluster), problems)
    selectors = {pool.name: pool.node_selector for pool in platform.outputs.pools}
    return replace(
        state,
        pools=tuple(_counted(pool, selectors[pool.name], nodes) for pool in state.pools),
        queues=tuple(queues or ()),
        waiting=tuple(waiting or ()),
        runs=tuple(reversed(runs or [])),
        problems=tuple(dict.fromkeys(problems)),
        answered=True,
    )


def _declared(stack: str, platform: NamedPlatform) -> ClusterState:
    outputs = platform.outputs
    pools = [
        PoolState(
            pool.name,
            f"{pool.instance_type}, {pool.per_node} x {pool.accelerator}"
            if pool.accelerator
            else pool.instance_type,
            pool.min_nodes,
            pool.max_nodes,
            pool.usd_per_hour,
        )
        for pool in outputs.pools
    ]
    where = " ".join(filter(None, (outputs.cloud, outputs.region, outputs.environment)))
    return ClusterState(stack, outputs.name, outputs.namespace, where, tuple(pools))


def _part(cluster: Cluster, read: Callable[[], Result], problems: list[Problem]) -> Result | None:
    try:
        with rejections_explained(cluster):
            return read()
    except TrainfleetError as error:
        problems += error.problems or (Problem(cluster.name, error.summary),)
        return None


def _counted(pool: PoolState, selector: Mapping[str, str], nodes: list[dict[str, Any]] | None) -> PoolState:
    if nodes is None:
        return pool
    own = [each for each in nodes if selector.items() <= each.get("metadata", {}).get("labels", {}).items()]
    ready = [each for each in own if _is_ready(each)]
    return replace(pool, nodes=len(own), ready=len(ready))


def _is_ready(node: Mapping[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def _kueue(cluster: Cluster) -> str:
    """The newest version of Kueue's API that is served and read; empty without Kueue."""
    try:
        group = cluster.request("GET", GROUP)
    except ApiError as error:
        if error.status != 404:
            raise
        return ""
    served = [str(each.get("version")) for each in group.get("versions", [])]
    return next((each for each in VERSIONS if each in served), "")


def _queues(cluster: Cluster) -> list[QueueState]:
    version = _kueue(cluster)
    if not version:
        return []
    found = cluster.request("GET", f"{GROUP}/{version}/clusterqueues").get("items", [])
    return [_queue(each) for each in found]


def _queue(document: Mapping[str, Any]) -> QueueState:
    status = document.get("status", {})
    used = {
        (flavor.get("name"), each.get("name")): str(each.get("total", "0"))
        for flavor in status.get("flavorsUsage", [])
        for each in flavor.get("resources", [])
    }
    quotas = [
        QuotaState(
            str(flavor["name"]), str(each["name"]), used.get((flavor["name"], each["name"]), "0"), quota
        )
        for group in document.get("spec", {}).get("resourceGroups", [])
        for flavor in group.get("flavors", [])
        for each in flavor.get("resources", [])
        if (quota := str(each.get("nominalQuota", "0"))) != "0"
    ]
    name = str(document.get("metadata", {}).get("name", ""))
    pending, admitted = (int(status.get(key, 0)) for key in ("pendingWorkloads", "admittedWorkloads"))
    return QueueState(name, pending, admitted, tuple(quotas))


def _waiting(cluster: Cluster, queue: str) -> list[tuple[str, str]]:
    """What is not admitted in the namespace, and why."""
    version = _kueue(cluster)
    if not version:
        return []
    path = f"{GROUP}/{version}/namespaces/{cluster.namespace}/workloads"
    found = []
    for each in cluster.request("GET", path).get("items", []):
        conditions = {
            str(one.get("type")): one.get("status") == "True"
            for one in each.get("status", {}).get("conditions", [])
        }
        if not conditions.get("Admitted") and not conditions.get("Finished"):
            owners = each.get("metadata", {}).get("ownerReferences", [])
            name = owners[0].get("name") if owners else each.get("metadata", {}).get("name")
            found.append((str(name), queued(each, str(each.get("spec", {}).get("queueName", queue)))))
    return found
