"""The submitter: submits the run to a Ray cluster, prints its driver's lines, and submits it again to a new
head.

KubeRay runs it in a pod, `ray up`'s follower on this machine. RAY_DASHBOARD_ADDRESS, RAY_JOB_SUBMISSION_ID
and the token are in its environment.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from trainfleet.training.launch.remote import lost_pod_watcher
from trainfleet.training.launch.remote.ray_job import DOCUMENT, FILES_FOLDER, JOB_FILE, RECIPE_FILE, RayJob
from trainfleet.training.runtime import events

RETRY_S = 1.0
HEAD_LOST_S = 600.0
"""How long Ray's head may be lost until that is reported as a failure."""
HEAD_LOST = "head-lost"
"""The key of that message: a run that survives the loss may fail later."""
MAX_REASON = 500
"""Characters of Ray's reason for a failure: its end has the last lines of the log."""
CONNECT_S = 3.0
"""Timeout of a connection. The address of a head that is gone does not answer, and TCP would wait 2 minutes.
"""
POLL_S = 2.0
LOST_DRIVER = ("JOB_SUPERVISOR_ACTOR_DIED", "JOB_SUPERVISOR_ACTOR_START_FAILURE")
"""Why Ray says that a job failed whose driver's pod was lost (ray.dashboard.modules.job.common.JobErrorType).
"""


class Submitter:
    """One run and the head's job server."""

    def __init__(self, address: str, name: str, files: Path) -> None:
        self.address = url(address)
        self.name = name
        self._job = RayJob.read(files / JOB_FILE)
        self._variables = {**self._job.env, DOCUMENT: (files / RECIPE_FILE).read_text(encoding="utf-8")}
        self._attempt, self._printed = "", 0
        self._seen = time.monotonic()

    def run(self) -> int:
        """Until Ray reports that the job has ended: 0, whatever its result, which KubeRay reads itself."""
        reported = ""
        while True:
            try:
                with socket.create_connection(self._endpoint(), CONNECT_S) as probe:
                    head = str(probe.getpeername()[0])
                client = self._client()
                self._submit(client)
                self._seen = time.monotonic()
                asyncio.run(self._print_lines_of(client, head))
                status = client.get_job_status(self.name)
                if status.is_terminal() and not self._driver_was_lost(client):
                    if status.value == "FAILED":
                        self._notify(str(client.get_job_info(self.name).message or "Ray gives no reason"))
                    return 0
            except Exception as error:  # noqa: BLE001 - a head that is gone or not ready raises many kinds
                if _first_line(error) != reported:
                    reported = _first_line(error)
                    text = f"waiting for Ray at {self.address}: {reported}"
                    _print(json.dumps({"kind": "submitter", "text": text}) + "\n")
                if time.monotonic() - self._seen > HEAD_LOST_S:
                    self._seen = float("inf")
                    text = f"Ray's head has not answered for {HEAD_LOST_S / 60:.0f} minutes"
                    self._notify(text, HEAD_LOST)
            time.sleep(RETRY_S)

    def _notify(self, text: str, key: str = "") -> None:
        """Report the failure of the run, unless its driver did. NOTE: the driver may have died.

        `key` is that of a message which does not replace the one of the run's end.
        """
        from trainfleet.training.notifications import notify_failure
        from trainfleet.training.recipe.validation import check

        env = self._job.env
        recipe, _ = check(yaml.safe_load(self._variables[DOCUMENT]))
        if recipe is not None:
            run_dir = Path(env[events.RUN_DIR])
            last = " ".join(text.split())[-MAX_REASON:]
            launch = env[events.LAUNCH]
            notify_failure(recipe, run_dir, launch, os.environ, text=last, on_dropped=_warn, key=key)

    def _driver_was_lost(self, client: Any) -> bool:
        """Whether the job ended because its driver's pod did. It is then deleted, to be submitted again.

        NOTE: KubeRay ends a RayJob whose job has failed only after the submitter has ended (K8sJobMode).
        """
        lost = bool(self._job.resources) and client.get_job_info(self.name).error_type in LOST_DRIVER
        if lost:
            client.delete_job(self.name)
        return lost

    def _endpoint(self) -> tuple[str, int]:
        parts = urlsplit(self.address)
        return str(parts.hostname), parts.port or 8265

    async def _print_lines_of(self, client: Any, head: str) -> None:
        """Print the driver's lines until they end, or the name resolves to another head.

        NOTE: a machine that is lost does not close its connections, so the stream alone would wait for ever.
        """
        printing = asyncio.create_task(self._print_lines(client))
        try:
            while not printing.done():
                await asyncio.wait({printing}, timeout=POLL_S)
                loop = asyncio.get_running_loop()
                try:
                    found = await loop.getaddrinfo(*self._endpoint(), type=socket.SOCK_STREAM)
                except OSError:  # no answer from the name server says nothing about the head
                    continue
                if head not in {each[4][0] for each in found} and not printing.done():
                    raise ConnectionError("the head was replaced")
            await printing
        finally:
            printing.cancel()

    def _client(self) -> Any:
        from ray.job_submission import JobSubmissionClient

        return JobSubmissionClient(self.address)

    def _submit(self, client: Any) -> None:
        """Submit the job unless this head has it, and announce the attempt whose lines follow."""
        known = {each.submission_id: each for each in client.list_jobs()}
        if self.name not in known:
            client.submit_job(
                entrypoint=self._job.entrypoint,
                submission_id=self.name,
                runtime_env={"env_vars": self._variables},
                metadata=self._job.metadata,
                **({"entrypoint_resources": self._job.resources} if self._job.resources else {}),
            )
            known = {each.submission_id: each for each in client.list_jobs()}
        attempt = str(known[self.name].start_time)
        if attempt != self._attempt:
            self._attempt, self._printed = attempt, 0
            _print(json.dumps({"kind": "attempt", "started": attempt}) + "\n")

    async def _print_lines(self, client: Any) -> None:
        """Print each line of this attempt once: the log is read from its start after each reconnect."""
        rest, number = "", 0
        async for text in client.tail_job_logs(self.name):
            *lines, rest = (rest + text).split("\n")
            for line in lines:
                number += 1
                if number > self._printed:
                    self._printed = number
                    _print(line + "\n")
        if rest and number + 1 > self._printed:
            self._printed = number + 1
            _print(rest + "\n")


def url(address: str) -> str:
    """The URL of a head's dashboard, which KubeRay gives without a scheme."""
    return address if "://" in address else f"http://{address}"


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _warn(text: str) -> None:
    _print(json.dumps({"kind": "submitter", "text": text}) + "\n")


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:200]


def main() -> int:
    """Entry point of the submitter."""
    logging.disable(logging.CRITICAL)  # log lines would mix with the driver's
    files = Path(os.environ.get(FILES_FOLDER, "/etc/trainfleet"))
    address = os.environ["RAY_DASHBOARD_ADDRESS"]
    # The address is that of the head's service, CLUSTER-head-svc.NAMESPACE.svc.cluster.local:8265.
    cluster = address.partition(".")[0].removesuffix("-head-svc")
    lost_pod_watcher.start(cluster, url(address), _warn)
    return Submitter(address, os.environ["RAY_JOB_SUBMISSION_ID"], files).run()


if __name__ == "__main__":
    sys.exit(main())
