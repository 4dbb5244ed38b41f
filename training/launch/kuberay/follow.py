"""The process behind `--on kuberay`: make the run's objects, say why it is not running yet, hand on what it
says, take it down at its end.

Started by `trainfleet.training.launch.supervise` like any run's process, so that it is watched, asked to stop
and ended in the same way. Easy to get
wrong: what happens to this process must not happen to the run, unless the user asked for it: only a stop, a
failed start and a run's own
end take objects away; SIGKILL and a lost connection leave the run alone.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Any

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.training.launch.kuberay import pod_diagnostics
from trainfleet.training.launch.kuberay.checks import ENDED, in_words, state_of
from trainfleet.training.launch.kuberay.client import ApiError, Cluster, connect, patiently
from trainfleet.training.launch.kuberay.manifest import stop_file
from trainfleet.training.launch.kuberay.pods import LAUNCH_LABEL
from trainfleet.training.launch.remote.follower import Stopped, follow
from trainfleet.training.launch.remote.log_stream import RunLog
from trainfleet.training.runtime.events import STOP_FILE, Sink
from trainfleet.training.runtime.progress import duration

LOOK_EVERY_S = 1.0
TICK_S = 0.1
UNSEEN_S = 60.0
"""After this long without a status there is nobody who works on RayJobs."""
IMAGE_TRIES_S = 90.0
"""How long an image may fail to be pulled: a registry may be busy, a name does not become right."""
LAST_LINES_S = 15.0
"""How long the end of the log is waited for once KubeRay calls the run ended."""


class Follower:
    """One run on one cluster, from its making to its end."""

    def __init__(self, spec: dict[str, Any], cluster: Cluster, sink: Sink) -> None:
        self.spec, self.cluster, self.sink = spec, cluster, sink
        self.job: str = spec["job"]
        self.log = RunLog(cluster, self.job)
        self.ray_cluster: str = spec["cluster"] or ""
        self.started = self.stepped = self.asked = False
        self.result: dict[str, Any] | None = None
        self.broken: list[str] = []
        self._noted = ""
        self._since: dict[str, float] = {}
        self._pods: dict[str, int] = {}
        self._began = time.monotonic()

    def run(self) -> int:
        """Follow the run to its end; the exit code."""
        if not self.spec["attach"]:
            self._make()
        if self.spec["detach"]:
            self._await_operator()
            self.sink.send("detached", **self.spec["detached"])
            return 0
        self.note(f"handed over as RayJob {self.cluster.namespace}/{self.job} in {self.cluster.name}")
        try:
            return self._follow()
        except _SavedError:
            self._take_down()
            return 0  # the run said how it ended
        except ApiError as error:  # this machine lost sight of the run, which is no reason to end it
            fix = "the run goes on there; `trainfleet runs attach` comes back to it"
            raise TrainfleetError(
                "the cluster does not answer any more", [Problem(self.cluster.name, error.message, fix)]
            ) from error
        except (Stopped, TrainfleetError):
            self._take_down()
            raise

    def note(self, text: str) -> None:
        """A line that the user sees, once."""
        if text and text != self._noted:
            self._noted = text
            self.sink.send("note", text=text)

    def _make(self) -> None:
        """Make the objects; what an ended run of this name left goes first."""
        there = self.cluster.get("RayJob", self.job)
        if there is not None:
            if state_of(there) not in ENDED:
                raise InputError(
                    "this run is going on already",
                    [Problem(self.job, "another launch started it", "trainfleet runs attach")],
                )
            self.cluster.delete("RayJob", self.job)
            self._gone()
        owner: dict[str, Any] | None = None
        try:
            for document in self.spec["objects"]:
                if document["kind"] == "RayJob":
                    made = self.cluster.create(document)
                    owner = {
                        "apiVersion": made["apiVersion"],
                        "kind": "RayJob",
                        "name": self.job,
                        "uid": made["metadata"]["uid"],
                    }
                elif document["kind"] == "RayCluster":
                    if self.cluster.get("RayCluster", document["metadata"]["name"]) is None:
                        self.cluster.apply(document)
                else:
                    metadata = {**document["metadata"], **({"ownerReferences": [owner]} if owner else {})}
                    self.cluster.apply({**document, "metadata": metadata})
        except ApiError as error:
            if owner is not None:
                self._take_down()
            raise in_words(error, self.cluster) from error

    def _gone(self) -> None:
        deadline = time.monotonic() + 60
        while self.cluster.get("RayJob", self.job) is not None:
            if time.monotonic() > deadline:
                raise TrainfleetError(
                    f"an earlier run's RayJob {self.job} does not go away; is KubeRay's operator running?"
                )
            time.sleep(0.5)

    def _await_operator(self) -> None:
        """Wait until somebody works on the run, so that a run which nobody would ever start is not left
        behind.
        """
        deadline = time.monotonic() + UNSEEN_S
        while not self._seen(self.cluster.get("RayJob", self.job) or {}):
            if time.monotonic() > deadline:
                self._take_down()
                raise self._nobody()
            time.sleep(LOOK_EVERY_S)

    @staticmethod
    def _seen(job: dict[str, Any]) -> bool:
        return bool(state_of(job)) or bool(job.get("spec", {}).get("suspend"))

    def _nobody(self) -> TrainfleetError:
        fix = "kubectl get pods -A -l app.kubernetes.io/name=kuberay-operator; it must watch this namespace"
        return TrainfleetError(
            "KubeRay's operator takes no notice of the run",
            [Problem(f"{self.cluster.namespace}/{self.job}", "has no status", fix)],
        )

    def _follow(self) -> int:
        next_look = 0.0
        while True:
            self._hear()
            if self._stop_asked():
                self._ask_to_stop()
            if self.result is not None and self.log.ended:
                return self._end({})
            if time.monotonic() >= next_look:
                job = patiently(lambda: self.cluster.get("RayJob", self.job), self.note)
                if job is None:
                    raise TrainfleetError(
                        "the run was taken away",
                        [
                            Problem(
                                self.job,
                                "is no longer in the cluster; somebody deleted it",
                                "launch it again",
                            )
                        ],
                    )
                if state_of(job) in ENDED:
                    return self._end(job)
                self._look(job)
                next_look = time.monotonic() + LOOK_EVERY_S * (3 if self.stepped else 1)
            time.sleep(TICK_S)

    def _hear(self) -> None:
        for line in self.log.drain():
            event = line if isinstance(line, dict) else None
            if event is None:
                sys.stdout.write(f"{line}\n")
                sys.stdout.flush()
                continue
            match event["kind"]:
                case "attempt":
                    if self.started:
                        self.note("the head was lost; the run starts again from its newest checkpoint")
                    self.started = True
                    continue
                case "submitter":
                    sys.stdout.write(f"{event['text']}\n")
                    continue
                case "step":
                    self.stepped = True
                case "result":
                    self.result = event
                case "crash":
                    self.broken.append(str(event.get("error")))
                case "error":
                    self._take_down()  # before it is told, since telling ends this process
            self.sink.send(event["kind"], **{key: value for key, value in event.items() if key != "kind"})

    def _look(self, job: dict[str, Any]) -> None:
        """See how far the run is, and say what holds it up."""
        status = job.get("status", {})
        self.ray_cluster = self.spec["cluster"] or status.get("rayClusterName") or ""
        pods = self._ray_pods()
        submitters = self._submitters()
        self.log.look_at(submitters)
        if self.stepped:
            self._watch_losses(pods)
            return
        waited = time.monotonic() - self._began
        if not self._seen(job) and waited > UNSEEN_S:
            raise self._nobody()
        text = self._held_up(job, pods, submitters)
        default = (
            "setting up: Ray starts the workers"
            if self.started
            else "setting up"
            if self._seen(job)
            else "waiting for KubeRay's operator"
        )
        self.note(text or default)
        self._pods = {pod["metadata"]["name"]: pod_diagnostics.restarts(pod) for pod in pods}
        self._refuse_hopeless([*pods, *submitters])
        if waited > self.spec["within_s"] and not self.started:
            tried = self.spec["tried"]
            what = f"after {duration(waited)}: {text or default}"
            raise TrainfleetError(
                "the run did not get its machines in time",
                [Problem(tried, what, "--within MINUTES waits longer; --pool NAME tries others")],
            )

    def _held_up(
        self, job: dict[str, Any], pods: list[dict[str, Any]], submitters: list[dict[str, Any]]
    ) -> str:
        if job.get("spec", {}).get("suspend"):
            owned = [each for each in self._items("Workload") if self._owns(job, each)]
            return pod_diagnostics.queued(owned[0] if owned else None, self.spec["queue"])
        wanted = int(self.spec["pods"])
        if not self.spec["cluster"] and len(pods) < wanted + 1 and self.ray_cluster:
            events = self._items("Event", fields=f"involvedObject.name={self.ray_cluster}")
            if why := pod_diagnostics.why_not_made(events):
                return f"waiting: only {len(pods)} of {wanted + 1} pods could be made: {why}"
        if not pods:
            return ""
        waits = [
            pod_diagnostics.pod_wait(each).text for each in submitters if not pod_diagnostics.is_ready(each)
        ]
        text = pod_diagnostics.summary(pods, wanted) or "; ".join(
            f"setting up: the submitter waits: {text}" for text in waits if text
        )
        return "; ".join(each for each in (text, self._nodes_short() if "taint" in text else "") if each)

    def _nodes_short(self) -> str:
        try:
            return pod_diagnostics.short_of(
                list(self.cluster.request("GET", "/api/v1/nodes").get("items", []))
            )
        except ApiError:  # an account that may not look at nodes
            return ""

    @staticmethod
    def _owns(job: dict[str, Any], workload: dict[str, Any]) -> bool:
        return any(
            each.get("uid") == job["metadata"]["uid"]
            for each in workload.get("metadata", {}).get("ownerReferences", [])
        )

    def _refuse_hopeless(self, pods: list[dict[str, Any]]) -> None:
        """End a run that waits for what will not come."""
        now = time.monotonic()
        waits = {pod["metadata"]["name"]: pod_diagnostics.pod_wait(pod) for pod in pods}
        self._since = {
            name: self._since.get(name, now)
            for name, wait in waits.items()
            if wait.kind in ("image", "config", "crash")
        }
        for pod in pods:
            name = pod["metadata"]["name"]
            wait = waits[name]
            hopeless = any(
                reason in str(pod.get("status", {}).get("containerStatuses", ""))
                for reason in pod_diagnostics.HOPELESS_AT_ONCE
            )
            if name in self._since and (hopeless or now - self._since[name] > IMAGE_TRIES_S):
                fix = {"image": "--image REF; the cluster's nodes must be able to pull it"}.get(
                    wait.kind, "trainfleet runs logs says more"
                )
                raise InputError("the run's pods cannot start", [Problem(f"pod {name}", wait.text, fix)])

    def _watch_losses(self, pods: list[dict[str, Any]]) -> None:
        """Say which pods were lost while the run goes on, and which started again, and why."""
        here = {pod["metadata"]["name"]: pod_diagnostics.restarts(pod) for pod in pods}
        for name in sorted(self._pods.keys() - here.keys()):
            self.note(f"pod {name} was lost; the run goes on once its place is taken")
        for pod in pods:
            name = pod["metadata"]["name"]
            if here[name] > self._pods.get(name, here[name]):
                self.note(f"pod {name} started again: {pod_diagnostics.last_end(pod)}")
        self._pods = here

    def _ray_pods(self) -> list[dict[str, Any]]:
        if not self.ray_cluster:
            return []
        return self._items("Pod", f"ray.io/cluster={self.ray_cluster}")

    def _submitters(self) -> list[dict[str, Any]]:
        return self._items("Pod", f"{LAUNCH_LABEL}={self.spec['launch']}")

    def _items(self, kind: str, selector: str = "", fields: str = "") -> list[dict[str, Any]]:
        """What is there of a kind, asked until the cluster answers: to look at a run must never end it."""
        return patiently(lambda: self.cluster.items(kind, selector, fields), self.note)

    @staticmethod
    def _stop_asked() -> bool:
        return os.path.exists(os.environ.get(STOP_FILE) or "")  # noqa: PTH110 - asked often

    def _ask_to_stop(self) -> None:
        """Ask every rank to save and end; a run that has not begun is taken down."""
        if not self.stepped:
            raise Stopped
        if not self.asked:
            self.asked = True
            if not ask_ranks(self.cluster, self._ray_pods(), self.spec["launch"]):
                self.note("no pod could be asked to save; the run is ended with its newest checkpoint")
                raise Stopped
        elif self.result is not None:
            raise _SavedError

    def _end(self, job: dict[str, Any]) -> int:
        """Hear the last lines, then take down what is left."""
        submitters = self._submitters()
        self.log.look_at(submitters)
        deadline = time.monotonic() + (LAST_LINES_S if submitters else 0)
        while not self.log.ended and time.monotonic() < deadline:
            self._hear()
            time.sleep(TICK_S)
        self._hear()
        status = job.get("status", {})
        if self.result is None and not self.broken:
            self.sink.send("crash", rank=0, error=self._why_failed(status), trace="")
        self._take_down()
        return 0 if self.result is not None else 1

    def _why_failed(self, status: dict[str, Any]) -> str:
        for pod in self._ray_pods():
            for container in pod.get("status", {}).get("containerStatuses", []):
                for state in (container.get("state", {}), container.get("lastState", {})):
                    if (state.get("terminated") or {}).get("reason") == "OOMKilled":
                        return f"pod {pod['metadata']['name']} ran out of memory"
        said = str(status.get("message") or "").strip().splitlines()
        return f"{status.get('reason') or status.get('jobStatus') or 'the run'}: {said[-1] if said else 'KubeRay says no more'}"

    def _take_down(self) -> None:
        """Delete the RayJob and with it its cluster, pods and files. Checkpoints are in the store, the log is
        in the run's folder.
        """
        self.log.close()
        with contextlib.suppress(ApiError):
            self.cluster.delete("RayJob", self.job)


class _SavedError(Stopped):
    """The run has saved what it was asked to save."""


def ask_ranks(cluster: Cluster, pods: list[dict[str, Any]], launch: str) -> int:
    """Have every rank find the file that asks it to save and end; how many pods were asked."""
    asked = 0
    for pod in pods:
        # Not only pods that are ready: on a busy machine a pod that trains may be late to say so.
        if pod_diagnostics.node_type(pod) == "worker" and pod.get("status", {}).get("phase") == "Running":
            with contextlib.suppress(ApiError):
                cluster.execute(pod["metadata"]["name"], "ray-worker", ["touch", stop_file(launch)])
                asked += 1
    return asked


def _follow(spec: dict[str, Any], sink: Sink) -> int:
    cluster = connect(spec["context"], spec["kubeconfig"], spec["kube_context"], spec["namespace"])
    return Follower(spec, cluster, sink).run()


if __name__ == "__main__":
    sys.exit(follow(_follow))
