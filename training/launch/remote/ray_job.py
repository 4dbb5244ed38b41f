"""The Ray job of a run, and the names, ports and files that KubeRay and `ray up` share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainfleet.training.launch.remote.follower import Message
from trainfleet.training.runtime import events

RAY_VERSION = "2.60.0"
ENTRYPOINT = "python -m trainfleet.training.launch.remote.entry"
SUBMIT = "trainfleet.training.launch.remote.submit"
"""The submitter's module."""
RECIPE_FILE, JOB_FILE = "recipe.yaml", "job.json"
"""The files that the submitter reads."""
DOCUMENT = "TRAINFLEET_RECIPE_DOCUMENT"
"""The recipe, as a variable of the driver: the pods of a long-lived cluster were created before the run."""
FILES_FOLDER = "TRAINFLEET_FILES"
"""The folder of the submitter's files."""
METRICS_PORT, DASHBOARD_PORT, HEAD_PORT, CLIENT_PORT, SERVE_PORT, AGENT_PORT = (
    8080,
    8265,
    6379,
    10001,
    8000,
    52365,
)
DRIVER, DRIVER_SHARE = "driver", 0.001
"""A resource of the pod of drivers, and how much of it one driver reserves: a long-lived cluster has several.
"""
OBJECT_STORE_BYTES = 200 * 2**20
"""Small, because the loop sends nothing through Ray's object store."""


class RayJob(Message):
    """What Ray's job server is asked to do; the content of JOB_FILE."""

    entrypoint: str
    env: dict[str, str]
    metadata: dict[str, str]
    resources: dict[str, float] = {}
    """What Ray reserves for the driver, which places it; empty: on the head."""


def ray_job(
    run: str,
    launch: str,
    allow_changes: Sequence[str],
    variables: Mapping[str, str],
    *,
    driver_pod: bool = False,
) -> RayJob:
    """The job of a run, with further `variables` of its driver. No secret is among them.

    `driver_pod`: whether the cluster has a pod for drivers, which offers DRIVER.
    """
    env = {
        events.EVENTS: events.STDOUT,
        events.LAUNCH: launch,
        events.SUBMITTED: "1",
        events.RUN_DIR: f"/tmp/trainfleet/runs/{run}",
        events.STOP_FILE: stop_file(launch),
        "PYTHONUNBUFFERED": "1",
        "TRAINFLEET_AUTOSCALED": "1",  # a new head has no workers yet; they come when they are requested
        **({events.ALLOW_CHANGES: ",".join(allow_changes)} if allow_changes else {}),
        **variables,
    }
    resources = {DRIVER: DRIVER_SHARE} if driver_pod else {}
    return RayJob(entrypoint=ENTRYPOINT, env=env, metadata={"run": run}, resources=resources)


def stop_file(launch: str) -> str:
    """The file whose appearance asks the ranks on a machine to save and end."""
    return f"/tmp/trainfleet-stop-{launch}"
