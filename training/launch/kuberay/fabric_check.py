"""Runs a fabric check on a cluster: creates its two pods, waits for them, reads their logs, deletes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.training.launch.kuberay.checks import explain
from trainfleet.training.launch.kuberay.fabric_pods import (
    CONTAINER,
    MEASURE_S,
    FabricCheck,
    check_objects,
)
from trainfleet.training.launch.remote.fabric_use import NEEDS_A_PLUGIN, fabric_use
from trainfleet.training.launch.remote.kubernetes import ApiError, Cluster, retry_unreachable
from trainfleet.training.launch.remote.nccl_log import read_nccl_log
from trainfleet.training.launch.remote.pod_diagnostics import PERMANENT_REASONS, Document, pod_wait
from trainfleet.training.runtime.all_reduce import Timing, read_timings

POLL_S = 2.0
IMAGE_TIMEOUT_S = 90.0
"""How long an image may fail to be pulled: a registry may be busy, but a wrong name stays wrong."""
CLEAN_UP_S = 60.0
FASTER = "compare it with the machine's documentation; is GPUDirect RDMA used, and are all adapters up?"
Notify = Callable[[str], Any]


@dataclass(frozen=True)
class FabricReport:
    """What a check found. `problems` is empty if the pool's fabric was used."""

    pool: str
    backend: str
    required: str
    """The contract's NCCL_NET; empty with gloo."""
    networks: tuple[str, ...]
    versions: tuple[str, ...]
    """Of NCCL."""
    gpu_direct: bool | None
    """Whether every channel between the nodes uses GPUDirect RDMA; None if the log does not show it."""
    timings: tuple[Timing, ...]
    problems: tuple[Problem, ...]

    @property
    def bus_bandwidth(self) -> float | None:
        """GB/s: the highest of all sizes."""
        return max((each.bus_bandwidth for each in self.timings), default=None)

    def document(self) -> dict[str, Any]:
        """For `--json`."""
        sizes = [
            {
                "bytes": each.size,
                "seconds": each.seconds,
                "algorithm_bandwidth": each.algorithm_bandwidth,
                "bus_bandwidth": each.bus_bandwidth,
            }
            for each in self.timings
        ]
        return {
            "pool": self.pool,
            "backend": self.backend,
            "passed": not self.problems,
            "required": self.required or None,
            "networks": list(self.networks),
            "nccl": list(self.versions),
            "gpu_direct_rdma": self.gpu_direct,
            "bus_bandwidth": self.bus_bandwidth,
            "sizes": sizes,
            "problems": [{"where": each.where, "what": each.what, "fix": each.fix} for each in self.problems],
        }


def check_fabric(
    cluster: Cluster, check: FabricCheck, min_bus_bandwidth: float | None, notify: Notify
) -> FabricReport:
    """Run the check. Its objects are deleted however it ends.

    Raises:
        InputError: the cluster rejects the pods, or they cannot start.
        TrainfleetError: the pods did not get their nodes in time, or were lost.
    """
    try:
        try:
            for document in check_objects(check):
                cluster.create(document)
        except ApiError as error:
            raise explain(error, cluster) from error
        ended = _wait(cluster, check, notify)
        logs = {name: _log(cluster, name) for name in check.pods}
    finally:
        _clean_up(cluster, check, notify)
    return evaluate(check, ended, logs, min_bus_bandwidth)


def evaluate(
    check: FabricCheck,
    pods: Mapping[str, Document],
    logs: Mapping[str, list[str]],
    min_bus_bandwidth: float | None = None,
) -> FabricReport:
    """What the logs show. Pure.

    Args:
        check: what was run.
        pods: the ended pods by name.
        logs: the lines of each pod.
        min_bus_bandwidth: GB/s that at least one size must reach.
    """
    lines = [line for name in check.pods for line in logs.get(name, [])]
    log, timings = read_nccl_log(lines), tuple(read_timings(lines))
    where, required, problems = f"pool {check.pool.name}", "", []
    if check.backend.gpus:
        required = check.pool.environment["NCCL_NET"]
        use = fabric_use(log, required, check.processes)
        if not use.used:
            problems.append(Problem(where, use.reason, use.fix))
    failed = [name for name in check.pods if _phase(pods.get(name)) != "Succeeded"]
    if failed or not timings:
        problems += [_failure(name, logs.get(name, [])) for name in failed or check.pods[:1]]
    best = max((each.bus_bandwidth for each in timings), default=0.0)
    if min_bus_bandwidth is not None and timings and best < min_bus_bandwidth:
        what = f"the bus bandwidth is {best:.1f} GB/s, less than {min_bus_bandwidth:g} GB/s"
        problems.append(Problem(where, what, FASTER))
    return FabricReport(
        pool=check.pool.name,
        backend=check.backend.name,
        required=required,
        networks=tuple(sorted({name for one in log.processes.values() for name in one.networks})),
        versions=tuple(sorted(log.versions)),
        gpu_direct=log.gpu_direct,
        timings=timings,
        problems=tuple(problems),
    )


def _failure(name: str, lines: list[str]) -> Problem:
    errors = [line for line in lines if line.startswith("error:") or "NCCL WARN" in line]
    last = (errors or [line for line in lines if line.strip()] or ["it printed nothing"])[-1]
    return Problem(f"pod {name}", f"did not complete its all-reduces: {last.strip()}", NEEDS_A_PLUGIN)


def _wait(cluster: Cluster, check: FabricCheck, notify: Notify) -> dict[str, Document]:
    """The pods, once both have ended or one has failed."""
    start, shown, running_since = time.monotonic(), "", 0.0
    failing_since: dict[str, float] = {}
    while True:
        pods = {name: _pod(cluster, name, notify) for name in check.pods}
        phases = [_phase(pod) for pod in pods.values()]
        if "Failed" in phases or all(phase == "Succeeded" for phase in phases):
            return pods
        now = time.monotonic()
        waits = {name: pod_wait(pod) for name, pod in pods.items()}
        _reject_hopeless(pods, failing_since, now)
        waiting = [f"{name}: {wait.text}" for name, wait in waits.items() if wait.text]
        started = not waiting and "Pending" not in phases and "" not in phases
        if started:
            running_since = running_since or now
        text = "both pods run; measuring" if started else "; ".join(waiting) or "creating the pods"
        if text != shown:
            notify(text)
            shown = text
        if not running_since and now - start > check.run.within_s:
            raise TrainfleetError(
                f"the pods did not get their nodes within {check.run.within_s / 60:g} minutes",
                [Problem(f"pool {check.pool.name}", text, "--within with a longer time")],
            )
        if running_since and now - running_since > MEASURE_S:
            notify(f"the all-reduces did not end within {MEASURE_S / 60:g} minutes")
            return pods
        time.sleep(POLL_S)


def _pod(cluster: Cluster, name: str, notify: Notify) -> Document:
    try:
        pod = retry_unreachable(partial(cluster.get, "Pod", name), notify)
    except ApiError as error:
        raise explain(error, cluster) from error
    if pod is None:
        what = "was deleted while it ran: its node was lost, or someone deleted it"
        raise TrainfleetError("the check lost a pod", [Problem(f"pod {name}", what, "run the check again")])
    return pod


def _reject_hopeless(pods: dict[str, Document], failing_since: dict[str, float], now: float) -> None:
    """End a check whose pods cannot start."""
    for name, pod in pods.items():
        wait = pod_wait(pod)
        if wait.kind not in ("image", "config"):
            failing_since.pop(name, None)
            continue
        statuses = str(pod.get("status", {}).get("containerStatuses", ""))
        permanent = any(reason in statuses for reason in PERMANENT_REASONS)
        if permanent or now - failing_since.setdefault(name, now) > IMAGE_TIMEOUT_S:
            fix = "--image REF; the cluster's nodes must be able to pull it" if wait.kind == "image" else ""
            raise InputError("the check's pods cannot start", [Problem(f"pod {name}", wait.text, fix)])


def _log(cluster: Cluster, name: str) -> list[str]:
    """The lines that a pod printed; none if it has no log."""
    try:
        return [text for _, text in cluster.log(name, CONTAINER, follow=False)]
    except ApiError:
        return []


def _clean_up(cluster: Cluster, check: FabricCheck, notify: Notify) -> None:
    left = []
    for kind, name in [*(("Pod", each) for each in check.pods), ("Service", check.name)]:
        try:
            retry_unreachable(partial(cluster.delete, kind, name), notify, retry_for_s=CLEAN_UP_S)
        except ApiError as error:
            left.append(f"{kind.lower()}/{name}")
            notify(f"cannot delete {kind.lower()} {name}: {error.message}")
    if left:
        notify(f"delete what is left: kubectl -n {cluster.namespace} delete {' '.join(left)}")


def _phase(pod: Document | None) -> str:
    return str((pod or {}).get("status", {}).get("phase") or "")
