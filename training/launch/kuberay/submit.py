"""What the submitter's pod does: hand the run to the Ray cluster, repeat its driver's lines, and hand it over
again to a new head.

Started by the Kubernetes Job that KubeRay makes, with RAY_DASHBOARD_ADDRESS, RAY_JOB_SUBMISSION_ID and the
token in its environment.
Easy to get wrong: a head that comes back knows nothing of the job, and a connection that breaks off is not
its end; and the lines
that were repeated before must not be repeated again.
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

from trainfleet.training.launch.kuberay.manifest import DOCUMENT, JOB_FILE, RECIPE_FILE

AGAIN_S = 1.0
CONNECT_S = 3.0
"""How long a head may take to answer a knock. The address of one that is gone is silent, and a connection
waits two minutes for it.
"""
LOOK_EVERY_S = 2.0


class Submitter:
    """One run and the head's job server."""

    def __init__(self, address: str, name: str, files: Path) -> None:
        self.address = address if "://" in address else f"http://{address}"
        self.name = name
        job = json.loads((files / JOB_FILE).read_text(encoding="utf-8"))
        self._entrypoint, self._metadata = str(job["entrypoint"]), job["metadata"]
        self._variables = {**job["env"], DOCUMENT: (files / RECIPE_FILE).read_text(encoding="utf-8")}
        self._attempt, self._seen = "", 0

    def run(self) -> int:
        """Until Ray says that the job has ended: 0, for how it ended is KubeRay's to ask."""
        told = ""
        while True:
            try:
                with socket.create_connection(self._where(), CONNECT_S) as knock:
                    head = str(knock.getpeername()[0])
                client = self._client()
                self._hand_over(client)
                asyncio.run(self._repeat_while_there(client, head))
                if client.get_job_status(self.name).is_terminal():
                    return 0
            except Exception as error:  # noqa: BLE001 - a head that is gone or not yet there raises whatever its connection did
                if _first_line(error) != told:
                    told = _first_line(error)
                    _say(
                        json.dumps(
                            {"kind": "submitter", "text": f"waiting for Ray at {self.address}: {told}"}
                        )
                        + "\n"
                    )
            time.sleep(AGAIN_S)

    def _where(self) -> tuple[str, int]:
        parts = urlsplit(self.address)
        return str(parts.hostname), parts.port or 8265

    async def _repeat_while_there(self, client: Any, head: str) -> None:
        """Repeat the driver's lines until they end, or the name leads to another head: a machine that is gone
        does not say goodbye.
        """
        repeating = asyncio.create_task(self._repeat(client))
        try:
            while not repeating.done():
                await asyncio.wait({repeating}, timeout=LOOK_EVERY_S)
                try:
                    found = await asyncio.get_running_loop().getaddrinfo(
                        *self._where(), type=socket.SOCK_STREAM
                    )
                except OSError:  # a name server that is away says nothing of the head
                    continue
                if head not in {each[4][0] for each in found} and not repeating.done():
                    raise ConnectionError("the head is another one now")
            await repeating
        finally:
            repeating.cancel()

    def _client(self) -> Any:
        from ray.job_submission import JobSubmissionClient

        return JobSubmissionClient(self.address)

    def _hand_over(self, client: Any) -> None:
        """Submit the job unless this head has it, and note which attempt is being repeated."""
        known = {each.submission_id: each for each in client.list_jobs()}
        if self.name not in known:
            client.submit_job(
                entrypoint=self._entrypoint,
                submission_id=self.name,
                runtime_env={"env_vars": self._variables},
                metadata=self._metadata,
            )
            known = {each.submission_id: each for each in client.list_jobs()}
        attempt = str(known[self.name].start_time)
        if attempt != self._attempt:
            self._attempt, self._seen = attempt, 0
            _say(json.dumps({"kind": "attempt", "started": attempt}) + "\n")

    async def _repeat(self, client: Any) -> None:
        rest, number = "", 0
        async for text in client.tail_job_logs(self.name):
            *lines, rest = (rest + text).split("\n")
            for line in lines:
                number += 1
                if number > self._seen:
                    self._seen = number
                    _say(line + "\n")
        if rest and number + 1 > self._seen:
            self._seen = number + 1
            _say(rest + "\n")


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:200]


def main() -> int:
    """The submitter's pod."""
    logging.disable(logging.CRITICAL)  # its lines would stand between the driver's
    files = Path(os.environ.get("TRAINFLEET_FILES", "/etc/trainfleet"))
    return Submitter(os.environ["RAY_DASHBOARD_ADDRESS"], os.environ["RAY_JOB_SUBMISSION_ID"], files).run()


if __name__ == "__main__":
    sys.exit(main())
