"""The runs in a cluster, for `trainfleet runs`.

They may have been launched from other machines: all that is known of a run is its RayJob and its ConfigMap.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.suggestions import did_you_mean
from trainfleet.training.launch.kuberay.checks import ENDED, state_of
from trainfleet.training.launch.kuberay.own_job import delete_job, launch_of
from trainfleet.training.launch.kuberay.pod_log import CONTAINER
from trainfleet.training.launch.kuberay.pods import LAUNCH_LABEL
from trainfleet.training.launch.kuberay.run_spec import job_name
from trainfleet.training.launch.kuberay.stop_request import ask_ranks
from trainfleet.training.launch.remote import pod_diagnostics
from trainfleet.training.launch.remote.kubernetes import (
    RETRY_FOR_S,
    ApiError,
    Cluster,
    Result,
    retry_unreachable,
)
from trainfleet.training.launch.remote.log_stream import Line, Once, parse
from trainfleet.training.launch.remote.ray_job import JOB_FILE, RECIPE_FILE, RayJob
from trainfleet.training.runs.listing import RunInfo
from trainfleet.training.runtime.code_archive import CODE
from trainfleet.training.runtime.events import JOB

SELECTOR = "app.kubernetes.io/managed-by=trainfleet"
POLL_S = 1.0
STATES = {
    "": "waiting for KubeRay",
    "Initializing": "setting up",
    "Running": "running",
    "Complete": "finished",
    "Failed": "failed",
    "Suspended": "queued",
    "Suspending": "being requeued",
    "Retrying": "restarting",
    "ValidationFailed": "rejected by KubeRay",
    "Waiting": "waiting",
}


@dataclass(frozen=True)
class ClusterRun:
    """A run in a cluster."""

    name: str
    job: str
    state: str
    since: str
    storage: str
    launch: str
    ray_cluster: str
    shared: bool
    """Whether that Ray cluster outlives the run."""
    message: str
    uid: str
    """Of the RayJob."""
    owner: str = ""

    def info(self) -> RunInfo:
        """It as `trainfleet runs list` shows it."""
        failed = self.state in ("failed", "rejected by KubeRay")
        return RunInfo(
            name=self.name,
            home=self.storage,
            state=self.state,
            since=self.since,
            message=self.message if failed else "",
            launch={"on": "kuberay", "owner": self.owner, "place": {"job": self.job}},
            extra={"job": self.job, "ray_cluster": self.ray_cluster},
        )


def list_runs(cluster: Cluster) -> list[ClusterRun]:
    """The runs of a namespace, oldest first."""
    return sorted(
        (_read(each) for each in cluster.items("RayJob", SELECTOR)), key=lambda run: (run.since, run.name)
    )


def find(cluster: Cluster, name: str) -> ClusterRun:
    """One run by its name.

    Raises:
        InputError: there is no run of this name.
    """
    job = cluster.get("RayJob", job_name(name))
    if job is None:
        known = [each.name for each in list_runs(cluster)]
        fix = did_you_mean(name, known) if known else "there are none"
        raise InputError(
            "no such run in the cluster",
            [Problem(f"{cluster.name} {cluster.namespace}", f"has no run `{name}`", fix)],
        )
    return _read(job)


def _read(job: dict[str, Any]) -> ClusterRun:
    metadata, status = job["metadata"], job.get("status", {})
    state = "queued" if job.get("spec", {}).get("suspend") else STATES.get(state_of(job), state_of(job))
    selected = str(job.get("spec", {}).get("clusterSelector", {}).get("ray.io/cluster", ""))
    annotations = metadata.get("annotations", {})
    return ClusterRun(
        name=metadata.get("labels", {}).get("trainfleet.io/run", metadata["name"]),
        job=metadata["name"],
        state=state,
        since=metadata.get("creationTimestamp", ""),
        storage=annotations.get("trainfleet.io/storage", ""),
        launch=launch_of(job),
        ray_cluster=str(status.get("rayClusterName") or selected),
        shared=bool(selected),
        message=str(status.get("message") or "").strip(),
        uid=str(metadata["uid"]),
        owner=annotations.get("trainfleet.io/owner", ""),
    )


def _current(cluster: Cluster, run: ClusterRun) -> dict[str, Any] | None:
    """The RayJob as it is now; None if it is gone, or if one of another launch has replaced it."""
    job = cluster.get("RayJob", run.job)
    return job if job is not None and job["metadata"]["uid"] == run.uid else None


def recipe_of(cluster: Cluster, run: ClusterRun) -> str:
    """The recipe of a run, as YAML.

    Raises:
        TrainfleetError: its ConfigMap is gone.
    """
    config = cluster.get("ConfigMap", run.job)
    if config is None or RECIPE_FILE not in config.get("data", {}):
        raise TrainfleetError(
            "the run's recipe is no longer in the cluster",
            [Problem(run.job, "has no ConfigMap", "launch the recipe again")],
        )
    return str(config["data"][RECIPE_FILE])


def code_of(cluster: Cluster, run: ClusterRun) -> str | None:
    """The URL of a run's code, if it was launched with code."""
    return _variables(cluster, run).get(CODE)


def _variables(cluster: Cluster, run: ClusterRun) -> dict[str, str]:
    """What a launch sets for its ranks; empty if its ConfigMap is gone."""
    config = cluster.get("ConfigMap", run.job) or {}
    text = config.get("data", {}).get(JOB_FILE)
    return dict(RayJob.model_validate_json(text).env) if text else {}


def lines(cluster: Cluster, run: ClusterRun, *, follow: bool) -> Iterator[Line]:
    """A run's log lines; with `follow`, those until its end too, also while the cluster does not answer.

    Raises:
        ApiError: the cluster rejects a call, or with `follow` does not answer for RETRY_FOR_S.
        TrainfleetError: it has printed nothing yet.
    """
    once, last, any_line = Once(), "", False
    away_since: float | None = None
    while True:
        try:
            job = _current(cluster, run)
            ended = job is None or state_of(job) in ENDED
            for when, text in _printed(cluster, run, follow=follow and not ended):
                away_since, line = None, parse(text)
                if when > last and once(line):
                    last, any_line = when, True
                    yield line
        except ApiError as error:
            now = time.monotonic()
            if not follow or not error.passes or now - (away_since or now) > RETRY_FOR_S:
                raise
            if away_since is None:
                text = f"the cluster does not answer ({error.message}); the run continues there; retrying"
                yield {"kind": "note", "text": text}
            away_since = away_since or now
            time.sleep(POLL_S)
            continue
        away_since = None
        if not follow or ended:
            if not any_line:
                raise TrainfleetError(
                    "the run has printed nothing yet",
                    [Problem(run.name, f"is {run.state}", "trainfleet runs attach shows why it waits")],
                )
            return
        time.sleep(POLL_S)


def _printed(cluster: Cluster, run: ClusterRun, *, follow: bool) -> Iterator[tuple[str, str]]:
    """The lines of the run's submitters, with their times; with `follow`, those until the newest one ends."""
    pods = sorted(_submitters(cluster, run), key=lambda pod: str(pod["metadata"].get("creationTimestamp")))
    for pod in pods:
        try:
            yield from cluster.log(pod["metadata"]["name"], CONTAINER, follow=follow and pod is pods[-1])
        except ApiError as error:
            if error.status not in (0, 400, 404):
                raise


def _submitters(cluster: Cluster, run: ClusterRun) -> list[dict[str, Any]]:
    return cluster.items("Pod", f"{LAUNCH_LABEL}={run.launch}")


def stop(
    cluster: Cluster,
    run: ClusterRun,
    ask_through_storage: Callable[[], bool],
    *,
    now: bool,
    within_s: float,
    report: Callable[[str], Any],
) -> str:
    """Stop a run after a last checkpoint, or at once with `now` or if it saves none, and delete it.

    Args:
        ask_through_storage: asks the run to save if no pod could be asked, as behind a proxy that allows no
            websockets; whether it could.

    Returns:
        How it ended.
    """

    def persistently(call: Callable[[], Result]) -> Result:
        return retry_unreachable(call, lambda text: report(f"is still to be stopped: {text}"))

    how = "had already ended" if run.state in ("finished", "failed") else "ended at once"
    if not now and run.state == "running" and not persistently(lambda: _variables(cluster, run)).get(JOB):
        pods = persistently(lambda: _ray_pods(cluster, run))
        if ask_ranks(cluster, pods, run.launch) or ask_through_storage():
            report("is asked to save and end")
            deadline = time.monotonic() + within_s
            saved = persistently(lambda: _has_ended(cluster, run))
            while not saved and time.monotonic() < deadline:
                time.sleep(POLL_S)
                saved = persistently(lambda: _has_ended(cluster, run))
            late = f"did not end within {within_s:.0f} s, and was ended at its newest checkpoint"
            how = "saved and ended" if saved else late
    persistently(lambda: delete_job(cluster, run.job, run.uid))
    return how


def _ray_pods(cluster: Cluster, run: ClusterRun) -> list[dict[str, Any]]:
    return cluster.items("Pod", f"ray.io/cluster={run.ray_cluster}") if run.ray_cluster else []


def _has_ended(cluster: Cluster, run: ClusterRun) -> bool:
    job = _current(cluster, run)
    ended = ("SUCCEEDED", "FAILED", "STOPPED")
    return job is None or state_of(job) in ENDED or job.get("status", {}).get("jobStatus") in ended


def head_of(cluster: Cluster, name: str | None) -> tuple[str, str]:
    """The head pod and the Ray cluster of a run or of a long-lived cluster; without a name, the only one.

    Raises:
        InputError: there is none, or there are several and none was named.
    """
    heads = {
        pod["metadata"]["labels"].get("ray.io/cluster", ""): pod
        for pod in cluster.items("Pod", "ray.io/node-type=head")
    }
    selected = name or ""
    if name is not None and name not in heads:
        job = cluster.get("RayJob", job_name(name))
        selected = _read(job).ray_cluster if job is not None else name
    if not name and len(heads) == 1:
        selected = next(iter(heads))
    if selected not in heads:
        known = ", ".join(sorted(heads)) or "none"
        what = (
            f"`{name}` has no Ray head"
            if name
            else "has several Ray clusters"
            if heads
            else "has no Ray cluster"
        )
        raise InputError(
            "there is no dashboard",
            [Problem(f"{cluster.name} {cluster.namespace}", what, f"Ray clusters: {known}")],
        )
    pod = heads[selected]
    if not pod_diagnostics.is_ready(pod):
        raise InputError(
            "there is no dashboard",
            [
                Problem(
                    selected,
                    pod_diagnostics.pod_wait(pod).text or "the head is not ready yet",
                    "try again in a moment",
                )
            ],
        )
    return str(pod["metadata"]["name"]), selected
