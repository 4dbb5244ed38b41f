"""Why a run is not running, from the documents of Kubernetes, KubeRay and Kueue. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

Document = dict[str, Any]

IMAGE_REASONS = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
)
PERMANENT_REASONS = ("InvalidImageName", "ErrImageNeverPull")
CONFIG_REASONS = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "PreCreateHookError",
)


@dataclass(frozen=True)
class Wait:
    """What a pod waits for. `kind` is node, image, config, crash, start or none.

    Both a missing node and a missing image leave a pod `Pending`; only the first can resolve by itself.
    """

    kind: str
    text: str


def pod_wait(pod: Document) -> Wait:
    """What a pod waits for."""
    status = pod.get("status", {})
    for condition in status.get("conditions", []):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return Wait("node", unschedulable(condition.get("message", "")))
    for container in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        waiting = container.get("state", {}).get("waiting") or {}
        reason, message = waiting.get("reason", ""), waiting.get("message", "")
        if reason in IMAGE_REASONS:
            return Wait(
                "image",
                f"image {container.get('image', '')} cannot be pulled: {_image_reason(message) or reason}",
            )
        if reason in CONFIG_REASONS:
            return Wait(
                "config", f"container {container.get('name', '')} cannot be created: {message or reason}"
            )
        if reason == "CrashLoopBackOff":
            return Wait(
                "crash",
                f"container {container.get('name', '')} keeps crashing ({_last_end(container)})",
            )
    return Wait("start", _starting(pod)) if status.get("phase") == "Pending" else Wait("none", "")


def _starting(pod: Document) -> str:
    """What happens on the node of a pod whose containers have not started."""
    for container in pod.get("status", {}).get("initContainerStatuses", []):
        if container.get("state", {}).get("running"):
            name, of = container.get("name", ""), pod.get("metadata", {}).get("name", "")
            return f"init container {name} is running (kubectl logs {of} -c {name})"
    return "the node is pulling the image or mounting volumes"


def unschedulable(message: str) -> str:
    """The scheduler's message in plain words: how many nodes there are, and what each group of them lacks."""
    head = re.match(r"(\d+)/(\d+) nodes are available: ?(.*)", message, re.DOTALL)
    if not head:
        return message or "no node has been found yet"
    total, rest = (
        int(head[2]),
        re.split(r"\.?\s+(?:preemption:|no new claims)", f"{head[3]} ")[0].rstrip(". "),
    )
    if total == 0:
        return "the cluster has no node"
    reasons = [_node_reason(part.strip()) for part in re.split(r",\s+(?=\d+ )", rest) if part.strip()]
    return (
        f"none of {total} node{'s' if total != 1 else ''} fits: {'; '.join(reasons)}"
        if reasons
        else f"none of {total} nodes fits"
    )


def _node_reason(part: str) -> str:
    for pattern, one, many in _NODE_REASONS:
        if found := re.fullmatch(pattern, part.rstrip(".")):
            detail = found[2].strip("{}: ") if found.re.groups > 1 else ""
            return f"{found[1]} {one if found[1] == '1' else many}".replace("@", _resource(detail))
    return part.rstrip(".")


_NODE_REASONS = (
    (r"(\d+) Insufficient (\S+)", "has too little free @", "have too little free @"),
    (
        r"(\d+) node\(s\) had untolerated taint\(s\)",
        "has a taint that the pod does not tolerate",
        "have taints that the pod does not tolerate",
    ),
    (r"(\d+) node\(s\) had untolerated taint ?(.*)", "has the taint @", "have the taint @"),
    (
        r"(\d+) node\(s\) didn't match Pod's node affinity/selector",
        "lacks the labels asked for",
        "lack the labels asked for",
    ),
    (
        r"(\d+) node\(s\) didn't match pod affinity rules",
        "is in another node group than the first worker",
        "are in other node groups than the first worker",
    ),
    (r"(\d+) node\(s\) were unschedulable", "is unschedulable", "are unschedulable"),
    (
        r"(\d+) node\(s\) had volume node affinity conflict",
        "is in another zone than the volume",
        "are in another zone than the volume",
    ),
    (r"(\d+) Too many pods", "has its maximum of pods", "have their maximum of pods"),
)
"""The messages of kube-scheduler's plugins (pkg/scheduler/framework/plugins), and their plain words for one
and for several nodes."""


def _resource(name: str) -> str:
    return {"cpu": "CPU", "memory": "memory", "nvidia.com/gpu": "GPUs (nvidia.com/gpu)"}.get(name, name)


def node_pressure(nodes: list[Document]) -> str:
    """Which nodes ran out of a resource and are tainted for it. The scheduler does not name the taint."""
    short = [
        f"{node['metadata']['name']} is short of {_PRESSURE[condition['type']]}"
        for node in nodes
        for condition in node.get("status", {}).get("conditions", [])
        if condition.get("type") in _PRESSURE and condition.get("status") == "True"
    ]
    return f"node {', '.join(short)} and accepts no new pods until then" if short else ""


_PRESSURE = {"DiskPressure": "disk", "MemoryPressure": "memory", "PIDPressure": "process IDs"}


def _image_reason(message: str) -> str:
    for needle, text in (
        ("not found", "the registry has no such image or tag"),
        ("NotFound", "the registry has no such image or tag"),
        ("unauthorized", "the registry requires a login"),
        ("authorization failed", "the registry requires a login, or has no such image"),
        ("denied", "the registry denies this cluster access, or has no such image"),
        ("no such host", "the registry's name does not resolve in the cluster"),
        ("connection refused", "the registry does not answer"),
        ("i/o timeout", "the registry does not answer"),
        ("no basic auth", "the registry requires a login"),
    ):
        if needle in message:
            return text
    return message.strip().splitlines()[-1][:200] if message.strip() else ""


def restarts(pod: Document) -> int:
    """How often the containers of a pod were restarted."""
    return sum(
        int(each.get("restartCount", 0)) for each in pod.get("status", {}).get("containerStatuses", [])
    )


def last_end(pod: Document) -> str:
    """How the restarted container of a pod had ended."""
    return next(
        (
            _last_end(each)
            for each in pod.get("status", {}).get("containerStatuses", [])
            if each.get("restartCount")
        ),
        "the reason is unknown",
    )


def _last_end(container: Document) -> str:
    ended = container.get("lastState", {}).get("terminated") or {}
    return ended_text(ended) if ended else "the reason is unknown"


def ended_text(ended: Document) -> str:
    """How a container ended."""
    if ended.get("reason") == "OOMKilled":
        return "it ran out of memory"
    code = ended.get("exitCode")
    message = str(ended.get("message") or "").strip().splitlines()
    return f"exit code {code}" + (f": {message[-1][:160]}" if message else "")


def exceeded_quota(message: str) -> str | None:
    """A rejection by a ResourceQuota in plain words; None if the message is about something else."""
    found = re.search(
        r"exceeded quota: ([^,]+), requested: (\S+), used: (\S+), limited: (\S+?)\.?$", message.strip()
    )
    if not found:
        return None
    name, requested, used, limit = found.groups()
    what, _, amount = requested.partition("=")
    limits = f"allows {limit.partition('=')[2]} {what}, {used.partition('=')[2]} are used"
    return f"the namespace's quota `{name}` {limits}, and this needs {amount} more"


def why_not_created(events: list[Document]) -> str:
    """Why pods of a Ray cluster could not be created, from its events; empty if no event reports it."""
    for event in sorted(events, key=_when, reverse=True):
        if event.get("type") == "Warning" and "Failed" in str(event.get("reason", "")):
            message = str(event.get("message", ""))
            return exceeded_quota(message) or message.rpartition(": ")[2][:240] or message[:240]
    return ""


def _when(event: Document) -> str:
    return str(
        event.get("lastTimestamp")
        or event.get("eventTime")
        or event.get("metadata", {}).get("creationTimestamp")
        or ""
    )


def queued(workload: Document | None, queue: str) -> str:
    """What a run in Kueue's queue waits for, and why it lost its place if it had one."""
    found = {each.get("type"): each for each in (workload or {}).get("status", {}).get("conditions", [])}
    evicted, reserved = found.get("Evicted", {}), found.get("QuotaReserved", {})
    waits = str(reserved.get("message") or "") if reserved.get("status") == "False" else ""
    if evicted.get("status") == "True":
        why = str(evicted.get("message") or "")
        return f"requeued in `{queue}`: {'; '.join(dict.fromkeys(each for each in (why, waits) if each))}"
    return f"queued in `{queue}`: {waits}" if waits else f"queued in `{queue}`"


def node_type(pod: Document) -> str:
    """head, worker, or submitter."""
    return str(pod.get("metadata", {}).get("labels", {}).get("ray.io/node-type") or "submitter")


def summary(pods: list[Document], workers: int) -> str:
    """One line for pods of a Ray cluster that are not all running yet."""
    running = [pod for pod in pods if is_ready(pod)]
    ready_workers = sum(is_ready(pod) for pod in pods if node_type(pod) == "worker")
    waits = [(pod, pod_wait(pod)) for pod in pods if not is_ready(pod)]
    waiting: dict[str, list[str]] = {}
    for pod, wait in waits:
        if wait.text:
            waiting.setdefault(wait.text, []).append(node_type(pod))
    if not waiting and len(running) == workers + 1:
        return ""
    head = "the head" if len(running) > ready_workers else "no head"
    progress = f"setting up: {ready_workers} of {workers} workers and {head} ready"
    return "; ".join([progress, *(f"{_who(names)} {text}" for text, names in waiting.items())])


def _who(names: list[str]) -> str:
    if len(names) == 1:
        return f"the {names[0]} waits:"
    kinds = sorted(set(names))
    return f"{len(names)} pods ({', '.join(kinds)}) wait:"


def is_ready(pod: Document) -> bool:
    """Whether a pod is ready."""
    conditions = pod.get("status", {}).get("conditions", [])
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def out_of_memory(pods: list[Document]) -> str:
    """The name of a pod that the kernel ended because it ran out of memory; empty if there is none."""
    for pod in pods:
        for container in pod.get("status", {}).get("containerStatuses", []):
            for state in (container.get("state", {}), container.get("lastState", {})):
                if (state.get("terminated") or {}).get("reason") == "OOMKilled":
                    return str(pod["metadata"]["name"])
    return ""
