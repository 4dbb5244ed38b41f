"""The runs that a cluster holds, for `trainfleet runs` and `trainfleet dashboard`: found by their labels,
read, asked to stop.

Easy to get wrong: a run belongs to whoever launched it from wherever; all that is known of it here is what
lies in the cluster, its RayJob
and the files beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.suggestions import did_you_mean
from trainfleet.training.launch.kuberay import pod_diagnostics
from trainfleet.training.launch.kuberay.checks import ENDED, state_of
from trainfleet.training.launch.kuberay.client import ApiError, Cluster
from trainfleet.training.launch.kuberay.follow import ask_ranks
from trainfleet.training.launch.kuberay.manifest import RECIPE_FILE
from trainfleet.training.launch.kuberay.pods import LAUNCH_LABEL
from trainfleet.training.launch.kuberay.run_spec import job_name
from trainfleet.training.launch.remote.log_stream import CONTAINER, Line, Once, parse

SELECTOR = "app.kubernetes.io/managed-by=trainfleet"
LOOK_EVERY_S = 1.0
STATES = {
    "": "waiting for KubeRay",
    "Initializing": "setting up",
    "Running": "running",
    "Complete": "finished",
    "Failed": "failed",
    "Suspended": "queued",
    "Suspending": "being put back into the queue",
    "Retrying": "starting again",
    "ValidationFailed": "refused by KubeRay",
    "Waiting": "waiting",
}


@dataclass(frozen=True)
class Held:
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

    def document(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "run": self.name,
            "state": self.state,
            "since": self.since,
            "storage": self.storage,
            "job": self.job,
            "ray_cluster": self.ray_cluster,
            "message": self.message,
        }

    def age_s(self) -> float:
        """Seconds since it was handed over."""
        return (datetime.now(UTC) - datetime.fromisoformat(self.since.replace("Z", "+00:00"))).total_seconds()


def held(cluster: Cluster) -> list[Held]:
    """The runs of a namespace, oldest first."""
    return sorted(
        (_held(each) for each in cluster.items("RayJob", SELECTOR)), key=lambda run: (run.since, run.name)
    )


def find(cluster: Cluster, name: str) -> Held:
    """One run by its name.

    Raises:
        InputError: there is none of this name.
    """
    job = cluster.get("RayJob", job_name(name))
    if job is None:
        known = [each.name for each in held(cluster)]
        fix = did_you_mean(name, known) if known else "it holds none at all"
        raise InputError(
            "no such run in the cluster",
            [Problem(f"{cluster.name} {cluster.namespace}", f"holds no run `{name}`", fix)],
        )
    return _held(job)


def _held(job: dict[str, Any]) -> Held:
    metadata, status = job["metadata"], job.get("status", {})
    state = "queued" if job.get("spec", {}).get("suspend") else STATES.get(state_of(job), state_of(job))
    selected = str(job.get("spec", {}).get("clusterSelector", {}).get("ray.io/cluster", ""))
    annotations = metadata.get("annotations", {})
    return Held(
        name=metadata.get("labels", {}).get("trainfleet.io/run", metadata["name"]),
        job=metadata["name"],
        state=state,
        since=metadata.get("creationTimestamp", ""),
        storage=annotations.get("trainfleet.io/storage", ""),
        launch=annotations.get("trainfleet.io/launch", ""),
        ray_cluster=str(status.get("rayClusterName") or selected),
        shared=bool(selected),
        message=str(status.get("message") or "").strip(),
    )


def recipe_of(cluster: Cluster, run: Held) -> str:
    """The recipe of a run, as YAML.

    Raises:
        TrainfleetError: its files are gone.
    """
    config = cluster.get("ConfigMap", run.job)
    if config is None or RECIPE_FILE not in config.get("data", {}):
        raise TrainfleetError(
            "the run's recipe is not in the cluster any more",
            [Problem(run.job, "has lost its ConfigMap", "launch the recipe again")],
        )
    return str(config["data"][RECIPE_FILE])


def lines(cluster: Cluster, run: Held, *, follow: bool) -> Iterator[Line]:
    """What a run has said, and with `follow` what it says until its end.

    Raises:
        TrainfleetError: it has said nothing yet.
    """
    once, last, heard_any = Once(), "", False
    while True:
        job = cluster.get("RayJob", run.job)
        over = job is None or state_of(job) in ENDED
        pods = sorted(
            _submitters(cluster, run), key=lambda pod: str(pod["metadata"].get("creationTimestamp"))
        )
        for pod in pods:
            try:
                for when, text in cluster.log(
                    pod["metadata"]["name"], CONTAINER, follow=follow and not over and pod is pods[-1]
                ):
                    line = parse(text)
                    if when > last and once(line):
                        last, heard_any = when, True
                        yield line
            except ApiError as error:
                if error.status not in (0, 400, 404):
                    raise
        if not follow or over:
            if not heard_any:
                raise TrainfleetError(
                    "the run has said nothing yet",
                    [Problem(run.name, f"is {run.state}", "trainfleet runs attach says why it waits")],
                )
            return
        time.sleep(LOOK_EVERY_S)


def _submitters(cluster: Cluster, run: Held) -> list[dict[str, Any]]:
    return cluster.items("Pod", f"{LAUNCH_LABEL}={run.launch}")


def stop(cluster: Cluster, run: Held, *, now: bool, within_s: float, say: Callable[[str], Any]) -> str:
    """End a run: it saves first, unless `now`; then what it held is taken away. Returns how it ended."""
    how = "was over already" if run.state in ("finished", "failed") else "ended at once"
    if not now and run.state == "running":
        pods = cluster.items("Pod", f"ray.io/cluster={run.ray_cluster}") if run.ray_cluster else []
        if ask_ranks(cluster, pods, run.launch):
            say("asked to save and end")
            how = (
                "saved and ended"
                if _await_end(cluster, run, within_s)
                else f"did not end within {within_s:.0f} s, and was ended with its newest checkpoint"
            )
    cluster.delete("RayJob", run.job)
    return how


def _await_end(cluster: Cluster, run: Held, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        job = cluster.get("RayJob", run.job)
        if (
            job is None
            or state_of(job) in ENDED
            or str(job.get("status", {}).get("jobStatus")) in ("SUCCEEDED", "FAILED", "STOPPED")
        ):
            return True
        time.sleep(LOOK_EVERY_S)
    return False


def head_of(cluster: Cluster, name: str | None) -> tuple[str, str]:
    """The head pod and the Ray cluster whose dashboard is wanted: a run's, a long-lived cluster's, or the
    only one there is.

    Raises:
        InputError: none, or several and none was named.
    """
    heads = {
        pod["metadata"]["labels"].get("ray.io/cluster", ""): pod
        for pod in cluster.items("Pod", "ray.io/node-type=head")
    }
    wanted = name or ""
    if name is not None and name not in heads:
        job = cluster.get("RayJob", job_name(name))
        wanted = _held(job).ray_cluster if job is not None else name
    if not name and len(heads) == 1:
        wanted = next(iter(heads))
    if wanted not in heads:
        known = ", ".join(sorted(heads)) or "none is there"
        what = (
            f"`{name}` has no Ray head now"
            if name
            else "several Ray clusters are there"
            if heads
            else "there is no Ray cluster"
        )
        raise InputError(
            "no dashboard to show",
            [Problem(f"{cluster.name} {cluster.namespace}", what, f"Ray clusters: {known}")],
        )
    pod = heads[wanted]
    if not pod_diagnostics.is_ready(pod):
        raise InputError(
            "no dashboard to show",
            [
                Problem(
                    wanted,
                    pod_diagnostics.pod_wait(pod).text or "the head is not ready yet",
                    "try again in a moment",
                )
            ],
        )
    return str(pod["metadata"]["name"]), wanted
