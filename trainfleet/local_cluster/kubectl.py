"""Runs kubectl as the cluster's administrator, in the API server's version."""

from __future__ import annotations

import os
import subprocess

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.files import write_whole
from trainfleet.local_cluster import builds, pins
from trainfleet.local_cluster.state import State


def write_shim(state: State) -> None:
    """Write a `kubectl` into the state folder's bin, for machines without one."""
    script = f'#!/bin/sh\nexec {builds.executable(pins.KUBE)} kubectl "$@"\n'
    write_whole(state.file("bin", "kubectl"), script, 0o755)


def kubectl(
    state: State, *arguments: str, check: bool = True, stdin: str | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run kubectl, without a proxy.

    Raises:
        TrainfleetError: it failed (only with `check`); with the end of its output.
    """
    command = [str(builds.executable(pins.KUBE)), "kubectl", f"--kubeconfig={state.kubeconfig}", *arguments]
    environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            input=stdin,
            env=environment,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        done = subprocess.CompletedProcess(command, 124, "", f"no answer in {timeout:.0f} s")
    except FileNotFoundError:  # the pins changed, or the cache was emptied, since the last `up`
        done = subprocess.CompletedProcess(command, 127, "", "kubectl is not built: trainfleet cluster up")
    if check and done.returncode:
        output = (done.stderr or done.stdout).strip().splitlines()[-2:]
        raise TrainfleetError(
            "the cluster rejected a request",
            [Problem(f"kubectl {' '.join(arguments[:3])}", " / ".join(output))],
        )
    return done
