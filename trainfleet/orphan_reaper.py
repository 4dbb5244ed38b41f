"""Kills what a killed launcher leaves: watches the launcher's processes, and kills them when its stdin
closes.

The kernel ends most of a run with its parent, but not some of Ray's processes: its agents watch their raylet,
and miss its death inside some containers.

NOTE: after the launcher's death nothing shows which processes were its own, so they are recorded while it
    lives.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path

DAEMONS = (b"sky.server.server",)
"""Servers that a launch may start and that outlive it. SkyPilot's client starts its server again if it ended
during a launch, and managed jobs end with the server (sky.server.common, _start_api_server).
"""
POLL_S = 1.0
QUIET_SCANS = 5
SCAN_EVERY_S = 0.2

Process = tuple[int, str]
"""Process id and start time: an id alone may be reused."""


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


def is_daemon(pid: int) -> bool:
    """Whether a process is one of DAEMONS, by its command line (Linux; false elsewhere)."""
    with contextlib.suppress(OSError):
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return any(name in arguments for name in DAEMONS)
    return False


def started_by(roots: set[int], processes: dict[Process, int]) -> set[Process]:
    """The processes whose ancestors include one of `roots`, without daemons and what those have started."""
    others = {process: parent for process, parent in processes.items() if not is_daemon(process[0])}
    return below(roots, others)


def main() -> None:
    """Watch until the launcher ends, then kill until none of its processes was seen for a second."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    launcher, recorded = int(sys.argv[1]), set[Process]()
    while not select.select([sys.stdin], [], [], POLL_S)[0]:
        recorded |= started_by({launcher}, table())
    quiet = 0
    while quiet < QUIET_SCANS:
        processes = table()
        recorded |= started_by({pid for pid, _ in recorded & processes.keys()}, processes)
        left = {pid for pid, _ in recorded & processes.keys() if not is_daemon(pid)} - {os.getpid()}
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        quiet = 0 if left else quiet + 1
        time.sleep(SCAN_EVERY_S)


if __name__ == "__main__":
    main()
