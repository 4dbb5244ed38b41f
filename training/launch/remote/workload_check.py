"""The workload check: before a run requests GPUs, one small pod without GPUs validates the run with the run's
image, code and permissions (`validate`).

It is a Job, which Kubernetes deletes some time after its end, even if this process is killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex
from typing import Any

from trainfleet.errors import InputError, MissingToolError, Problem, TrainfleetError
from trainfleet.infra.outputs.contract import PlatformOutputs
from trainfleet.training.launch.options import When
from trainfleet.training.launch.remote import pod_diagnostics
from trainfleet.training.launch.remote.deletion import delete_own
from trainfleet.training.launch.remote.follower import (
    Message,
    Stopped,
    detach_requested,
    stop_requested,
)
from trainfleet.training.launch.remote.kubernetes import ApiError, Cluster, retry_unreachable
from trainfleet.training.launch.remote.log_stream import Line, parse
from trainfleet.training.launch.remote.pod_settings import environment, pod_security, restricted, variables
from trainfleet.training.launch.remote.pod_template import with_patches
from trainfleet.training.launch.remote.ray_job import FILES_FOLDER, RECIPE_FILE
from trainfleet.training.launch.remote.storage_env import SHARED_MOUNT
from trainfleet.training.launch.run_check import MODULE, RUN_S, RunCheck, raise_reported
from trainfleet.training.recipe.load import dump
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runtime.code_archive import CODE
from trainfleet.training.runtime.events import JOB
from trainfleet.training.runtime.progress import duration

Document = dict[str, Any]
CONTAINER = "workload-check"
FILES_MOUNT = "/etc/trainfleet"
CA_NAME = "ca.crt"
NODE_WAIT_S = 120.0
"""How long the pod may wait for a node. GPUs are not kept waiting for longer."""
START_WAIT_S = 900.0
"""How long the image may take to be pulled. It is the image of the run, whose pods would wait for it too."""
DEADLINE_S = round(NODE_WAIT_S + START_WAIT_S + RUN_S)
KEPT_S = 300
"""How long Kubernetes keeps the Job if nobody deletes it."""
IMAGE_TIMEOUT_S = 90.0
"""How long an image may fail to be pulled: a registry may be busy, but a wrong name stays wrong."""
CLEAN_UP_S = 30.0
POLL_S = 0.5


@dataclass(frozen=True)
class CheckedRun:
    """What the check takes from a run."""

    recipe: Recipe
    job: str
    """The name of the run's objects."""
    namespace: str
    image: str
    outputs: PlatformOutputs
    secrets: tuple[str, ...]
    """Secrets of the namespace whose keys become variables."""
    env: dict[str, str]
    ca: str
    """Certificates (PEM) of the CA of a private store, or empty."""
    code: str
    """The URL of the user's code, or empty."""
    instead: str = ""
    """What the ranks do instead of training, or empty: `Request.job`."""
    secret_values: dict[str, str] = field(default_factory=dict)
    """Variables whose values are secret."""
    patches: tuple[Document, ...] = ()
    """The user's changes of the pod (`pod_template.for_check`)."""


class WorkloadCheck(Message):
    """A check, as its launcher describes it to the follower."""

    job: dict[str, Any]
    files: list[dict[str, Any]]
    """What its pod needs, which the Job owns: a ConfigMap, and a Secret if there are secret variables."""
    required: bool
    """Whether the run must not start unchecked."""


def workload_check(run: CheckedRun, when: When, *, without_gpus: bool = False) -> WorkloadCheck | None:
    """The objects of a check; None if the run starts without one. Pure.

    `without_gpus`: whether `auto` also checks a run without GPUs, as on several clusters at once.
    """
    if when == "never" or (when == "auto" and not (run.recipe.scaling.use_gpu or without_gpus)):
        return None
    name = f"{run.job}-check"
    labels = {"app.kubernetes.io/managed-by": "trainfleet", "trainfleet.io/check": run.recipe.name}
    metadata = {"name": name, "namespace": run.namespace, "labels": labels}
    # A launcher may create Secrets, and not change one that an earlier check has left.
    secret = f"{name}-{token_hex(4)}" if run.secret_values else ""
    pod = {"metadata": {"labels": {**labels, **run.outputs.pod_labels}}, "spec": _pod(run, name, secret)}
    pod = with_patches(pod, run.patches, CONTAINER)
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": DEADLINE_S,
            "ttlSecondsAfterFinished": KEPT_S,
            "template": pod,
        },
    }
    data = {RECIPE_FILE: dump(run.recipe)} | ({CA_NAME: run.ca} if run.ca else {})
    files: list[Document] = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}]
    if run.secret_values:
        own = {**metadata, "name": secret}
        files.append({"apiVersion": "v1", "kind": "Secret", "metadata": own, "stringData": run.secret_values})
    return WorkloadCheck(job=job, files=files, required=when == "always")


def _pod(run: CheckedRun, name: str, secret: str) -> Document:
    account = {"serviceAccountName": run.outputs.service_account} if run.outputs.service_account else {}
    given = {CODE: run.code, JOB: run.instead}
    own = {FILES_FOLDER: FILES_MOUNT} | {name: value for name, value in given.items() if value}
    ca_file = f"{FILES_MOUNT}/{CA_NAME}" if run.ca else ""
    secrets = [*run.secrets, *([secret] if secret else [])]
    mounts = [
        {"name": "files", "mountPath": FILES_MOUNT, "readOnly": True},
        {"name": "scratch", "mountPath": "/tmp"},
    ]
    volumes: list[Document] = [
        {"name": "files", "configMap": {"name": name}},
        {"name": "scratch", "emptyDir": {}},
    ]
    if claim := run.outputs.shared_volume:
        mounts.append({"name": "shared", "mountPath": SHARED_MOUNT})
        volumes.append({"name": "shared", "persistentVolumeClaim": {"claimName": claim}})
    container = {
        "name": CONTAINER,
        "image": run.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", MODULE],
        "env": [*environment(run.env, ca_file, run.outputs.secrets), *variables(own)],
        **({"envFrom": [{"secretRef": {"name": each}} for each in secrets]} if secrets else {}),
        "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "4Gi"}},
        "securityContext": restricted(),
        "volumeMounts": mounts,
    }
    return {
        "restartPolicy": "Never",
        **account,
        "automountServiceAccountToken": False,
        "securityContext": pod_security(),
        "containers": [container],
        "volumes": volumes,
    }


def check_workload(
    cluster: Cluster,
    check: WorkloadCheck,
    notify: Callable[[str], Any],
    show: Callable[[str], Any],
    stopping: Callable[[], bool] = stop_requested,
) -> None:
    """Run a check, and delete it however it ends.

    Args:
        cluster: where the run will be.
        check: its objects.
        notify: takes lines for the user.
        show: takes lines for the log of the launch: what the pod printed.
        stopping: whether it shall end early; by default, whether the launcher asked this process for a stop.

    Raises:
        TrainfleetError: the error that the validation found, or the check is required and did not run.
        Stopped: it was ended early.
    """
    _Check(cluster, check, notify, show, stopping).run()


@dataclass(frozen=True)
class PodCheck(RunCheck):
    """A check by a pod of the cluster."""

    cluster: Cluster
    check: WorkloadCheck
    where: str = ""

    def run(
        self, notify: Callable[[str], Any], show: Callable[[str], Any], stopping: Callable[[], bool]
    ) -> None:
        """Run the check, and delete it however it ends."""
        check_workload(self.cluster, self.check, notify, show, stopping)


@dataclass
class _Check:
    cluster: Cluster
    check: WorkloadCheck
    notify: Callable[[str], Any]
    show: Callable[[str], Any]
    stopping: Callable[[], bool]
    _uid: str = ""
    """Of the Job, once it is created."""
    _began: float = field(default_factory=time.monotonic)
    _running_since: float = 0.0
    _failing_since: float = 0.0

    @property
    def name(self) -> str:
        """The name of the Job and of what it owns."""
        return str(self.check.job["metadata"]["name"])

    def run(self) -> None:
        try:
            self._create()
            pod = self._wait()
            lines = self._log(pod) if pod is not None else []
        except ApiError as error:
            return self._unchecked(error.message)
        finally:
            if self._uid:
                self._delete()
        return self._evaluate(pod, lines) if pod is not None else None

    def _create(self) -> None:
        if self._call(partial(self.cluster.delete, "Job", self.name)):
            self._await_deletion()
        job = self.cluster.create(self.check.job)
        self._uid = str(job["metadata"]["uid"])
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": self.name, "uid": self._uid}
        for document in self.check.files:
            metadata = {**document["metadata"], "ownerReferences": [owner]}
            store = self.cluster.create if document["kind"] == "Secret" else self.cluster.apply
            store({**document, "metadata": metadata})
        self.notify("checking the workload in a pod without GPUs")

    def _await_deletion(self) -> None:
        while self._call(partial(self.cluster.get, "Job", self.name)) is not None:
            if time.monotonic() - self._began > NODE_WAIT_S:
                raise ApiError(409, "", f"the Job {self.name} of an earlier launch is not deleted")
            time.sleep(POLL_S)

    def _wait(self) -> Document | None:
        """The pod, once it has ended; None if the run starts unchecked."""
        shown = ""
        while True:
            if detach_requested():
                self._unchecked("the launch was left")
                return None
            pod = self._pod()
            phase = str(pod.get("status", {}).get("phase") or "")
            if phase in ("Succeeded", "Failed"):
                return pod
            wait = pod_diagnostics.pod_wait(pod) if pod else self._why_no_pod()
            self._reject_hopeless(pod, wait)
            if wait.text and wait.text != shown:
                shown = wait.text
                self.notify(f"checking the workload: {shown}")
            if why := self._too_late(phase, wait):
                self._unchecked(why)
                return None
            time.sleep(POLL_S)

    def _pod(self) -> Document:
        """The pod of the Job, or nothing. That of an earlier launch's Job may still be terminating."""
        pods = self._call(partial(self.cluster.items, "Pod", f"job-name={self.name}"))
        owners = ((pod, each) for pod in pods for each in pod["metadata"].get("ownerReferences", ()))
        return next((pod for pod, owner in owners if owner["uid"] == self._uid), {})

    def _why_no_pod(self) -> pod_diagnostics.Wait:
        events = self._call(partial(self.cluster.items, "Event", fields=f"involvedObject.uid={self._uid}"))
        return pod_diagnostics.Wait("node", pod_diagnostics.why_not_created(events))

    def _reject_hopeless(self, pod: Document, wait: pod_diagnostics.Wait) -> None:
        if wait.kind not in ("image", "config"):
            self._failing_since = 0.0
            return
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        statuses = str(pod.get("status", {}).get("containerStatuses", ""))
        permanent = any(reason in statuses for reason in pod_diagnostics.PERMANENT_REASONS)
        if permanent or now - self._failing_since > IMAGE_TIMEOUT_S:
            fix = "--image REF; the cluster's nodes must be able to pull it" if wait.kind == "image" else ""
            problem = Problem(f"pod {pod['metadata']['name']}", wait.text, fix)
            raise InputError("the run's pods cannot start", [problem])

    def _too_late(self, phase: str, wait: pod_diagnostics.Wait) -> str:
        """Why the check is given up; empty while it may continue."""
        now = time.monotonic()
        if phase == "Running":
            self._running_since = self._running_since or now
            late = now - self._running_since > RUN_S
            return f"it did not end within {duration(RUN_S)}" if late else ""
        limit = START_WAIT_S if wait.kind == "start" else NODE_WAIT_S
        late = now - self._began > limit and not self._failing_since
        return f"after {duration(now - self._began)}: {wait.text or 'it has no pod'}" if late else ""

    def _unchecked(self, why: str) -> None:
        """Start the run without the check, unless it is required."""
        if self.check.required:
            fix = "--workload-check auto starts the run without it"
            problem = Problem(f"job {self.name}", why, fix)
            raise TrainfleetError("the workload could not be checked", [problem])
        self.notify(f"the workload was not checked: {why}")

    def _log(self, pod: Document) -> list[Line]:
        name = pod["metadata"]["name"]
        return [
            parse(text)
            for _, text in self._call(lambda: list(self.cluster.log(name, CONTAINER, follow=False)))
        ]

    def _evaluate(self, pod: Document, lines: list[Line]) -> None:
        try:
            printed = raise_reported(lines, self.show)
        except TrainfleetError as error:
            raise _with_image(error, self.check.job) from error
        if pod["status"]["phase"] == "Succeeded":
            self.notify(f"the workload is valid (checked in {duration(time.monotonic() - self._began)})")
            return
        statuses = pod["status"].get("containerStatuses") or [{}]
        ended = statuses[0].get("state", {}).get("terminated")
        if not ended or ended.get("reason") == "OOMKilled":
            self._unchecked(pod_diagnostics.ended_text(ended) if ended else "its pod was evicted")
            return
        what = pod_diagnostics.ended_text(ended)
        last = f"; it printed last: {printed[-1]}" if printed else ""
        raise TrainfleetError("the workload check failed", [Problem(f"job {self.name}", what + last)])

    def _delete(self) -> None:
        try:
            delete = partial(delete_own, self.cluster, "Job", self.name, self._uid)
            retry_unreachable(delete, self.notify, retry_for_s=CLEAN_UP_S)
        except ApiError as error:
            self.notify(f"cannot delete the Job {self.name}: {error.message}")

    def _call(self, call: Callable[[], Any]) -> Any:
        """The result of a call, repeated while the cluster does not answer and nobody asks to stop."""

        def unless_stopped() -> Any:
            if self.stopping():
                raise Stopped
            return call()

        return retry_unreachable(unless_stopped, self.notify)


def _with_image(error: TrainfleetError, job: Document) -> TrainfleetError:
    """The error, and where it occurred: the same workload was valid on this machine."""
    image = job["spec"]["template"]["spec"]["containers"][0]["image"]
    kind = type(error) if isinstance(error, (InputError, MissingToolError)) else TrainfleetError
    return kind(f"{error.summary} (checked in the image {image})", error.problems)
