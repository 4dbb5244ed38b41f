"""Calls kubectl, which SkyPilot needs too: whether a context works, and to stop the pods of a run."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping

from trainfleet.errors import MissingToolError, Problem
from trainfleet.training.launch.sky.task import RUN_LABEL

TIMEOUT_S = 15
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


def context_problem(context: str, namespace: str) -> str | None:
    """Why the context cannot be used; None if it can."""
    done = kubectl(context, "auth", "can-i", "create", "pods", "--namespace", namespace)
    if done.returncode == 0:
        return None
    message = (done.stderr.strip() or done.stdout.strip() or "kubectl failed").splitlines()[-1]
    if "does not exist" in message and "context" in message:
        return f"there is no context `{context}` in the kubeconfig: `trainfleet sky setup` writes it"
    if "nauthorized" in message or "logged in" in message:
        return "its token is not valid or expired: `trainfleet sky setup` writes a new one"
    if message == "no":
        return f"its user may not create pods in {namespace}"
    return f"the cluster does not answer ({message})"


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
