"""How long a launch whose log is written prints no step, and no new one."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable

from tests.cluster.launches import Launch

STEP = re.compile(rb"step +(\d+)/")


class Pauses(threading.Thread):
    """Watches a run's log for the longest time without any step, and for the longest without a new one.

    Between them are the steps since the newest checkpoint, which a restarted run repeats.
    """

    def __init__(self, launch: Callable[[], Launch]) -> None:
        super().__init__(daemon=True)
        self._launch, self.highest = launch, launch().step()
        self.stopped = self.behind = 0.0
        self.last = self.last_new = time.monotonic()
        self.over = threading.Event()

    def run(self) -> None:
        log = self._launch().log
        done = log.stat().st_size
        while not self.over.wait(0.1):
            if self._launch().log != log:
                log, done = self._launch().log, 0
            with log.open("rb") as file:
                file.seek(done)
                lines = file.read()
            lines = lines[: lines.rfind(b"\n") + 1]
            done += len(lines)
            step = max((int(found[1]) for found in map(STEP.match, lines.splitlines()) if found), default=0)
            now = time.monotonic()
            if step:
                self.stopped, self.last = max(self.stopped, now - self.last), now
            if step > self.highest:
                self.behind = max(self.behind, now - self.last_new)
                self.highest, self.last_new = step, now

    def __enter__(self) -> Pauses:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.join()
