"""Whether the machines of `--cluster NAME` are free.

They take one run at a time, of all users: a launch starts Ray on them again, so that it has the files and
variables of its run.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.training.launch.ray_up import processes
from trainfleet.training.launch.ray_up.cluster_yaml import cluster_files, write
from trainfleet.training.launch.ray_up.run_spec import RunSpec, state_folder
from trainfleet.training.launch.remote.ray_job import DASHBOARD_PORT
from trainfleet.workspace import workspace

LOOK_S = 15.0
"""How long a head may take to answer; one that does not is taken for one that does not exist."""
TIMEOUT_S = 3.0
ACTIVE = ("PENDING", "RUNNING")


def require_idle(run: RunSpec, env: Mapping[str, str]) -> None:
    """Check that no run trains on the machines, if there are any.

    Raises:
        InputError: one does, or another machine has the head's token.
    """
    with workspace() as work:
        cluster = state_folder(run.name) / "cluster.yaml"
        if not cluster.exists():  # another machine may have started them
            cluster = work / "cluster.yaml"
            write(run, cluster, env)
        token = cluster_files(cluster).token.read_text(encoding="utf-8").strip()
        answer = _jobs(cluster, token)
    if answer is None:
        return
    where = f"--cluster {run.name}"
    if answer.status_code in (401, 403):
        what = "its head does not accept this machine's token: another machine started it"
        fix = f"launch from that machine, or give {state_folder(run.name)} of it to this one"
        raise InputError("the Ray cluster cannot be used", [Problem(where, what, fix)])
    active = [str(each.get("submission_id")) for each in answer.json() if each.get("status") in ACTIVE]
    if active:
        fix = "wait for its end, stop it, or name another --cluster"
        problem = Problem(where, f"trains {', '.join(active)}; it takes one run at a time", fix)
        raise InputError("the Ray cluster is not free", [problem])


def _jobs(cluster: Path, token: str) -> Any:
    """The head's answer about its jobs; None if nothing answers."""
    import requests

    deadline = time.monotonic() + LOOK_S
    with processes.tunnel(str(cluster), DASHBOARD_PORT) as address:
        while time.monotonic() < deadline:
            with contextlib.suppress(requests.RequestException):
                headers = {"Authorization": f"Bearer {token}"}
                answer = requests.get(f"{address}/api/jobs/", headers=headers, timeout=TIMEOUT_S)
                if answer.ok or answer.status_code in (401, 403):
                    return answer
            time.sleep(processes.TICK_S)
    return None
