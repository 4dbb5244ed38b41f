"""Starts, watches and ends the processes of a run, and leaves none behind.

On Ctrl-C or SIGTERM the whole tree is ended. When the launcher is killed, the kernel ends its children
(`die_with`), and `orphan_reaper` the rest.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING

from trainfleet.orphan_reaper import is_daemon

if TYPE_CHECKING:
    import psutil

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
POLL_S = 0.05
END_GRACE_S = 3.0


def die_with(parent: int) -> None:
    """End this process when its parent dies; at once if the launcher, the process `parent`, is gone.

    On Linux the kernel does it; elsewhere a thread polls once a second.
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
    """Make this process the parent of descendants whose own parent dies (Linux).

    NOTE: otherwise init adopts them, and they escape the walk of the process tree.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def every_process() -> Iterator[psutil.Process]:
    """Every process of this machine.

    NOTE: psutil.process_iter keeps its objects for the next call. An object whose process has ended and whose
        id another process has by now returns the environment of that process, but does not signal it.
    """
    import psutil

    psutil.process_iter.cache_clear()
    yield from psutil.process_iter()


def below() -> set[int]:
    """The ids of this process's descendants."""
    import psutil

    return {child.pid for child in psutil.Process().children(recursive=True)}


def end_tree(grace_s: float, spared: Set[int] = frozenset()) -> list[int]:
    """End every descendant but `spared` and servers that outlive launches: SIGTERM, then after `grace_s`
    seconds SIGKILL.

    Returns the ids that needed SIGKILL.
    """
    import psutil

    def descendants() -> list[psutil.Process]:
        found, kept = psutil.Process().children(recursive=True), set(spared)
        for child in found:
            if is_daemon(child.pid):
                with contextlib.suppress(psutil.Error):
                    kept |= {child.pid, *(each.pid for each in child.children(recursive=True))}
        return [child for child in found if child.pid not in kept and child.status() != psutil.STATUS_ZOMBIE]

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
    """Reap children that have ended, adopted ones too, so that none stays a zombie."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


@contextlib.contextmanager
def on_stop(stop: Callable[[int], None]) -> Iterator[None]:
    """Call `stop(signal number)` on SIGINT, SIGTERM or SIGHUP inside the block; restores the old handlers.

    A SIGHUP that is ignored stays ignored: `nohup` asked for it.
    """

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        stop(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    old = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


class Reaction(Enum):
    """What a signal means to a supervised command."""

    CONTINUE = auto()
    """Nothing: the command continues."""
    END_SOON = auto()
    """It ends by itself, within its time of grace."""
    END_NOW = auto()


def insisted(signals: Sequence[int]) -> bool:
    """Whether a signal was repeated. A terminal that is closed later insists on nothing."""
    return any(number != signal.SIGHUP for number in signals[1:])


def leave_terminal() -> None:
    """Send the outputs that go to a terminal to nowhere: after SIGHUP it is gone, and writing would fail.

    `isatty` is false of a terminal that is gone, so any character device is taken for one.
    """
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for number in (1, 2):
            if stat.S_ISCHR(os.fstat(number).st_mode):
                os.dup2(nowhere, number)
        os.close(nowhere)


def leave_output() -> None:
    """Send what is written to stdout to nowhere: its reader has ended or its disk is full."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)


def supervise(
    command: Sequence[str],
    env: Mapping[str, str],
    log: IO[bytes],
    *,
    tick: Callable[[], None],
    on_signal: Callable[[Sequence[int]], Reaction],
    own_signal: Callable[[], int | None] = lambda: None,
    grace_s: float = 20.0,
) -> Ended:
    """Run `command` with its output in `log` until it ends, and leave no process of it behind.

    Args:
        command: the program and its arguments.
        env: its environment.
        log: takes both its outputs.
        tick: called all the time; an exception ends the command.
        on_signal: called at the first SIGINT, SIGTERM or SIGHUP with the list of signals, to which another
            one may be added meanwhile. A second SIGINT or SIGTERM ends the command at once.
        own_signal: a signal that the caller reacts to as if it had come; None most of the time.
        grace_s: how long the command may take to end by itself.
    """
    adopt_orphans()
    others = below()  # those of the program that calls this
    reaper = _start_reaper()
    signals: list[int] = []
    deadline = float("inf")

    def note(number: int) -> None:
        if number == signal.SIGHUP:
            leave_terminal()
        signals.append(number)

    with on_stop(note):
        # A session of its own: Ctrl-C in the terminal reaches only the launcher, which ends the rest in
        # order.
        child = subprocess.Popen(
            command, env=dict(env), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        code: int | None = None
        try:
            while code is None and not insisted(signals) and time.monotonic() < deadline:
                tick()
                if not signals and (number := own_signal()) is not None:
                    signals.append(number)
                if signals and deadline == float("inf"):
                    asked = len(signals)
                    reaction = on_signal(signals)
                    if reaction is Reaction.CONTINUE:
                        del signals[:asked]  # one that came after the answer is not lost
                    else:
                        deadline = time.monotonic() + (grace_s if reaction is Reaction.END_SOON else 0.0)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = child.wait(POLL_S)
        finally:
            if reaper is not None:
                reaper.kill()
            end_tree(END_GRACE_S, others)
    return Ended(code, signals[0] if signals else None)


def _start_reaper() -> subprocess.Popen[bytes] | None:
    """Start the process that ends the run of a killed launcher (Linux)."""
    if _LIBC is None:
        return None
    # -S: it needs only the standard library, and starts faster.
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
    """How a supervised command ended: its exit code (None if it was killed), and the signal that requested
    it.
    """

    code: int | None
    signal: int | None
