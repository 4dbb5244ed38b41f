"""One of several launches that race for a lease: prints `holds` or its refusal, and holds until stdin ends.

The first write waits for some seconds after the read before it, as in a launch whose store is slow.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from typing import Any

from trainfleet.errors import InputError
from trainfleet.training.stores import RetryPolicy, open_store
from trainfleet.training.stores.lease import Lease

say = functools.partial(print, flush=True)
HEARTBEAT_S = 1.0
SETTLE_S = 0.1


def main() -> None:
    url, group, delay_s = sys.argv[1], sys.argv[2], float(sys.argv[3])
    store = open_store(url, RetryPolicy(4, 0.05, 0.2, 20.0))
    lease = Lease(store, group, heartbeat_s=HEARTBEAT_S, settle_s=SETTLE_S)
    write, waited = lease._write, []

    def write_late(*arguments: Any) -> None:
        if not waited:
            waited.append(True)
            time.sleep(delay_s)
        write(*arguments)

    lease._write = write_late  # type: ignore[method-assign]  # only a delay
    store.read_versioned("none")  # connects
    say("ready")
    sys.stdin.readline()
    try:
        lease.acquire()
    except InputError as error:
        say("refused", " ".join(str(error).split()))
        return
    say("holds", os.getpid())
    sys.stdin.readline()
    lease.release()


if __name__ == "__main__":
    main()
