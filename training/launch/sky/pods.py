"""Calls kubectl, which SkyPilot needs too: whether a context works, what a run's pods wait for, and to stop
them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainfleet.errors import MissingToolError, Problem
from trainfleet.training.launch.remote.platform_objects import PlatformObject, missing
from trainfleet.training.launch.remote.pod_diagnostics import pod_wait
from trainfleet.training.launch.sky.task import RUN_LABEL

TIMEOUT_S = 15
LIST_TIMEOUT_S = 5.0
QUEUED = "queued: Kueue has not admitted the run yet"
STOP_FILE = "/tmp/trainfleet-stop"


def kubectl(context: str, *arguments: str, timeout_s: float = TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    """Call kubectl; a call that takes too long fails.

    Raises:
        MissingToolError: kubectl is missing.
    """
    program = shutil.which("kubectl")
    if program is None:
        raise MissingToolError(
            "kubectl is not installed",
            [Problem("kubectl", "is not on the path", "install it; SkyPilot needs it, and socat and nc")],
        )
    command = [program, "--context", context, f"--request-timeout={timeout_s:.0f}s", *arguments]
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s + 5,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer within {timeout_s:.0f} s")


def context_problem(context: str, namespace: str, required: Iterable[PlatformObject] = ()) -> str | None:
    """Why the context cannot be used, or what the pods need and the cluster lacks; None if it can be used."""
    done = kubectl(context, "auth", "can-i", "create", "pods", "--namespace", namespace)
    if done.returncode == 0:
        return _missing_objects(context, namespace, required) or None
    message = (done.stderr.strip() or done.stdout.strip() or "kubectl failed").splitlines()[-1]
    if "getting credentials" in message:
        return f"its login grants no token: {_plugin_error(done.stderr)}"
    if "does not exist" in message and "context" in message:
        return f"there is no context `{context}` in the kubeconfig: `trainfleet sky setup` writes it"
    if "nauthorized" in message or "logged in" in message:
        return "its token is not valid or has ended: `trainfleet sky setup` gets a new one"
    if message == "no":
        return f"its user may not create pods in {namespace}"
    return f"the cluster does not answer ({message})"


def _plugin_error(text: str) -> str:
    """What the login command printed before kubectl's own messages."""
    lines = [" ".join(line.split()) for line in text.splitlines() if "getting credentials" not in line]
    return next(reversed([line for line in lines if line]), "log in to the cloud again")


def _missing_objects(context: str, namespace: str, required: Iterable[PlatformObject]) -> str:
    def exists(each: PlatformObject) -> bool:
        done = kubectl(context, "get", each.kind, each.name, "--namespace", namespace, "--output", "name")
        return "(NotFound)" not in done.stderr

    found = missing(required, namespace, exists)
    return "; ".join(f"{each.where} {each.what} ({each.fix})" for each in found)


def live_pods(contexts: Mapping[str, str], run: str) -> list[tuple[str, dict[str, Any]]] | None:
    """The pods of a run that are not being deleted, with their context; None if no cluster answers."""
    found: list[tuple[str, dict[str, Any]]] = []
    answers = 0
    selector = f"{RUN_LABEL}={run}"
    for context, namespace in contexts.items():
        scope = ("--namespace", namespace, "--selector", selector, "--output", "json")
        done = kubectl(context, "get", "pods", *scope, timeout_s=LIST_TIMEOUT_S)
        if done.returncode == 0:
            answers += 1
            found += [(context, each) for each in json.loads(done.stdout)["items"] if _is_live(each)]
    return found if answers else None


@dataclass
class Waits:
    """Reports what the pods of a run wait for, each time that it changes."""

    contexts: Mapping[str, str]
    run: str
    note: Callable[[str], Any]
    last: str = ""

    def report(self) -> bool:
        """Look at the pods; whether Kueue holds back all of them."""
        pods = live_pods(self.contexts, self.run) or []
        held = bool(pods) and all(_is_queued(each) for _, each in pods)
        text = QUEUED if held else _why_waiting(each for _, each in pods)
        if text and text != self.last:
            self.note(text)
        self.last = text
        return held


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


def ask_to_stop(contexts: Mapping[str, str], run: str) -> int:
    """Ask the run's ranks to save and end after their step, on every cluster; how many pods were asked."""
    asked = 0
    for context, namespace in contexts.items():
        scope = ("--namespace", namespace)
        listed = kubectl(
            context, "get", "pods", *scope, "--selector", f"{RUN_LABEL}={run}", "--output", "name"
        )
        for pod in listed.stdout.split():
            done = kubectl(context, "exec", *scope, pod, "--container", "ray-node", "--", "touch", STOP_FILE)
            asked += done.returncode == 0
    return asked
