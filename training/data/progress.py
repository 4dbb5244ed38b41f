"""Reports the progress of a preparation: events to the launcher, or lines in a cluster's log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from trainfleet.training.runtime.events import EVENTS, EventSink

EVERY_S = 2.0
FIRST_S = 1.0


def progress_reporter(name: str) -> Callable[[str, int, int], Any]:
    """A callback for `prepare(..., progress=...)` that reports every two seconds, first after one second."""
    address = os.environ.get(EVENTS)
    last = time.monotonic() - EVERY_S + FIRST_S

    def report(what: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last < EVERY_S or done == total:
            return
        last = time.monotonic()
        text = f"preparing data ({name}): {what} {done}/{total}"
        if address is None:
            sys.stderr.write(f"{text}\n")
            return
        sink = EventSink(address)
        sink.send("note", text=text)
        sink.close()

    return report
