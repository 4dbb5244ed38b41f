"""The log of a run on KubeRay, read from its submitter's pod while it runs."""

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
TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT")


class PodLog:
    """Reads the newest submitter's log in a thread. It repeats what an older submitter has printed."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.ended = False
        self.rejected = ""
        """Why the log could not be read at the last attempt, if the API server or the kubelet rejected it."""
        self._queue: queue.SimpleQueue[Line] = queue.SimpleQueue()
        self._once = Once()
        self._newest = ""
        self._lock = threading.Lock()
        """Held while lines are counted: the thread of an older submitter may still be reading."""
        self._closed = threading.Event()
        self._completed: set[str] = set()

    def watch(self, submitters: list[dict[str, Any]]) -> None:
        """Read the log of the newest of these pods that has started."""
        started = []
        for pod in submitters:
            name, phase = pod["metadata"]["name"], pod.get("status", {}).get("phase")
            if phase in ("Succeeded", "Failed"):
                self._completed.add(name)
            if phase in ("Running", "Succeeded", "Failed"):
                started.append((str(pod["metadata"].get("creationTimestamp") or ""), name))
        newest = max(started, default=("", ""))[1]
        if newest and newest != self._newest:
            with self._lock:
                self._newest, self.ended = newest, False
            threading.Thread(target=self._read, args=(newest,), daemon=True, name=f"log-{newest}").start()

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
                    self.rejected = ""
                    # A message of the kubelet, for example that the container is gone, has no time.
                    if when <= last or not TIMESTAMP.match(when):
                        continue
                    last = when
                    if not self._pass_on(pod, parse(text)):
                        return
            except ApiError as error:
                if error.status == 404:
                    break
                # 0: the connection was lost, 400: the container has not started.
                self.rejected = error.message if error.status not in (0, 400) else ""
            if completed:
                break
            self._closed.wait(RETRY_S)
        with self._lock:
            self.ended = self.ended or pod == self._newest

    def _pass_on(self, pod: str, line: Line) -> bool:
        """Queue a line that is new; False once nobody reads this pod's log any more."""
        with self._lock:
            if self._closed.is_set() or pod != self._newest:
                return False
            if self._once(line):
                self._queue.put(line)
            return True


def whole_seconds(when: str) -> str | None:
    """A log line's time for the API: whole seconds, rounded down. Repeated lines are dropped later."""
    return re.sub(r"\.\d+", "", when) or None
