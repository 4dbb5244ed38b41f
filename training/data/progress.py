"""What a preparation says while it works: a note to the launcher every two seconds, or a line on a cluster's
log.

Used by workloads, as `prepare(..., progress=announce("lm"))`. Easy to get wrong: only the rank that prepares
speaks; the others wait
for its lock.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from trainfleet.training.runtime.events import EVENTS, Sink

EVERY_S = 2.0
FIRST_S = 1.0


def announce(name: str) -> Callable[[str, int, int], Any]:
    """A function that tells how far the preparation `name` is, seldom enough to be read; silent where it is
    done in a second.
    """
    address = os.environ.get(EVENTS)
    last = time.monotonic() - EVERY_S + FIRST_S

    def tell(what: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last < EVERY_S or done == total:
            return
        last = time.monotonic()
        text = f"preparing data ({name}): {what} {done}/{total}"
        if address is None:
            sys.stderr.write(f"{text}\n")
            return
        sink = Sink(address)
        sink.send("note", text=text)
        sink.close()

    return tell
