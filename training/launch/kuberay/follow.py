"""The follower of a run on KubeRay: creates its objects, reports why it waits and what it prints, cleans up.

Only a stop, a failed start and the run's own end delete objects. When this process is killed, detaches or
loses the connection, the run continues.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.training.launch.kuberay import long_lived
from trainfleet.training.launch.kuberay.admission import Admission
from trainfleet.training.launch.kuberay.checks import ENDED, explain, is_handled, known_to_ray, state_of
from trainfleet.training.launch.kuberay.messages import KubeRaySpec
from trainfleet.training.launch.kuberay.own_job import delete_job, own_job
from trainfleet.training.launch.kuberay.pod_log import PodLog
from trainfleet.training.launch.kuberay.pods import LAUNCH_LABEL
from trainfleet.training.launch.kuberay.stop_request import ask_ranks
from trainfleet.training.launch.kuberay.timeouts import timeouts
from trainfleet.training.launch.remote import pod_diagnostics
from trainfleet.training.launch.remote.follower import (
    NoteLog,
    Stopped,
    detach_requested,
    event_fields,
    follow,
    print_line,
    stop_requested,
)
from trainfleet.training.launch.remote.kubernetes import ApiError, Cluster, connect, retry_unreachable
from trainfleet.training.launch.remote.log_stream import Line
from trainfleet.training.launch.remote.lost_pods import LostPods, delete_options
from trainfleet.training.launch.remote.queue_state import why_queued
from trainfleet.training.launch.remote.workload_check import check_workload
from trainfleet.training.runtime.events import EventSink
from trainfleet.training.runtime.progress import duration

POLL_S = 1.0
TICK_S = 0.1
OPERATOR_TIMEOUT_S = 60.0
"""After this long without a status no operator handles RayJobs."""
IMAGE_TIMEOUT_S = 90.0
"""How long an image may fail to be pulled: a registry may be busy, but a wrong name stays wrong."""
LAST_LINES_S = 15.0
"""How long to wait for the end of the log once KubeRay reports the end of the run."""
SETTING_UP = "setting up: Ray starts the workers"


class Follower:
    """One run on one cluster, from its creation to its end."""

    def __init__(self, spec: KubeRaySpec, cluster: Cluster, sink: EventSink) -> None:
        self.spec, self.cluster, self.sink = spec, cluster, sink
        self.job = spec.job
        self.log = PodLog(cluster)
        self.note = NoteLog(sink)
        self.lost = LostPods(
            lambda pod: cluster.delete("Pod", pod["metadata"]["name"], delete_options(pod)), self.note
        )
        self.timeouts = timeouts(spec.pods)
        self.ray_cluster = spec.cluster or ""
        self.started = self.stepped = self.stop_sent = False
        self.result: dict[str, Any] | None = None
        self.crashed = False
        self._failing_since: dict[str, float] = {}
        self._restarts: dict[str, int] = {}
        self._began = time.monotonic()
        self._admission = Admission(spec, cluster, sink, self.note)

    def run(self) -> int:
        """Follow the run to its end; the exit code."""
        if not self.spec.attach:
            if self.spec.check is not None:
                check_workload(self.cluster, self.spec.check, self.note, print_line)
            self._create()
        try:
            if self.spec.detach:
                self._await_operator()
                raise _DetachedError
            self.note(f"submitted as RayJob {self.cluster.namespace}/{self.job} in {self.cluster.name}")
            return self._follow()
        except _DetachedError:
            self.log.close()
            self.spec.detached.send(self.sink)
            return 0
        except _SavedError:
            self._clean_up()
            return 0  # the run reported how it ended
        except ApiError as error:
            # NOTE: a lost connection must not end the run.
            fix = "the run continues there; `trainfleet runs attach` follows it again"
            ended = error.status == 401
            summary = "your login to the cluster has ended" if ended else "the cluster no longer answers"
            raise TrainfleetError(summary, [Problem(self.cluster.name, error.message, fix)]) from error
        except (Stopped, TrainfleetError):
            self._clean_up()
            raise

    def _create(self) -> None:
        """Create the objects, after deleting what an ended run of this name left."""
        existing = self.cluster.get("RayJob", self.job)
        if existing is not None:
            if state_of(existing) not in ENDED:
                problem = Problem(self.job, "another launch started it", "trainfleet runs attach")
                raise InputError("this run is already in progress", [problem])
            uid = str(existing["metadata"]["uid"])
            delete_job(self.cluster, self.job, uid)
            self._await_deletion(uid)
        owner: dict[str, Any] | None = None
        try:
            if self.spec.cluster_objects:
                self._apply(long_lived.ensure(self.cluster, self.spec.cluster_objects))
            for document in self.spec.objects:
                if document["kind"] == "RayJob":
                    owner = _owner(self.cluster.create(document))
                else:
                    metadata = {**document["metadata"], **({"ownerReferences": [owner]} if owner else {})}
                    self._apply({**document, "metadata": metadata})
        except ApiError as error:
            if owner is not None:
                self._clean_up()
            raise explain(error, self.cluster) from error
        except Stopped:
            self._clean_up()
            raise

    def _apply(self, document: dict[str, Any]) -> None:
        """Apply an object. A launcher may lack the right to budgets on a platform that is older than them."""
        try:
            self.cluster.apply(document)
        except ApiError as error:
            if document["kind"] != "PodDisruptionBudget" or error.status != 403:
                raise
            self.note("no disruption budget: a drain may evict several pods of the run at once")

    def _await_deletion(self, uid: str) -> None:
        deadline = time.monotonic() + self.timeouts.deletion_s
        while (job := self.cluster.get("RayJob", self.job)) is not None and job["metadata"]["uid"] == uid:
            if time.monotonic() > deadline:
                raise TrainfleetError(
                    f"the RayJob {self.job} of an earlier run is not deleted; is KubeRay's operator running?"
                )
            time.sleep(0.5)

    def _await_operator(self) -> None:
        """Wait until an operator handles the run, so that none is left behind that never starts."""

        def unless_stopped() -> dict[str, Any] | None:
            if stop_requested():
                raise Stopped
            return self._own_job()

        deadline = time.monotonic() + OPERATOR_TIMEOUT_S
        while True:
            job = retry_unreachable(unless_stopped, self.note)
            if job is not None and is_handled(job):
                return
            if time.monotonic() > deadline:
                raise self._no_operator()
            time.sleep(POLL_S)

    def _no_operator(self) -> TrainfleetError:
        fix = "kubectl get pods -A -l app.kubernetes.io/name=kuberay-operator; it must watch this namespace"
        problem = Problem(f"{self.cluster.namespace}/{self.job}", "has no status", fix)
        return TrainfleetError("KubeRay's operator does not handle the run", [problem])

    def _follow(self) -> int:
        next_poll = 0.0
        while True:
            self._read_log()
            if detach_requested():
                raise _DetachedError
            if stop_requested():
                self._stop()
            if self.result is not None and self.log.ended:
                return self._end({})
            if time.monotonic() >= next_poll:
                job = retry_unreachable(self._own_job, self.note)
                if job is None and self.result is None:
                    what = "is no longer in the cluster; somebody deleted it"
                    fix = "launch it again; `trainfleet runs attach` follows another launch of it"
                    raise TrainfleetError("the run was deleted", [Problem(self.job, what, fix)])
                if job is None or state_of(job) in ENDED:  # `runs stop` deletes a run that has saved
                    return self._end(job or {})
                self._poll(job)
                next_poll = time.monotonic() + self.timeouts.poll_s * (3 if self.stepped else 1)
            time.sleep(TICK_S)

    def _own_job(self) -> dict[str, Any] | None:
        return own_job(self.cluster, self.job, self.spec.launch)

    def _read_log(self) -> None:
        for line in self.log.drain():
            self._handle(line)

    def _handle(self, line: Line) -> None:
        if isinstance(line, str):
            print_line(line)
            return
        match line["kind"]:
            case "attempt":
                if self.started:
                    self.note("the head was lost; the run resumes from its newest checkpoint")
                self.started = True
                return
            case "submitter":
                print_line(line["text"])
                return
            case "step":
                self.stepped = True
            case "result":
                self.result = line
            case "crash":
                self.crashed = True
            case "error":
                self._clean_up()  # first, because the launcher ends this process once it has the error
        self.sink.send(line["kind"], **event_fields(line))

    def _poll(self, job: dict[str, Any]) -> None:
        """See how far the run is, and report why it waits."""
        self.ray_cluster = self.spec.cluster or job.get("status", {}).get("rayClusterName") or ""
        queued = self._admission.held(job)
        waited_for_machines = self._admission.waited_s(queued)
        pods, submitters = self._ray_pods(), self._submitters()
        self.log.watch(submitters)
        with contextlib.suppress(ApiError):  # its user may follow only; then the submitter deletes them
            self.lost.look(pods)
        if self.stepped and queued is None:
            self._report_losses(pods)
            return
        if queued is not None:  # it may have trained before: then it starts again, from its newest checkpoint
            self.started = self.stepped = False
        waited = time.monotonic() - self._began
        if not is_handled(job) and waited > OPERATOR_TIMEOUT_S:
            raise self._no_operator()
        in_ray = queued is None and known_to_ray(job)
        text = self._why_waiting(queued, pods, submitters) or self._phase(job)
        if in_ray and self.log.rejected:
            text = f"the run continues, but its log cannot be read: {self.log.rejected}"
        self.note(text)
        self._restarts = {pod["metadata"]["name"]: pod_diagnostics.restarts(pod) for pod in pods}
        self._reject_hopeless([*pods, *submitters])
        waits = not self.started and not in_ray and not self.spec.attach
        if waits and waited_for_machines > self.spec.within_s:
            fix = "--within MINUTES waits longer; --pool NAME tries another pool"
            problem = Problem(self.spec.tried, f"after {duration(waited_for_machines)}: {text}", fix)
            raise TrainfleetError("the run did not get its machines in time", [problem])

    def _phase(self, job: dict[str, Any]) -> str:
        if self.started:
            return SETTING_UP
        return "setting up" if is_handled(job) else "waiting for KubeRay's operator"

    def _why_waiting(
        self,
        queued: dict[str, Any] | None,
        pods: list[dict[str, Any]],
        submitters: list[dict[str, Any]],
    ) -> str:
        if queued is not None:
            return retry_unreachable(lambda: why_queued(self.cluster, queued, self.spec.queue), self.note)
        expected = self.spec.pods + 1
        if not self.spec.cluster and len(pods) < expected and self.ray_cluster:
            events = self._items("Event", fields=f"involvedObject.name={self.ray_cluster}")
            if why := pod_diagnostics.why_not_created(events):
                return f"waiting: only {len(pods)} of {expected} pods could be created: {why}"
        if not pods:
            return ""
        waits = [
            pod_diagnostics.pod_wait(each).text for each in submitters if not pod_diagnostics.is_ready(each)
        ]
        text = pod_diagnostics.summary(pods, self.spec.pods) or "; ".join(
            f"setting up: the submitter waits: {text}" for text in waits if text
        )
        return "; ".join(each for each in (text, self._node_pressure() if "taint" in text else "") if each)

    def _node_pressure(self) -> str:
        try:
            nodes = self.cluster.request("GET", "/api/v1/nodes").get("items", [])
        except ApiError:  # the account may not read nodes
            return ""
        return pod_diagnostics.node_pressure(list(nodes))

    def _reject_hopeless(self, pods: list[dict[str, Any]]) -> None:
        """End a run whose pods cannot start."""
        now = time.monotonic()
        waits = {pod["metadata"]["name"]: pod_diagnostics.pod_wait(pod) for pod in pods}
        self._failing_since = {
            name: self._failing_since.get(name, now)
            for name, wait in waits.items()
            if wait.kind in ("image", "config", "crash")
        }
        for pod in pods:
            name = pod["metadata"]["name"]
            statuses = str(pod.get("status", {}).get("containerStatuses", ""))
            hopeless = any(reason in statuses for reason in pod_diagnostics.PERMANENT_REASONS)
            if name in self._failing_since and (
                hopeless or now - self._failing_since[name] > IMAGE_TIMEOUT_S
            ):
                wait = waits[name]
                fix = {"image": "--image REF; the cluster's nodes must be able to pull it"}.get(
                    wait.kind, "trainfleet runs logs shows more"
                )
                raise InputError("the run's pods cannot start", [Problem(f"pod {name}", wait.text, fix)])

    def _report_losses(self, pods: list[dict[str, Any]]) -> None:
        """Report the pods that were lost while the run continues, and those that restarted, and why."""
        current = {pod["metadata"]["name"]: pod_diagnostics.restarts(pod) for pod in pods}
        for name in sorted(self._restarts.keys() - current.keys()):
            self.note(f"pod {name} was lost; the run continues once it is replaced")
        for pod in pods:
            name = pod["metadata"]["name"]
            if current[name] > self._restarts.get(name, current[name]):
                self.note(f"pod {name} restarted: {pod_diagnostics.last_end(pod)}")
        self._restarts = current

    def _ray_pods(self) -> list[dict[str, Any]]:
        return self._items("Pod", f"ray.io/cluster={self.ray_cluster}") if self.ray_cluster else []

    def _submitters(self) -> list[dict[str, Any]]:
        return self._items("Pod", f"{LAUNCH_LABEL}={self.spec.launch}")

    def _items(self, kind: str, selector: str = "", fields: str = "") -> list[dict[str, Any]]:
        """The objects of a kind. Retries until the cluster answers: reading must never end a run."""
        return retry_unreachable(lambda: self.cluster.items(kind, selector, fields), self.note)

    def _stop(self) -> None:
        """Ask every rank to save and end; what has not started, or saves nothing, is deleted."""
        if not self.spec.saves or (not self.stepped and not self.log.rejected):
            raise Stopped
        if not self.stop_sent:
            self.stop_sent = True
            if not ask_ranks(self.cluster, self._ray_pods(), self.spec.launch):
                self.note("no pod could be asked to save; the run ends at its newest checkpoint")
                raise Stopped
        elif self.result is not None:
            raise _SavedError

    def _end(self, job: dict[str, Any]) -> int:
        """Read the last lines, then clean up."""
        submitters = self._submitters()
        self.log.watch(submitters)
        deadline = time.monotonic() + (LAST_LINES_S if submitters else 0)
        while not self.log.ended and time.monotonic() < deadline:
            self._read_log()
            time.sleep(TICK_S)
        self._read_log()
        if self.result is None and not self.crashed:
            self.sink.send("crash", rank=0, error=self._why_failed(job.get("status", {})), trace="")
        self._clean_up()
        return 0 if self.result is not None else 1

    def _why_failed(self, status: dict[str, Any]) -> str:
        if name := pod_diagnostics.out_of_memory(self._ray_pods()):
            return f"pod {name} ran out of memory"
        message = str(status.get("message") or "").strip().splitlines()
        reason = status.get("reason") or status.get("jobStatus") or "the run"
        return f"{reason}: {message[-1] if message else 'KubeRay reports no reason'}"

    def _clean_up(self) -> None:
        """Delete the RayJob, which owns the cluster, pods and files. Checkpoints and log are stored
        elsewhere. A follower of another launch's run deletes nothing: KubeRay does, some time after its end.
        """
        self.log.close()
        if self.spec.attach:
            return
        try:
            if (job := self._own_job()) is not None:
                delete_job(self.cluster, self.job, job["metadata"]["uid"])
        except ApiError as error:
            what = f"the RayJob {self.job} is not deleted: {error.message}; then `trainfleet runs stop`"
            self.sink.send("warning", text=what)


class _DetachedError(Exception):
    """The launcher leaves the run alone."""


class _SavedError(Stopped):
    """The run has saved after it was asked to stop."""


def _owner(job: dict[str, Any]) -> dict[str, Any]:
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    return {"apiVersion": job["apiVersion"], "kind": "RayJob", "name": name, "uid": uid}


def _run(spec: KubeRaySpec, sink: EventSink) -> int:
    cluster = connect(spec.context, spec.kubeconfig, spec.kube_context, spec.namespace)
    return Follower(spec, cluster, sink).run()


if __name__ == "__main__":
    sys.exit(follow(KubeRaySpec, _run))
