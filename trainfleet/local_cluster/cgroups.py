"""The control groups of the cluster's pods: one folder in each hierarchy of this machine, made before the
kubelet asks for it.

Works with version 1, version 2 and both side by side. Easy to get wrong: a group is removed from the leaves
up, and only when the
last of its processes has been waited for.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from trainfleet.errors import Problem, TrainfleetError

LIMIT_S = 15.0


def hierarchies() -> list[Path]:
    """Where hierarchies of control groups are mounted."""
    rows = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    return [Path(row[1]) for row in rows if row[2] in ("cgroup", "cgroup2")]


def make(name: str) -> None:
    """Make the folder in each hierarchy."""
    for root in hierarchies():
        folder = root / name
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
        for setting in (
            "cpuset.mems",
            "cpuset.cpus",
        ):  # version 1: a new group may use no processor until it is told
            with contextlib.suppress(OSError):
                if not (folder / setting).read_text().strip():
                    (folder / setting).write_text((root / setting).read_text())


def here(name: str) -> list[Path]:
    return [root / name for root in hierarchies() if (root / name).is_dir()]


def remove(name: str) -> None:
    """Remove the folder and all below it, in each hierarchy.

    Raises:
        TrainfleetError: something still runs in one of them.
    """
    deadline = time.monotonic() + LIMIT_S
    while left := here(name):
        for top in left:
            for folder in sorted(
                (path for path in top.rglob("*") if path.is_dir()),
                key=lambda path: len(path.parts),
                reverse=True,
            ):
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
