"""Starting, watching and ending the processes of a run; used by every launcher that starts them on this
machine.

A launcher must leave nothing behind: on Ctrl-C or SIGTERM it ends the whole tree, and when it is killed
outright the kernel
ends its children (`die_with_parent`). Easy to get wrong: a grandchild whose parent dies is adopted by init
and escapes a walk
of the tree, so the launcher makes itself the reaper of its orphans first (`adopt_orphans`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
POLL_S = 0.05
END_GRACE_S = 3.0


def die_with(parent: int) -> None:
    """Have this process killed when its own parent dies, and end it at once if the process `parent`, its
    launcher, is gone.

    On Linux the kernel does it; elsewhere a thread looks once a second.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if not alive(parent):
            os._exit(1)
        return
    threading.Thread(target=_watch, args=(os.getppid(), parent), daemon=True, name="watch-parent").start()


def alive(pid: int) -> bool:
    """Whether a process with this id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _watch(direct: int, launcher: int) -> None:
    while os.getppid() == direct and alive(launcher):
        time.sleep(1)
    os._exit(1)


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent dies, so that none escapes (Linux)."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def below() -> set[int]:
    """The ids of this process's descendants."""
    import psutil

    return {child.pid for child in psutil.Process().children(recursive=True)}


def end_tree(grace_s: float, spared: Set[int] = frozenset()) -> list[int]:
    """End every descendant of this process but `spared`: SIGTERM, `grace_s` seconds, then SIGKILL. Returns
    the ids that needed SIGKILL.
    """
    import psutil

    def descendants() -> list[psutil.Process]:
        found = psutil.Process().children(recursive=True)
        return [
            child for child in found if child.pid not in spared and child.status() != psutil.STATUS_ZOMBIE
        ]

    for child in descendants():
        with contextlib.suppress(psutil.Error):
            child.terminate()
    deadline = time.monotonic() + grace_s
    while descendants() and time.monotonic() < deadline:
        _reap()
        time.sleep(POLL_S)
    killed: list[int] = []
    deadline = time.monotonic() + 10
    while (left := descendants()) and time.monotonic() < deadline:
        for child in left:
            with contextlib.suppress(psutil.Error):
                child.kill()
                killed.append(child.pid)
        _reap()
        time.sleep(POLL_S)
    _reap()
    return killed


def _reap() -> None:
    """Collect children that have ended, adopted ones too, so that none stays a zombie."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


@contextlib.contextmanager
def on_stop(stop: Callable[[int], None]) -> Iterator[None]:
    """Call `stop(signal number)` on SIGINT, SIGTERM or SIGHUP inside the block, then put the old handlers
    back.
    """

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        stop(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def supervise(
    command: Sequence[str],
    env: Mapping[str, str],
    log: IO[bytes],
    *,
    tick: Callable[[], None],
    ask_to_stop: Callable[[], bool],
    grace_s: float = 20.0,
) -> Ended:
    """Run `command` with its output in `log` until it ends, and leave no process of it behind.

    At the first SIGINT, SIGTERM or SIGHUP `ask_to_stop` is called; if it returns True the command has
    `grace_s` seconds to end
    by itself, unless a second signal comes. `tick` is called all the time; what it raises ends the command.
    """
    adopt_orphans()
    others = below()  # of a program that calls this as a part of itself
    guard = _start_guard()
    signals: list[int] = []
    deadline = float("inf")
    with on_stop(signals.append):
        # A session of its own: Ctrl-C in the terminal reaches only the launcher, which then ends the rest in
        # order.
        child = subprocess.Popen(
            command, env=dict(env), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        code: int | None = None
        try:
            while code is None and len(signals) < 2 and time.monotonic() < deadline:
                tick()
                if signals and deadline == float("inf"):
                    deadline = time.monotonic() + (grace_s if ask_to_stop() else 0.0)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = child.wait(POLL_S)
        finally:
            if guard is not None:
                guard.kill()
            end_tree(END_GRACE_S, others)
    return Ended(code, signals[0] if signals else None)


def _start_guard() -> subprocess.Popen[bytes] | None:
    """The process that outlives a killed launcher just long enough to end its run (Linux)."""
    if _LIBC is None:
        return None
    # -S: it needs the standard library alone, and starts in a moment.
    command = [sys.executable, "-S", str(Path(__file__).with_name("orphan_reaper.py")), str(os.getpid())]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@dataclass(frozen=True)
class Ended:
    """How a supervised command ended: its exit code (None if it had to be killed), and the signal that asked
    for it.
    """

    code: int | None
    signal: int | None
