"""The control groups of the cluster's pods: one folder in each hierarchy of this machine, created before the
kubelet needs it. Supports version 1, version 2 and both together.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from trainfleet.errors import Problem, TrainfleetError

LIMIT_S = 15.0


def hierarchies() -> list[Path]:
    """The mount points of the control group hierarchies."""
    rows = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    return [Path(row[1]) for row in rows if row[2] in ("cgroup", "cgroup2")]


def create(name: str) -> None:
    """Create the folder in each hierarchy."""
    for root in hierarchies():
        folder = root / name
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
        # Version 1: a new group has no processor until it is assigned some.
        for setting in ("cpuset.mems", "cpuset.cpus"):
            with contextlib.suppress(OSError):
                if not (folder / setting).read_text().strip():
                    (folder / setting).write_text((root / setting).read_text())


def existing(name: str) -> list[Path]:
    """The folders of this name, at most one per hierarchy."""
    return [root / name for root in hierarchies() if (root / name).is_dir()]


def remove(name: str) -> None:
    """Remove the folder and its subfolders, leaves first, in each hierarchy.

    Raises:
        TrainfleetError: a process still runs in one of them.
    """
    deadline = time.monotonic() + LIMIT_S
    while left := existing(name):
        for top in left:
            folders = [path for path in top.rglob("*") if path.is_dir()]
            for folder in sorted(folders, key=lambda path: len(path.parts), reverse=True):
                with contextlib.suppress(OSError):
                    folder.rmdir()
            with contextlib.suppress(OSError):
                top.rmdir()
        if time.monotonic() > deadline:
            raise TrainfleetError(
                "a control group cannot be removed",
                [Problem(str(left[0]), "is still in use", f"see {left[0]}/cgroup.procs")],
            )
        time.sleep(0.05)
