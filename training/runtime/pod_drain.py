"""A pod that is drained keeps its ranks until their checkpoint is complete.

`python -m trainfleet.training.runtime.pod_drain SECONDS` is the first command of a worker's preStop hook. It
gives Ray a preemption notice for the pod, upon which the run saves, and returns when every rank of the pod
saved or ended. Each rank keeps a note in a folder of the pod. Without a rank it returns at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

RANKS = "TRAINFLEET_RANKS"
"""Folder of the notes of a pod's ranks, one file per process: its number and start. Set by the launcher of
pods; without it, nobody waits for the ranks.
"""
TRAINING, SAVED = "training", "saved"
NOTICE_TIMEOUT_S = 60.0
"""How long Ray may take to accept the notice; a head that does not answer is lost, and its run with it."""
POLL_S = 0.2


class RankNote:
    """The note of this process. The file exists while the block runs."""

    def __init__(self, env: Mapping[str, str]) -> None:
        folder, own = env.get(RANKS), os.getpid()
        self._file = Path(folder) / f"{own}-{_started(own)}" if folder else None

    def __enter__(self) -> RankNote:
        self._write(TRAINING)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def saved(self) -> None:
        """The checkpoint that a preemption notice asked for is complete: the pod may end."""
        self._write(SAVED)

    def _write(self, state: str) -> None:
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text(state, encoding="utf-8")


def unsaved(folder: Path) -> list[int]:
    """The ranks of the pod that are alive and have not saved since a notice."""
    found = []
    for note in folder.glob("[0-9]*-[0-9]*"):
        pid, started = map(int, note.name.split("-"))
        if _started(pid) == started and _state(note) == TRAINING:
            found.append(pid)
    return sorted(found)


def _started(pid: int) -> int | None:
    """When a process started, in ticks since the machine did; None if there is none.

    A container that restarts keeps its notes, and gives their numbers to other processes and threads.
    """
    try:
        stat = Path("/proc", str(pid), "stat").read_text(encoding="utf-8")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


def _state(note: Path) -> str:
    try:
        # A rank that is just writing its note has an empty one.
        return note.read_text(encoding="utf-8") or TRAINING
    except FileNotFoundError:
        return SAVED


def notify(within_s: float) -> bool:
    """Give Ray a preemption notice for this node; whether Ray accepted it. The command is Ray's own for nodes
    that will be terminated (ray.scripts, drain-node): Ray Train reports it to the run.
    """
    command = [
        *("ray", "drain-node", "--reason", "DRAIN_NODE_REASON_PREEMPTION"),
        *("--reason-message", "the pod is drained", "--deadline-remaining-seconds", str(round(within_s))),
    ]
    try:
        return subprocess.run(command, timeout=NOTICE_TIMEOUT_S, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def drain(folder: Path, within_s: float, wait: Callable[[float], None] = time.sleep) -> bool:
    """Wait for the ranks of the pod; whether all of them saved or ended."""
    deadline = time.monotonic() + within_s
    if not unsaved(folder):
        return True
    if not notify(within_s):
        return False
    while unsaved(folder):
        if time.monotonic() > deadline:
            return False
        wait(POLL_S)
    return True


def main(arguments: list[str]) -> int:
    """The exit code is 0: Kubernetes reports a failed hook as a warning, and ends the pod anyway."""
    folder = os.environ.get(RANKS)
    if folder and not drain(Path(folder), float(arguments[0])):
        sys.stderr.write("the pod ends before its ranks saved\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
