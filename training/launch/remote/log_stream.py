"""What a run says, read from its submitter's pod while it goes on: events as documents, everything else as
lines.

Used by `trainfleet.training.launch.kuberay.follow` and `trainfleet runs`. Easy to get wrong: a log breaks off
and begins again (a connection, the
submitter's container, the head), and nothing may be heard twice.
"""

from __future__ import annotations

import contextlib
import json
import queue
import re
import threading
from collections.abc import Iterator
from typing import Any

from trainfleet.training.launch.kuberay.client import ApiError, Cluster

CONTAINER = "ray-job-submitter"
AGAIN_S = 1.0

Line = dict[str, Any] | str


def parse(text: str) -> Line:
    """A line as the event that it is, or as it stands."""
    if text.startswith('{"kind":'):
        with contextlib.suppress(ValueError):
            event = json.loads(text)
            if isinstance(event, dict) and isinstance(event.get("kind"), str):
                return event
    return text


class Once:
    """Lets each line of an attempt through once, however often its log begins again."""

    def __init__(self) -> None:
        self._attempt: str | None = None
        self._heard = self._skip = 0

    def __call__(self, line: Line) -> bool:
        """Whether this line has not been heard yet."""
        if isinstance(line, dict) and line["kind"] == "submitter":
            return True
        if isinstance(line, dict) and line["kind"] == "attempt":
            same = line["started"] == self._attempt
            self._attempt, self._skip = line["started"], self._heard if same else 0
            self._heard = self._heard if same else 0
            return not same
        if self._skip:
            self._skip -= 1
            return False
        self._heard += 1
        return True


class RunLog:
    """The log of a run, read by a thread of its own as soon as there is one."""

    def __init__(self, cluster: Cluster, job: str) -> None:
        self.cluster, self.job = cluster, job
        self.ended = False
        self._queue: queue.SimpleQueue[Line] = queue.SimpleQueue()
        self._once = Once()
        self._pods: set[str] = set()
        self._closed = threading.Event()
        self._done: set[str] = set()

    def look_at(self, submitters: list[dict[str, Any]]) -> None:
        """Read the logs of these pods that are not read yet."""
        for pod in submitters:
            name, phase = pod["metadata"]["name"], pod.get("status", {}).get("phase")
            if phase in ("Succeeded", "Failed"):
                self._done.add(name)
            if name not in self._pods and phase in ("Running", "Succeeded", "Failed"):
                self._pods.add(name)
                self.ended = False
                threading.Thread(target=self._read, args=(name,), daemon=True, name=f"log-{name}").start()

    def drain(self) -> Iterator[Line]:
        """What has been said since the last call."""
        while True:
            try:
                yield self._queue.get_nowait()
            except queue.Empty:
                return

    def close(self) -> None:
        """Read no further."""
        self._closed.set()

    def _read(self, pod: str) -> None:
        last = ""
        while not self._closed.is_set():
            over = (
                pod in self._done
            )  # looked at before the log is, so that what came in between is read in the next round
            try:
                for when, text in self.cluster.log(pod, CONTAINER, follow=not over, since=_seconds(last)):
                    if when <= last:
                        continue
                    last = when
                    line = parse(text)
                    if self._once(line):
                        self._queue.put(line)
                    if self._closed.is_set():
                        return
            except ApiError as error:
                if error.status == 404:
                    break
            if over:
                break
            self._closed.wait(AGAIN_S)
        self.ended = True


def _seconds(when: str) -> str | None:
    """A log's time as the API takes it: whole seconds, rounded down, for what stands twice is left out by its
    own time.
    """
    return re.sub(r"\.\d+", "", when) or None
