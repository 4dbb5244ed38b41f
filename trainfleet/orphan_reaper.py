"""Ends what a killed launcher leaves: watches the launcher's processes, and kills them when its stdin closes.

Started by `trainfleet.process`, with the launcher's process id. Most of a run dies with its parent by the
kernel's hand; some
of Ray's own processes do not (its agents watch their raylet, and miss its death inside some containers). Easy
to get wrong:
once the launcher is dead nothing says whose they were, so they are noted while it lives.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path

LOOK_EVERY_S = 1.0
QUIET_SCANS = 5
SCAN_EVERY_S = 0.2

Process = tuple[int, str]
"""Process id and start time: an id alone may be given to another process."""


def table() -> dict[Process, int]:
    """Every process and its parent's id (Linux; empty elsewhere)."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                found[int(folder.name), fields[19]] = int(fields[1])
    return found


def below(roots: set[int], processes: dict[Process, int]) -> set[Process]:
    """The processes whose ancestors include one of `roots`."""
    found: set[Process] = set()
    while more := {process for process, parent in processes.items() if parent in roots} - found:
        found |= more
        roots = {pid for pid, _ in more}
    return found


def main() -> None:
    """Watch until the launcher ends, then kill until nothing of its run has been there for a second."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    launcher, noted = int(sys.argv[1]), set[Process]()
    while not select.select([sys.stdin], [], [], LOOK_EVERY_S)[0]:
        noted |= below({launcher}, table())
    quiet = 0
    while quiet < QUIET_SCANS:
        processes = table()
        noted |= below({pid for pid, _ in noted & processes.keys()}, processes)
        left = {pid for pid, _ in noted & processes.keys()} - {os.getpid()}
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        quiet = 0 if left else quiet + 1
        time.sleep(SCAN_EVERY_S)


if __name__ == "__main__":
    main()
