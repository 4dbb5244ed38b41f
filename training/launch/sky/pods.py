"""Asks the clusters themselves: whether a context works, what a run's pods wait for, and to stop them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from trainfleet.errors import InputError
from trainfleet.training.launch.remote.kubernetes import ApiError, Cluster, connect
from trainfleet.training.launch.remote.platform_objects import PlatformObject, missing_objects
from trainfleet.training.launch.remote.pod_diagnostics import ended_text, pod_wait
from trainfleet.training.launch.remote.queue_state import QUEUE_LABEL, why_queued
from trainfleet.training.launch.sky.task import RUN_LABEL, STORAGE_ANNOTATION
from trainfleet.training.runs.listing import RunInfo

QUEUED = "queued: Kueue has not admitted the run yet"
STOP_FILE = "/tmp/trainfleet-stop"
SKY_CONTAINER = "ray-node"
SKY_LABEL = "skypilot-cluster-name"
"""SkyPilot's label of a cluster's pods and services (sky/templates/kubernetes-ray.yml.j2)."""
SKY_HEAD_LABEL = "skypilot-head-node"
"""Its label of a cluster's first pod (sky/provision/constants.py)."""
IDLE = "idle"
ASK_IDLE = f"flock --nonblock ~/trainfleet.lock echo {IDLE} || true"


class Place(Enum):
    """Where a run's pods are."""

    NOWHERE = auto()
    """There are none, or nobody knows."""
    QUEUED = auto()
    """Kueue holds all of them back."""
    ADMITTED = auto()
    """They have nodes, or wait for some."""


def context_problem(context: str, namespace: str, required: Iterable[PlatformObject] = ()) -> str | None:
    """Why the context cannot be used, or what the pods need and the cluster lacks; None if it can be used."""
    try:
        cluster = connect(context, "", "", namespace)
        if not _may_create_pods(cluster):
            return f"its user may not create pods in {namespace}"
    except InputError as error:
        if "unknown cluster" not in str(error):
            return "; ".join(each.what for each in error.problems)
        return f"there is no context `{context}` in the kubeconfig: `trainfleet sky setup` writes it"
    except ApiError as error:
        if error.status == 401:
            return "its token is not valid or has ended: `trainfleet sky setup` gets a new one"
        return f"the cluster does not answer ({error.message})"
    found = missing_objects(cluster, required)
    return "; ".join(f"{each.where} {each.what} ({each.fix})" for each in found) or None


def _may_create_pods(cluster: Cluster) -> bool:
    attributes = {"namespace": cluster.namespace, "verb": "create", "resource": "pods"}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = cluster.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=review)
    return bool(answer["status"]["allowed"])


def live_pods(contexts: Mapping[str, str], selector: str) -> list[tuple[str, dict[str, Any]]] | None:
    """The selected pods that are not being deleted, with their context; None if no cluster answers."""
    found: list[tuple[str, dict[str, Any]]] = []
    answers = 0
    for context, namespace in contexts.items():
        with contextlib.suppress(ApiError, InputError):
            pods = connect(context, "", "", namespace).items("Pod", selector)
            answers += 1
            found += [(context, each) for each in pods if _is_live(each)]
    return found if answers else None


@dataclass
class ClusterPods:
    """The pods of one run, as their clusters report them."""

    contexts: Mapping[str, str]
    selector: str
    note: Callable[[str], Any]
    last: str = ""

    def ask_to_stop(self) -> int:
        """Ask the run to save and end; how many pods were asked."""
        return ask_to_stop(self.contexts, self.selector)

    def setup_failures(self) -> list[str]:
        """The pods in which SkyPilot's setup failed, each with the step and its last log lines."""
        return setup_failures(self.contexts, self.selector)

    def idle(self, nodes: int) -> bool:
        """Whether a cluster that outlives its runs has all its pods, and none of them runs a task."""
        return idle(self.contexts, self.selector, nodes)

    def lost(self, nodes: int) -> bool:
        """Whether fewer pods than that run. Only asked once all of them have run."""
        return lost(self.contexts, self.selector, nodes)

    def report(self) -> Place:
        """Report what the pods wait for when it changes; where they are."""
        pods = live_pods(self.contexts, self.selector) or []
        held = bool(pods) and all(_is_queued(each) for _, each in pods)
        text = self._why_queued(*pods[0]) if held else _why_waiting(each for _, each in pods)
        if text and text != self.last:
            self.note(text)
        self.last = text
        if not pods:
            return Place.NOWHERE
        return Place.QUEUED if held else Place.ADMITTED

    def _why_queued(self, context: str, pod: dict[str, Any]) -> str:
        """What a pod that Kueue holds back waits for, if the cluster says it."""
        queue = pod["metadata"].get("labels", {}).get(QUEUE_LABEL, "")
        with contextlib.suppress(ApiError, InputError):
            return why_queued(connect(context, "", "", self.contexts[context]), pod, queue)
        return QUEUED


def _is_queued(pod: Mapping[str, Any]) -> bool:
    gates = [str(each.get("name")) for each in pod["spec"].get("schedulingGates", ())]
    return any(name.startswith("kueue.x-k8s.io/") for name in gates)


def _why_waiting(pods: Iterable[Mapping[str, Any]]) -> str:
    """What pods wait for, in one line; empty if they do not wait, or only for their containers to start."""
    waits: dict[str, list[str]] = {}
    for pod in pods:
        wait = pod_wait(dict(pod))
        if wait.kind not in ("none", "start"):
            waits.setdefault(wait.text, []).append(str(pod["metadata"]["name"]))
    return "; ".join(f"waiting: {', '.join(names)}: {text}" for text, names in waits.items())


def _is_live(pod: Mapping[str, Any]) -> bool:
    phase = pod.get("status", {}).get("phase")
    return "deletionTimestamp" not in pod["metadata"] and phase in ("Pending", "Running")


def idle(contexts: Mapping[str, str], selector: str, nodes: int) -> bool:
    """Whether that many pods of a cluster run, and no run holds the lock in its head (run.sh).

    It takes a tenth of the time in which SkyPilot asks the same of its own Ray. False if it is not certain.
    """
    pods = live_pods(contexts, selector) or []
    heads = [each for each in pods if each[1]["metadata"].get("labels", {}).get(SKY_HEAD_LABEL) == "1"]
    running = [each for _, each in pods if each["status"].get("phase") == "Running"]
    if len(heads) != 1 or not len(pods) == len(running) == nodes:
        return False
    ((context, head),) = heads
    with contextlib.suppress(ApiError, InputError):
        cluster = connect(context, "", "", contexts[context])
        return IDLE in cluster.execute(str(head["metadata"]["name"]), SKY_CONTAINER, ["bash", "-c", ASK_IDLE])
    return False


def lost(contexts: Mapping[str, str], selector: str, nodes: int) -> bool:
    """Whether fewer pods than that run. False if it is not certain, because a cluster does not answer."""
    answers = [live_pods({context: namespace}, selector) for context, namespace in contexts.items()]
    pods = [pod for found in answers for _, pod in found or []]
    if not pods and None in answers:
        return False
    return len([each for each in pods if each["status"]["phase"] == "Running"]) < nodes


SETUP_FAILED = re.compile(r"Error: setup step '([\w-]+)' failed")
"""What a pod prints before it ends because a step of SkyPilot's setup failed (kubernetes-ray.yml.j2)."""
LOG_TAIL = 200


def setup_failures(contexts: Mapping[str, str], selector: str) -> list[str]:
    """The pods in which SkyPilot's setup failed, as `POD: reason`; those of a cluster that answers."""
    found = []
    for context, namespace in contexts.items():
        with contextlib.suppress(ApiError, InputError):
            cluster = connect(context, "", "", namespace)
            for pod in cluster.items("Pod", selector, "status.phase=Failed"):
                name = str(pod["metadata"]["name"])
                lines = [text for _, text in cluster.log(name, SKY_CONTAINER, follow=False, tail=LOG_TAIL)]
                if why := _setup_failure(lines):
                    found.append(f"{name}: {why}")
                else:
                    found += [f"{name}: {each}" for each in _ends(pod)]
    return found


def _setup_failure(lines: list[str]) -> str:
    """The step that failed and the last lines that it printed; empty if none did."""
    step = next((hit[1] for line in lines if (hit := SETUP_FAILED.search(line))), "")
    # The script traces its commands; the trace's lines start with a plus sign for each level.
    shown = [line.strip() for line in lines if line.strip() and not line.startswith("+")]
    words = [line for line in shown if not SETUP_FAILED.search(line)][-3:]
    return f"SkyPilot's setup step {step} failed: {' / '.join(words) or 'it printed nothing'}" if step else ""


def _ends(pod: Mapping[str, Any]) -> list[str]:
    """How the containers of a failed pod ended, or why the node ended the pod."""
    status = pod["status"]
    ended = [each.get("state", {}).get("terminated") for each in status.get("containerStatuses", ())]
    reason = ": ".join(str(status[key]) for key in ("reason", "message") if status.get(key))
    return [reason] if reason else [ended_text(each) for each in ended if each]


def ask_to_stop(contexts: Mapping[str, str], selector: str) -> int:
    """Ask the run's ranks to save and end after their step, on every cluster; how many pods were asked."""
    asked = 0
    for context, pod in live_pods(contexts, selector) or []:
        with contextlib.suppress(ApiError, InputError):
            cluster = connect(context, "", "", contexts[context])
            cluster.execute(str(pod["metadata"]["name"]), SKY_CONTAINER, ["touch", STOP_FILE])
            asked += 1
    return asked


def delete_pods(contexts: Mapping[str, str], selector: str) -> bool:
    """Delete the pods and services of a run whose SkyPilot is on another machine; whether there were any.

    SkyPilot finds both by the label of its cluster (sky/provision/kubernetes/instance.py).
    """
    found = False
    for context, pod in live_pods(contexts, selector) or []:
        cluster = connect(context, "", "", contexts[context])
        name = pod["metadata"].get("labels", {}).get(SKY_LABEL, "")
        with contextlib.suppress(ApiError):
            for service in cluster.items("Service", f"{SKY_LABEL}={name}") if name else []:
                cluster.delete("Service", str(service["metadata"]["name"]))
            found = cluster.delete("Pod", str(pod["metadata"]["name"])) or found
    return found


def runs_of(pods: Iterable[Mapping[str, Any]]) -> list[RunInfo]:
    """The runs that pods belong to: running once a pod runs, else waiting."""
    by_run: dict[str, list[Mapping[str, Any]]] = {}
    for pod in filter(_is_live, pods):
        by_run.setdefault(str(pod["metadata"]["labels"][RUN_LABEL]), []).append(pod)
    return [
        RunInfo(
            name=name,
            home=next((_annotation(pod, STORAGE_ANNOTATION) for pod in those), ""),
            state="running" if any(pod["status"]["phase"] == "Running" for pod in those) else "waiting",
            since=min(str(pod["metadata"].get("creationTimestamp", "")) for pod in those),
            launch={"on": "sky"},
        )
        for name, those in by_run.items()
    ]


def _annotation(pod: Mapping[str, Any], name: str) -> str:
    return str(pod["metadata"].get("annotations", {}).get(name, ""))
