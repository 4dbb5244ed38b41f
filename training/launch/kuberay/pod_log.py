"""The log of a run on KubeRay, read from its submitter's pods while it runs."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Iterator
from typing import Any

from trainfleet.training.launch.remote.kubernetes import ApiError, Cluster
from trainfleet.training.launch.remote.log_stream import Line, Once, parse

CONTAINER = "ray-job-submitter"
RETRY_S = 1.0


class PodLog:
    """Reads each submitter's log in a thread, from the moment that it exists."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.ended = False
        self._queue: queue.SimpleQueue[Line] = queue.SimpleQueue()
        self._once = Once()
        self._started: set[str] = set()
        self._closed = threading.Event()
        self._completed: set[str] = set()

    def watch(self, submitters: list[dict[str, Any]]) -> None:
        """Read the logs of these pods that are not read yet."""
        for pod in submitters:
            name, phase = pod["metadata"]["name"], pod.get("status", {}).get("phase")
            if phase in ("Succeeded", "Failed"):
                self._completed.add(name)
            if name not in self._started and phase in ("Running", "Succeeded", "Failed"):
                self._started.add(name)
                self.ended = False
                threading.Thread(target=self._read, args=(name,), daemon=True, name=f"log-{name}").start()

    def drain(self) -> Iterator[Line]:
        """The lines since the last call."""
        while True:
            try:
                yield self._queue.get_nowait()
            except queue.Empty:
                return

    def close(self) -> None:
        """Stop reading."""
        self._closed.set()

    def _read(self, pod: str) -> None:
        last = ""
        while not self._closed.is_set():
            # Read before the log: lines that arrive in between are read in the next round.
            completed = pod in self._completed
            try:
                for when, text in self.cluster.log(
                    pod, CONTAINER, follow=not completed, since=whole_seconds(last)
                ):
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
            if completed:
                break
            self._closed.wait(RETRY_S)
        self.ended = True


def whole_seconds(when: str) -> str | None:
    """A log line's time for the API: whole seconds, rounded down. Repeated lines are dropped later."""
    return re.sub(r"\.\d+", "", when) or None
