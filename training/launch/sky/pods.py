"""Asks the clusters themselves, by kubectl: whether a context answers, and the pods of a run to stop after
their step.

Used by `trainfleet.training.launch.sky.follow` and `trainfleet sky check`. SkyPilot needs kubectl too, so
nothing more is asked of the machine.
Easy to get wrong: a context that does not answer must cost seconds, not kubectl's own patience.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping

from trainfleet.errors import MissingToolError, Problem
from trainfleet.training.launch.sky.task import RUN_LABEL

ANSWER_S = 15
STOP_FILE = "/tmp/trainfleet-stop"


def kubectl(context: str, *arguments: str, timeout_s: float = ANSWER_S) -> subprocess.CompletedProcess[str]:
    """Call kubectl; a call that takes too long has failed.

    Raises:
        MissingToolError: there is none.
    """
    program = shutil.which("kubectl")
    if program is None:
        raise MissingToolError(
            "kubectl is not installed here",
            [Problem("kubectl", "is not on the path", "SkyPilot needs it, and socat and nc")],
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


def trouble(context: str, namespace: str) -> str | None:
    """Why the context cannot be used, in words; nothing when it can."""
    done = kubectl(context, "auth", "can-i", "create", "pods", "--namespace", namespace)
    if done.returncode == 0:
        return None
    said = (done.stderr.strip() or done.stdout.strip() or "kubectl failed").splitlines()[-1]
    if "does not exist" in said and "context" in said:
        return f"there is no context `{context}` in the kubeconfig: `trainfleet sky setup` writes it"
    if "nauthorized" in said or "logged in" in said:
        return "its token is not valid (any more): `trainfleet sky setup` writes a new one"
    if said == "no":
        return f"its user may not make pods in {namespace}"
    return f"the cluster does not answer ({said})"


def ask_to_stop(contexts: Mapping[str, str], run: str) -> int:
    """Have the run's ranks save and end after their step, wherever they are; how many pods were told."""
    told = 0
    for context, namespace in contexts.items():
        here = ("--namespace", namespace)
        listed = kubectl(
            context, "get", "pods", *here, "--selector", f"{RUN_LABEL}={run}", "--output", "name"
        )
        for pod in listed.stdout.split():
            done = kubectl(context, "exec", *here, pod, "--container", "ray-node", "--", "touch", STOP_FILE)
            told += done.returncode == 0
    return told
