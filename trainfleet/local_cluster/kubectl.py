"""kubectl of the very version of the API server, out of the same executable, as the cluster's administrator."""

from __future__ import annotations

import os
import subprocess

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.files import write_whole
from trainfleet.local_cluster import builds, pins
from trainfleet.local_cluster.state import State


def write_shim(it: State) -> None:
    """Put a `kubectl` into the state folder's bin, for machines that have none."""
    write_whole(
        it.file("bin", "kubectl"), f'#!/bin/sh\nexec {builds.executable(pins.KUBE)} kubectl "$@"\n', 0o755
    )


def kubectl(
    it: State, *arguments: str, check: bool = True, given: str | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run kubectl.

    Raises:
        TrainfleetError: it failed (unless `check` is off); with its last words.
    """
    command = [str(builds.executable(pins.KUBE)), "kubectl", f"--kubeconfig={it.kubeconfig}", *arguments]
    environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            input=given,
            env=environment,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        done = subprocess.CompletedProcess(command, 124, "", f"no answer in {timeout:.0f} s")
    except FileNotFoundError:  # the pins were changed, or the cache was emptied, since the last `up`
        done = subprocess.CompletedProcess(command, 127, "", "kubectl is not built: trainfleet cluster up")
    if check and done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-2:]
        raise TrainfleetError(
            "the cluster refused", [Problem(f"kubectl {' '.join(arguments[:3])}", " / ".join(said))]
        )
    return done
